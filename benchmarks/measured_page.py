"""The page of measurements, ``docs/results.md``, and others, from recorded rows; nothing is run::

    python -m benchmarks.measured_page

The sentences are in ``measured.md``; every number in them is computed here from a file in
``benchmarks/results``. Whatever has no rows is not on the page. The other pages are those of
:mod:`benchmarks.prose`.
"""

import json
import pathlib
from collections.abc import Iterable
from typing import Any

from benchmarks import network_page, prose, response_page
from benchmarks.cold_starts import waiting
from benchmarks.report import number, number_range, span
from nghvi.paper.studies.exhibits import markdown
from nghvi.storage.file import replaced

ROOT = pathlib.Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "results.md"
TEMPLATE = ROOT / "benchmarks" / "measured.md"
Row = dict[str, Any]


def read(name: str) -> Row:
    """A recorded run: the newest file whose name fits the pattern."""
    return json.loads(max(RESULTS.glob(f"{name}.json")).read_text())


def when(about: Row) -> str:
    """Date, commit and load of a run."""
    commit = (about["commit"] or "unknown")[:7] + "+" * about["uncommitted_changes"]
    return f"{about['date'][:10]}, commit {commit}, load {about['load_average_at_start']:.1f}"


def is_binary(row: Row) -> bool:
    """Whether a reference posterior is of a probit model."""
    return "probit" in row["case"]


def references() -> Row:
    """Default fits against long MCMC runs."""
    held = read("calibration")
    rows = held["rows"]
    lines = []
    for name, chosen in (
        ("linear", [row for row in rows if not is_binary(row)]),
        ("probit", [row for row in rows if is_binary(row)]),
    ):
        ratios = [row[key] for row in chosen for key in ("sd_ratio_min", "sd_ratio_max")]
        lines.append(
            [
                name,
                str(len({row["case"] for row in chosen})),
                str(len(chosen)),
                str(sum(row["converged"] for row in chosen)),
                f"{max(row['mean_error'] for row in chosen):.3f}",
                span(ratios),
                f"{100 * min(row['effects_ok'] for row in chosen):.0f} %",
            ]
        )
    head = ("response", "references", "fits", "converged", "largest error of a mean, in sds")
    return dict(
        when=when(held["about"]),
        references=len({row["case"] for row in rows}),
        seeds=len({row["seed"] for row in rows}),
        table=markdown((*head, "sd ratios", "effects right, smallest share"), lines),
    )


def textbook() -> Row:
    """Default fits compared with lme4's, in four units."""
    held = read("textbook")
    rows = held["rows"]
    plain = [row for row in rows if row["unit"] == "as they are"]
    shown = sorted(plain, key=lambda row: -row["ratio"])[:6]
    widest = shown[0]
    head = ("data", "groups", "rows", "posterior median", "reference", "ratio")
    lines = [
        [
            row["data"],
            str(row["groups"]),
            str(row["rows"]),
            f"{row['residual_median']:.3g}",
            f"{row['residual_reference']:.3g}",
            f"{row['ratio']:.3f}",
        ]
        for row in shown
    ]
    others = {row["data"]: row["software"] for row in plain if "lme4" not in row["software"]}
    intervals = sum(len(row["parameters"]) for row in rows)
    return dict(
        when=when(held["about"]),
        data=len(plain),
        fits=len(rows),
        converged=sum(row["converged"] for row in rows),
        ratios=span(row["ratio"] for row in rows),
        widest=f"{widest['data']}, {widest['groups']} groups, {widest['rows']} rows",
        others="; ".join(f"{name}: {software}" for name, software in others.items()),
        excluded=sum(len(row["excluded"]) for row in rows),
        intervals=intervals,
        table=markdown(head, lines),
    )


PEER_NAMES = {
    "nghvi": "nghvi",
    "gpboost": "GPBoost",
    "statsmodels": "statsmodels",
    "bossanova": "bossanova",
    "numpyro-svi": "NumPyro SVI",
    "numpyro-nuts": "NumPyro NUTS",
}
PROBLEMS = {
    "lmm": "linear, intercept",
    "lmm3": "linear, 3 correlated effects",
    "probit": "probit, intercept",
}


def peers() -> Row:
    """Other packages on the same data."""
    held = read("peers-full-*")
    head = ("problem", "method", "cold s", "warm s", "mean error, sds", "sd ratio, coefficients")
    lines = []
    for row in held["rows"]:
        compared = row["comparison"]
        lines.append(
            [
                PROBLEMS[row["problem"]],
                PEER_NAMES[row["method"]],
                number(row.get("cold_seconds"), ".2g"),
                number(row.get("warm_seconds"), ".2g"),
                number(compared["mean_error"], ".2f"),
                number_range(compared["sd_ratio_coef"]),
                number_range(compared["sd_ratio_variances"]),
                row["remark"] or "-",
            ]
        )
    return dict(
        when=when(held["about"]),
        groups=held["settings"]["groups"],
        table=markdown((*head, "sd ratio, log variances", "remark"), lines),
    )


