"""The paper's last table: sizes of every example, time per step and to fit, of every method.

The time of a step is the difference between two warm runs of different lengths, divided by the
difference in steps: compilation, data preparation and evaluation cancel. The library's own recipe
chooses its number of steps, so its time per step is that of a warm run divided by this number.
"""

from typing import Any

import jax
import pandas as pd

from nghvi.paper.studies import example3, printed_values, problems
from nghvi.paper.studies.compared import OURS, linear, regressor, settings
from nghvi.paper.studies.example2 import LARGE, SMALL
from nghvi.paper.studies.exhibits import Table, beside
from nghvi.paper.studies.problems import Problem
from nghvi.paper.studies.store import Row
from nghvi.paper.studies.study import Options, Study

METHODS = {
    "example1": ("davi", "sg-hvi", "ng-hvi", OURS),
    "example2a": ("davi", "sg-hvi", "ng-hvi", OURS),
    "example2b": ("sg-hvi", "ng-hvi", OURS),
    "example3": ("nagvac", "sg-hvi", "ng-hvi", OURS),
}
LARGE_ONE = ("example2b",)
"""The example whose data depend on ``--parameters``."""
PUBLISHED_STEPS = {"example1": 10_000}
"""3,000 for the others."""
LENGTHS = {"example1": (500, 2500), "nagvac": (10, 30)}
"""Lengths of the two runs that are compared, by method or example; otherwise 100 and 500."""


def simulate(example: str, options: Options) -> Problem:
    """The first data set of an example."""
    seed, groups = options.seed, options.groups()
    if example == "example1":
        return problems.example1(groups, 1.0, seed)
    if example == "example2b":
        return problems.example2b(seed, options.parameters, groups)
    if example == "example3":
        return problems.example3(seed, example3.EFFECT_SD["code"], groups)
    return problems.example2a(seed, groups)


def estimator(example: str, method: str, steps: int, quick: bool) -> Any:
    """An example's estimator, set up for a method."""
    if example == "example3":
        return example3.classifier(method, 1, steps, quick)
    if example == "example1":
        rank = {"rank": 3} if method.endswith("-hvi") else {}
        return linear(1, **settings(method, steps), **rank)
    chosen = settings(method, steps) | ({"steps": steps} if quick else {})
    return regressor(1, hidden=SMALL if example == "example2a" else LARGE, **chosen)


def run(cell: Row, options: Options) -> Row:
    """Sizes and times of one method."""
    example, method = cell["example"], cell["method"]
    train = simulate(example, options).train
    lengths = LENGTHS.get(method, LENGTHS.get(example, (100, 500)))

    def fitted(steps: int) -> Any:
        return estimator(example, method, steps, options.quick).fit(train.inputs, train.y)

    first = fitted(lengths[0])
    inference = first.posterior_.inference
    model, q = inference.model, inference.q
    if method == OURS:
        last = fitted(lengths[0]).posterior_.inference.run
        a_step, minutes = last.seconds / last.steps, first.seconds_ / 60
    else:
        short, long = (fitted(length).posterior_.inference.run.seconds for length in lengths)
        a_step = (long - short) / (lengths[1] - lengths[0])
        minutes = a_step * PUBLISHED_STEPS.get(example, 3000) / 60
    groups = len(first.groups_)
    # Of a binary response the hybrid methods draw a utility per row, too.
    utilities = len(train.y) if model.response.classes else 0
    return {
        "r": model.num_effects,
        "m": q.dim,
        "z": groups * model.num_effects + utilities,
        "K": groups,
        "n": len(train.y),
        "p": getattr(q, "rank", q.dim),
        "lambda": sum(leaf.size for leaf in jax.tree.leaves(q)),
        "seconds_a_step": a_step,
        "minutes": minutes,
    }


def tables(rows: list[Row]) -> list[Table]:
    """The paper's table of NG-HVI; the times of all methods side by side."""
    sizes, times = [], []
    of = {(row["example"], row["method"]): row for row in rows}
    for example, methods in METHODS.items():
        ours, there = of[example, "ng-hvi"], printed_values.SUMMARY[example]
        counts = {
            key: str(ours[key]) if ours[key] == there[key] else f"{ours[key]} ({there[key]})"
            for key in ("r", "m", "z", "K", "n", "p", "lambda")
        }
        clock = {
            "s per step": beside(ours["seconds_a_step"], there["seconds_a_step"]),
            "minutes": beside(ours["minutes"], there["minutes"], 2),
        }
        sizes.append({"example": example} | counts | clock)
        unit = of[example, "sg-hvi"]["seconds_a_step"]
        for method in methods:
            row = of[example, method]
            times.append(
                {
                    "example": example,
                    "method": method,
                    "ms per step": f"{1e3 * row['seconds_a_step']:.2f}",
                    "relative to sg-hvi": f"{row['seconds_a_step'] / unit:.2f}",
                    "minutes to fit": f"{row['minutes']:.2f}",
                }
            )
    caption = "Sizes and times of NG-HVI: ours, with the paper's in brackets where it differs"
    of_steps = "Time of a step, warm, and to fit (the library's own recipe: compilation included)"
    return [
        Table("summary", caption, pd.DataFrame(sizes).set_index("example")),
        Table("summary_steps", of_steps, pd.DataFrame(times).set_index("example")),
    ]


def cells(options: Options) -> list[Row]:
    """Every method of every example, on one data set."""
    return [
        {"example": example, "method": method, "seed": options.seed}
        | ({"network": problems.network_name(options.parameters)} if example in LARGE_ONE else {})
        for example, methods in METHODS.items()
        for method in methods
    ]


STUDY = Study("summary", "sizes and times", cells, run, tables, needs="--parameters FILE")
