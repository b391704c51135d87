"""Pages whose text has figures from recorded runs: ``docs/asset_pricing.md``, ``docs/scaling.md``.

The text of each is in a file of the same name beside this one. :mod:`benchmarks.measured_page`
writes the pages.
"""

import datetime
import json
import pathlib
from typing import Any

import numpy as np

from nghvi.paper.studies.asset_pricing_views import compared, difference, without_a_month
from nghvi.paper.studies.exhibits import markdown

ROOT = pathlib.Path(__file__).parent.parent
Row = dict[str, Any]
COEFFICIENTS, SMALL, DEEP = "Random Coefficients", "DMM [8]", "DMM [32, 16, 8]"
MODELS = {
    "Linear": "linear",
    COEFFICIENTS: "random coefficients",
    SMALL: "deep, [8]",
    DEEP: "deep, [32, 16, 8]",
}
RANKS = {SMALL: 3, DEEP: 5}
FACTORS = {"FF3": "three factors", "FF5": "five factors"}
TRUSTS, BANKS = ("6726",), ("6021", "6022")
"""SIC codes."""


def plus_minus(gain: tuple[float, float]) -> str:
    """A difference with its standard error."""
    return f"{gain[0]:.4f} ± {gain[1]:.4f}"


def covered(shares: dict[str, list[float]]) -> str:
    """How many returns of all months three intervals cover, in per cent."""
    half, usual, wide = (100 * np.mean(values) for values in shares.values())
    return f"{half:.0f}, {usual:.0f} and {wide:.1f}"


def named(month: str) -> str:
    """A month such as 2016-11 in words."""
    return f"{datetime.date.fromisoformat(f'{month}-01'):%B %Y}"