def rules() -> Row:
    """Example 1 of the paper: rules and ranks against the evidence."""
    held = read("paper_rules")
    linear = [row for row in held["rows"] if "log_evidence" in row]
    settings = list(dict.fromkeys((row["method"], row["rank"]) for row in linear))
    examples = list(dict.fromkeys(row["example"] for row in linear))
    of = {(row["example"], row["method"], row["rank"]): row for row in linear}
    head = ("method", "factors", *(EXAMPLES_1[name] for name in examples))

    def cell(row: Row) -> str:
        verdict = "" if row["converged"] else " (not converged)"
        return f"{row['elbo'] - row['log_evidence']:.2f}{verdict}"

    lines = [
        [RULE_NAMES[method], str(rank), *(cell(of[name, method, rank]) for name in examples)]
        for method, rank in settings
    ]
    return dict(when=when(held["about"]), table=markdown(head, lines))


RULE_NAMES = {
    "auto": "default",
    "ng-hvi": "NG-HVI, the program's",
    "ng-hvi-printed": "NG-HVI, as printed",
    "sg-hvi": "SG-HVI",
}
EXAMPLES_1 = {
    "ex1_K1000_ratio1": "K = 1,000, ratio 1",
    "ex1_K100_ratio1": "K = 100, ratio 1",
    "ex1_K100_ratio0.01": "K = 100, ratio 0.01",
}


def networks() -> Row:
    """The default recipe compared with the published rule on the paper's networks."""
    return network_page.networks(read("paper_networks")["rows"], when)


def steps() -> Row:
    """What a step of a deep mixed model costs."""
    held = read("network_step")
    head = ("shape", "plain network, ms", "step, ms", "ratio", "collapsed rows, ms")
    lines = [
        [
            row["shape"],
            f"{row['plain_ms']:.2f}",
            f"{row['step_ms']:.2f}",
            f"{row['ratio']:.1f}",
            number(row.get("collapsed_ms"), ".2f"),
        ]
        for row in held["rows"]
    ]
    collapsed = next(row for row in held["rows"] if "collapsed_ms" in row)
    memory = read("network_memory")
    return dict(
        when=when(held["about"]),
        table=markdown(head, lines),
        cheaper=f"{collapsed['times_cheaper']:.0f}",
        difference=f"{collapsed['score_difference']:.0e}",
        memory_when=when(memory["about"]),
        memory=markdown(
            ("rows", "groups", "largest group", "peak, GB", "seconds for 12 steps"),
            [
                [
                    f"{row['rows']:,}",
                    f"{row['groups']:,}",
                    f"{row['largest']:,}",
                    f"{row['peak_gb']:.1f}",
                    f"{row['seconds']:.0f}",
                ]
                for row in memory["rows"]
            ],
        ),
    )


def predictions() -> Row:
    """Deep mixed models compared with a peer, and their calibration."""
    held = read("deep")
    head = ("method", "test R2", "log score", "coverage of 90 %", "fit, s", "load")
    lines = [
        [
            PEER_NAMES[row["method"]],
            f"{row['r2']:.3f}",
            f"{row['log_score']:.3f}",
            f"{row['coverage']:.3f}",
            f"{row['fit_seconds']:.0f}",
            f"{row['load']:.1f}",
        ]
        for row in held["rows"]
    ]
    calibration = read("network_calibration")
    rows = calibration["rows"]
    covered = []
    for level in ("0.5", "0.8", "0.95"):
        values = [row[f"coverage_{level}"] for row in rows]
        mean = sum(values) / len(values)
        variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
        se = (variance / len(values)) ** 0.5
        covered.append(f"{100 * float(level):.0f} % intervals cover {mean:.3f} ({se:.3f})")
    return dict(
        when=when(held["about"]),
        table=markdown(head, lines),
        calibration_when=when(calibration["about"]),
        sets=len(rows),
        covered=", ".join(covered),
    )


SIMULATED_HEAD = (
    "rows",
    "levels",
    "first, s",
    "second, s",
    "processor, s",
    "GPBoost, processor s",
    "peak, GB",
    "se",
)
INSTEVAL_NAMES = {
    "s": "sd of students",
    "d": "sd of lecturers",
    "dept_service": "sd of departments by service",
}
INSTEVAL_HEAD = (
    "InstEval",
    "wall, s",
    "processor, s",
    "intercept",
    "service",
    *INSTEVAL_NAMES.values(),
)


def _insteval(names: Iterable[str], held: Row) -> list[list[str]]:
    """Lines of the table of InstEval: a fit in a new process, again, and those of peers."""
    lines = []
    for name in names:
        ours, factors = held[name]["nghvi"], len(held[name]["nghvi"]["levels"])
        means = ours["mean"] | {
            key: ours["mean"].get(f"effects_sd[intercept | {key}]") for key in INSTEVAL_NAMES
        }
        lme4, gpboost = held[name]["lme4"], held[name].get("gpboost")
        rows = [
            ("nghvi, first", ours["first"], ours["first_processor"], means),
            ("nghvi, second", ours["second"], ours["second_processor"], means),
            ("lme4", lme4["seconds"], lme4["processor"], lme4),
        ]
        if gpboost:
            found = dict(zip(("intercept", "service"), gpboost["coef"], strict=False))
            sds = [variance**0.5 for variance in gpboost["variances"][1:]]
            found |= dict(zip(INSTEVAL_NAMES, sds, strict=False))
            rows.append(("GPBoost", gpboost["seconds"], gpboost["processor"], found))
        for who, wall, processor, values in rows:
            shown = [values.get(key) for key in ("intercept", "service", *INSTEVAL_NAMES)]
            times = f"{wall:.1f}", f"{processor:.1f}"
            lines.append([f"{factors} factors, {who}", *times, *(number(v, ".3f") for v in shown)])
    return lines


