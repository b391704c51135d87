"""The tables about responses on the page of measurements, from the rows of two benchmarks."""

from collections.abc import Sequence
from typing import Any

from nghvi.paper.studies.exhibits import markdown

Row = dict[str, Any]
NAMES = {
    "owls_negbin": "Owls, negative binomial",
    "epil_negbin": "epil, negative binomial",
    "wine_ordered_logit": "wine, ordered logit",
    "cbpp_binomial": "cbpp, binomial",
    "poisson_5000_groups": "simulated, Poisson",
    "binary_logit_medium_1": "simulated, logit, two effects",
}
HEAD = (
    "data, response (rows)",
    "nghvi, warm (first)",
    "R, warm",
    "NUTS, warm (effective draws)",
    "NUTS, for 1,000 effective draws",
    "error of nghvi",
    "error of R",
    "effects' sd of R / reference",
)


def peers(rows: Sequence[Row]) -> str:
    """Default fits compared with R and NUTS, one line per case."""
    known = {row["case"]: row for row in rows}
    lines = []
    for case, name in NAMES.items():
        if case not in known:
            continue
        row = known[case]
        ours, other, sampled = row["nghvi"], row["R"], row["NUTS"]
        if "seconds" in sampled:
            nuts, enough = f"{sampled['seconds']:.0f} (kept run)", ""
        else:
            number = sampled["least_effective_draws"]
            nuts = f"{sampled['warm_cpu']:.3g} ({number})"
            enough = f"{1000 * sampled['warm_cpu'] / number:.2g}"
        lines.append(
            [
                f"{name} ({row['rows']:,})",
                f"{ours['warm_cpu']:.2g} ({ours['first_cpu']:.0f})",
                f"{other['warm_cpu']:.2g} ({other['software']})",
                nuts,
                enough,
                f"{ours['mean_error']:.3f}",
                f"{other['mean_error']:.2f} ({other['worst']})",
                ", ".join(f"{value:.2f}" for value in other["effects_sd_ratio"].values()),
            ]
        )
    return markdown(HEAD, lines)


def references(rows: Sequence[Row]) -> str:
    """Default fits against long MCMC runs, one line per posterior."""
    head = ("data", "response", "fits", "converged", "largest error of a mean, in sds")
    more = ("sd ratios, coefficients", "sd ratios, others", "effects right, least")
    lines = []
    for case in dict.fromkeys(row["case"] for row in rows):
        fits = [row for row in rows if row["case"] == case]
        lines.append(
            [
                case.partition("_")[0],
                fits[0]["response"],
                str(len(fits)),
                str(sum(row["converged"] for row in fits)),
                f"{max(row['mean'] for row in fits):.3f}",
                *(_span([end for row in fits for end in row[part]]) for part in ("coef", "other")),
                f"{100 * min(row['effects'] for row in fits):.0f} %",
            ]
        )
    return markdown((*head, *more), lines)


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.3f} to {max(values):.3f}"


def deep(rows: Sequence[Row]) -> str:
    """Networks compared with the truth."""
    head = (
        "response",
        "log score",
        "log score of the truth",
        "difference",
        "status",
        "CPU seconds",
    )
    return markdown(
        head,
        [
            [
                row["response"],
                f"{row['log_score']:.4f}",
                f"{row['truth']:.4f}",
                f"{row['below']:.4f}",
                row["verdict"].split(":")[0].lower(),
                f"{row['cpu_seconds']:.0f}",
            ]
            for row in rows
        ],
    )
