"""Examples 2(a) and 2(b): Gaussian networks, all methods, over replicates."""

import pathlib
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd

from nghvi.paper.studies import printed_values, problems
from nghvi.paper.studies.compared import (
    OURS,
    fit,
    regression_scores,
    regressor,
    settings,
    step_seconds,
)
from nghvi.paper.studies.exhibits import Table, beside, box_axis, save, trace_axes, verdicts
from nghvi.paper.studies.store import Row
from nghvi.paper.studies.study import Options, Study

SMALL, LARGE = (5, 5), (32, 16)
STEPS = {"sg-hvi 10000": 10_000}
"""3,000 for every other method."""
METHODS_2A = ("davi-published", "davi", "sg-hvi", "ng-hvi", "sg-hvi 10000", OURS)
METHODS_2B = ("sg-hvi", "ng-hvi", "sg-hvi 10000", OURS)
PRINCIPAL, OTHERS = ("davi-published", "sg-hvi", "ng-hvi"), 20
"""Methods of 2(a) with the paper's number of data sets, and how many the others have."""
LINEAR: dict[str, dict[str, Any]] = {
    "random coefficients": {"random": "all"},
    "random intercept": {"random": "intercept"},
    "linear": {"group": None},
}


def run(cell: Row, problem: problems.Problem, hidden: tuple[int, ...], options: Options) -> Row:
    """Fit one method and score it."""
    method = cell["method"]
    if method in LINEAR:
        estimator = regressor(cell["seed"], **LINEAR[method])
        problem = problem if estimator.group else problem.ungrouped()
    else:
        chosen = settings(method.split()[0], options.steps(STEPS.get(method, 3000)))
        if options.quick and method == OURS:
            chosen = {"steps": options.steps(3000)}
        estimator = regressor(cell["seed"], hidden=hidden, **chosen)
    return fit(estimator, problem.train) | regression_scores(estimator, problem)


def table(rows: list[Row], printed: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """Median over replicates, with the 5 % and 95 % quantiles of the test R2."""
    frame = pd.DataFrame(rows)
    found = []
    for method, group in frame.groupby("method", sort=False):
        there: Mapping[str, Any] = printed.get(str(method), {})
        low, high = group["r2_test"].quantile([0.05, 0.95])
        found.append(
            {
                "method": method,
                "R2 train": beside(group["r2_train"].median(), there.get("r2_train")),
                "R2 test": beside(group["r2_test"].median(), there.get("r2_test")),
                "5-95 %": f"{low:.4f}-{high:.4f}",
                "log score": f"{group['log_score'].median():.4f}",
                "coverage": f"{group['coverage'].median():.3f}",
                "ELBO": f"{group['elbo'].median():.0f}",
                "steps": int(group["steps"].median()),
                "ms per step": f"{1e3 * step_seconds(group.to_dict('records')):.1f}",
                "minutes": beside(group["seconds"].median() / 60, there.get("minutes"), 2),
                "data sets": len(group),
                "verdicts": verdicts(group["verdict"]),
            }
        )
    return pd.DataFrame(found).set_index("method")


def tables_2a(rows: list[Row]) -> list[Table]:
    """One line per method."""
    caption = "Example 2(a): ours (paper's); medians over data sets"
    return [Table("example2a", caption, table(rows, printed_values.EXAMPLE_2A))]


def figures_2a(rows: list[Row], folder: pathlib.Path) -> None:
    """Traces of the first data set; test R2 relative to DAVI over data sets."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    _traces(axes[:2], rows, ("davi-published", "sg-hvi", "ng-hvi"), 6_000)
    wide = pd.DataFrame(rows).pivot(index="seed", columns="method", values="r2_test")
    ratios = {
        method: (wide[method] / wide["davi-published"]).to_numpy()
        for method in ("sg-hvi", "ng-hvi", OURS)
    }
    box_axis(axes[2], ratios, "test R2 relative to DAVI (published)")
    axes[2].axhline(1, color="0.7", lw=0.8)
    save(figure, folder, "example2a")


def tables_2b(rows: list[Row]) -> list[Table]:
    """One line per method."""
    caption = "Example 2(b): ours (paper's); medians over data sets"
    return [Table("example2b", caption, table(rows, printed_values.EXAMPLE_2B))]


def figures_2b(rows: list[Row], folder: pathlib.Path) -> None:
    """Traces of the first data set."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    _traces(axes, rows, ("sg-hvi", "ng-hvi"), 40_000)
    save(figure, folder, "example2b")


def _traces(axes: Any, rows: list[Row], methods: tuple[str, ...], below: float) -> None:
    """Noisy ELBOs on the first data set, from ``below`` the one of NG-HVI upwards."""
    first = min(row["seed"] for row in rows)
    of = {row["method"]: row for row in rows if row["seed"] == first}
    shown = {
        method: {
            **of[method],
            "seconds_a_step": step_seconds([r for r in rows if r["method"] == method]),
        }
        for method in methods
    }
    trace_axes(axes, shown)
    axes[0].set_ylim(of["ng-hvi"]["elbo"] - below, of["ng-hvi"]["elbo"] + below / 8)


STUDY_2A = Study(
    "example2a",
    "Gaussian network [5, 5]",
    lambda options: [
        {"method": method, "seed": seed}
        for seed in options.seeds(100)
        for method in (*METHODS_2A, *LINEAR)
        if method in PRINCIPAL or seed in options.seeds(100)[:OTHERS]
    ],
    lambda cell, options: run(
        cell, problems.example2a(cell["seed"], options.groups()), SMALL, options
    ),
    tables_2a,
    figures_2a,
)
STUDY_2B = Study(
    "example2b",
    "Gaussian network [32, 16]",
    lambda options: [
        {"method": method, "seed": seed, "network": problems.network_name(options.parameters)}
        for seed in options.seeds(10)
        for method in METHODS_2B
    ],
    lambda cell, options: run(
        cell, problems.example2b(cell["seed"], options.parameters, options.groups()), LARGE, options
    ),
    tables_2b,
    figures_2b,
    lambda options: f"data of {problems.network_name(options.parameters)}",
    "--parameters FILE",
)