class Panel:
    """The rows of the asset pricing study."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def of(self, model: str, factors: str, response: str = "gaussian", **other: Any) -> Row:
        """The row of a model with the usual settings, apart from those that are given."""
        wanted = {"covariance": "full", "priors": "default", "rank": RANKS.get(model, "auto")}
        wanted |= {"model": model, "factors": factors, "response": response} | other
        (found,) = (row for row in self.rows if row.items() >= wanted.items())
        return found

    def gain(self, factors: str, model: str, over: str, response: str = "gaussian") -> Any:
        """Test log score of a model minus that of another, with its standard error."""
        return difference(self.of(model, factors, response), self.of(over, factors, response))

    def gaussian(self) -> str:
        """Networks beside random coefficients."""
        lines = []
        for number, (factors, name) in enumerate(FACTORS.items()):
            lines += [[f"**{name}**", "", ""]] * bool(number)
            for model in (COEFFICIENTS, SMALL, DEEP):
                gain = self.gain(factors, model, COEFFICIENTS)
                score = f"{self.of(model, factors)['log_score_test']:.4f}"
                lines.append(
                    [MODELS[model], score, "" if model == COEFFICIENTS else plus_minus(gain)]
                )
        head = (FACTORS["FF3"], "log score, test", "difference to random coefficients")
        return markdown(head, lines)

    def noises(self) -> str:
        """Student-t noise beside Gaussian noise."""
        lines = []
        for factors, name in FACTORS.items():
            lines.append([f"**{name}**", "", "", "", ""])
            for model, shown in MODELS.items():
                normal, heavy = self.of(model, factors), self.of(model, factors, "student-t")
                over = self.gain(factors, model, COEFFICIENTS, "student-t")
                lines.append(
                    [
                        shown,
                        f"{normal['log_score_test']:.4f}",
                        f"{heavy['log_score_test']:.4f}",
                        plus_minus(difference(heavy, normal)),
                        "" if model == COEFFICIENTS else plus_minus(over),
                    ]
                )
        head = ("log score, test", "Gaussian", "Student-t", "gain", "over random coefficients")
        return markdown(head, lines)


def panel() -> Row:
    """What the page on asset pricing says of the study."""
    path = ROOT / "experiments" / "results" / "rows" / "finance.jsonl"
    found = Panel([json.loads(line) for line in path.read_text().splitlines()])
    normal = found.of(COEFFICIENTS, "FF3")
    firms, months = normal["panel"]["firms"], len(normal["months_train"])
    market = normal["premia"]["mkt_rf"]["mean"]
    coefficients = found.gain("FF3", COEFFICIENTS, "Linear")
    deep = found.of(DEEP, "FF3")
    without = {f: without_a_month(found.of(DEEP, f), found.of(COEFFICIENTS, f)) for f in FACTORS}
    accident = found.of(DEEP, "FF3", priors="paper")
    heavy = [found.of(model, f, "student-t") for f in FACTORS for model in MODELS]
    gains = [compared(row, found.of(row["model"], row["factors"])) for row in heavy]
    slow = [found.of(COEFFICIENTS, f, "student-t")["seconds"] for f in FACTORS]
    coverage = {
        response: found.of(COEFFICIENTS, "FF3", response)["coverage_test"]
        for response in ("gaussian", "student-t")
    }
    degrees = [row["degrees"] for row in heavy]
    scores = [row["log_score_test"] for row in heavy]
    return dict(
        date=normal["about"]["date"][:10],
        version=normal["version"],
        firms=f"{firms:,}",
        industries=normal["panel"]["groups"],
        months=months,
        test_months=len(normal["months_test"]),
        first=normal["months_train"][0][:4],
        last=normal["months_test"][-1][:4],
        split=normal["months_test"][0],
        trusts=sum(normal["panel"]["largest"][code] for code in TRUSTS),
        banks=sum(normal["panel"]["largest"][code] for code in BANKS),
        returns=f"{firms * months:,}",
        market=f"{np.median(market):.2f}",
        market_low=f"{min(market):.2f}",
        market_high=f"{max(market):.2f}",
        coefficients=plus_minus(coefficients),
        coefficients_mean=f"{coefficients[0]:.4f}",
        errors=f"{coefficients[0] / coefficients[1]:.0f}",
        intercept=f"{found.gain('FF3', 'Random Intercept', 'Linear')[0]:.4f}",
        elbo=f"{deep['elbo'] - normal['elbo']:,.0f}",
        r2_linear=f"{normal['r2_train']:.2f}",
        r2_deep=f"{deep['r2_train']:.2f}",
        gaussian=found.gaussian(),
        month=" and ".join(sorted({named(month) for month, _ in without.values()})),
        without_3=f"{without['FF3'][1]:.4f}",
        without_5=f"{without['FF5'][1]:.4f}",
        accident=plus_minus(difference(accident, deep)),
        accident_r2=f"{accident['r2_test']:.2f}",
        accident_sd=f"{accident['log_noise_var_sd']:.4f}",
        usual_sd=f"{accident['usual_sd']:.4f}",
        accident_times=f"{accident['log_noise_var_sd'] / accident['usual_sd']:.0f}",
        noises=found.noises(),
        least_gain=f"{np.floor(100 * min(gain.mean for gain in gains)) / 100:.2f}",
        apart=f"{max(scores) - min(scores):.3f}",
        models=len(heavy),
        degrees=f"{min(degrees):.1f} to {max(degrees):.1f}",
        heavy_coefficients=f"{-found.gain('FF3', 'Linear', COEFFICIENTS, 'student-t')[0]:.4f}",
        slow=" and ".join(f"{seconds:,.0f}" for seconds in slow),
        covered=covered(coverage["gaussian"]),
        heavy_covered=covered(coverage["student-t"]),
    )


def gibbs() -> Row:
    """The fit with Student-t noise beside a long MCMC run."""
    path = ROOT / "benchmarks" / "results" / "student_panel-FF3.json"
    held = json.loads(path.read_text())
    table = held["table"]
    ratios = [abs(row["sd_ratio"] - 1) for row in table]
    return dict(
        date=held["about"]["date"][:10],
        draws=f"{held['draws']:,}",
        quantities=len(table),
        mean_error=f"{max(abs(row['mean_error_in_sds']) for row in table):.2f}",
        noise=f"{max(row['its_monte_carlo_error'] for row in table):.2f}",
        sd_error=f"{100 * max(ratios):.0f}",
    )


def scaling() -> Row:
    """Time and memory of a step by the number of groups, and what follows for a cluster."""
    held = json.loads((ROOT / "benchmarks" / "results" / "scaling-2.json").read_text())
    rows, cores = held["rows"], held["about"]["cores"]
    lines = [
        [
            f"{row['groups']:,}",
            f"{row['rows']:,}",
            f"{1e3 * row['seconds_a_step']:.3g}",
            str(row["bytes_exchanged_a_step"]),
            f"{row['device_bytes_a_row']:.0f} bytes",
            f"{row['peak_gb']:.2f} GB",
        ]
        for row in rows
    ]
    head = ("groups", "rows", "ms per step", "bytes exchanged per step", "device memory per row")
    largest = rows[-1]
    wall = 1e9 * largest["seconds_a_step"] / largest["rows"]
    per_row = largest["device_bytes_a_row"]
    billion, hosts, of_host = 1e9, 50, 32
    return dict(
        date=held["about"]["date"][:10],
        commit=held["about"]["commit"][:7],
        table=markdown((*head, "peak memory of the process"), lines),
        power=f"{held['slope']:.3f}",
        wall=f"{wall:.0f}",
        processor=f"{cores * wall:.0f}",
        exchanged=largest["bytes_exchanged_a_step"],
        parameters=largest["parameters"],
        by_host=2 * largest["bytes_exchanged_a_step"],
        per_row=f"{per_row:.0f}",
        memory=f"{per_row * billion / hosts / 1e9:.0f}",
        step=f"{1e3 * cores * wall / 1e9 * billion / (hosts * of_host):.0f}",
    )


SECTIONS = (panel, gibbs, scaling)
NAMES = ("asset_pricing.md", "scaling.md")


def pages() -> dict[pathlib.Path, str]:
    """The text of every page, by its place."""
    values = {section.__name__: section() for section in SECTIONS}
    templates = pathlib.Path(__file__).parent
    return {ROOT / "docs" / n: (templates / n).read_text().format(**values) for n in NAMES}