def _when_each(rows: list[Row]) -> str:
    """When rows were measured: the last run, and for others their number of observations."""
    last = max((row["about"] for row in rows), key=lambda about: about["date"])
    older = [row for row in rows if row["about"]["commit"] != last["commit"]]
    return "; ".join([when(last), *(f"{row['rows']:,} rows {when(row['about'])}" for row in older)])


def factors() -> Row:
    """Several grouping factors: time and memory, compared with peers."""
    held = read("factors")
    lines = [
        [
            f"{row['rows']:,}",
            " x ".join(f"{each:,}" for each in row["levels"]),
            f"{row['first']:.0f}",
            f"{row['second']:.1f}",
            f"{row['second_processor']:.1f}",
            number(row.get("gpboost", {}).get("processor"), ".1f"),
            f"{row['peak_gigabytes']:.1f}",
            f"{row['elbo_se']:.1g}",
        ]
        for row in held["simulated"]
    ]
    names = [name for name in ("insteval", "insteval_three") if name in held]
    ours = held["insteval"]["nghvi"]
    return dict(
        when=_when_each(held["simulated"]),
        table=markdown(SIMULATED_HEAD, lines),
        insteval_when=when(held["insteval"]["about"]),
        ratings=f"{ours['rows']:,}",
        students=f"{ours['levels'][0]:,}",
        lecturers=f"{ours['levels'][1]:,}",
        effects=f"{ours['group_effects_processor']:.1f}",
        few=f"{ours['predict_few_processor']:.1f}",
        insteval=markdown(INSTEVAL_HEAD, _insteval(names, held)),
    )


def responses() -> Row:
    """Counts, shares and classes: compared with R and NUTS, and deep ones with the truth."""
    rows, deep = read("responses")["rows"], read("deep_responses")["rows"]
    known = read("response_calibration")
    return dict(
        references_when=when(known["about"]),
        references=response_page.references(known["rows"]),
        seeds=len({row["seed"] for row in known["rows"]}),
        when=when(rows[-1]["about"]),
        table=response_page.peers(rows),
        deep_when=when(deep[-1]["about"]),
        deep=response_page.deep(deep),
    )


def grouped_tables() -> Row:
    """Networks on grouped tables, beside NUTS and with other seeds."""
    held = read("function_space")
    tables = [json.loads(line) for line in (RESULTS / "tables.jsonl").read_text().splitlines()]
    found = network_page.grouped(tables)
    return found | dict(
        nuts=network_page.beside_nuts(held["nuts"]),
        nuts_when=when(held["nuts"][0]["about"]),
        seeds=network_page.seeds(held["seeds"]),
        seeds_when=when(held["seeds"][0]["about"]),
    )


def strange_input() -> Row:
    """The outcome of fuzzing."""
    held = read("fuzz")
    counts = held["counts"]
    outcomes = list(counts["all"])
    lines = [
        [kind, *(str(found.get(outcome, 0)) for outcome in outcomes)]
        for kind, found in counts.items()
    ]
    return dict(
        when=when(held["about"]),
        table=markdown(("input", *outcomes), lines),
        offending=len(held["offending"]),
    )


def summary() -> Row:
    """What the sections say, in a few lines."""
    rows = read("calibration")["rows"]
    linear = [row["mean_error"] for row in rows if not is_binary(row)]
    probit = [row["mean_error"] for row in rows if is_binary(row)]
    texts = read("textbook")["rows"]
    warm = {
        row["problem"]: row["warm_seconds"]
        for row in read("peers-full-*")["rows"]
        if row["method"] == "nghvi"
    }
    return dict(
        fits=len(rows),
        converged=sum(row["converged"] for row in rows),
        linear=f"{max(linear):.3f}",
        probit=f"{max(probit):.3f}",
        texts=len(texts),
        excluded=sum(len(row["excluded"]) for row in texts),
        warm=", ".join(f"{value:.2g} s ({PROBLEMS[name]})" for name, value in warm.items()),
    )


SECTIONS = (
    summary,
    references,
    textbook,
    peers,
    waiting,
    predictions,
    networks,
    grouped_tables,
    rules,
    steps,
    factors,
    responses,
    strange_input,
)
"""Each makes the numbers of the template's section of its name."""


def page() -> str:
    """The whole page."""
    return TEMPLATE.read_text().format(**{section.__name__: section() for section in SECTIONS})


if __name__ == "__main__":
    for place, text in {PAGE: page(), **prose.pages()}.items():
        with replaced(place) as file:
            file.write(text.encode())
