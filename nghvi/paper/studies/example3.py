"""Example 3: binary rows, the hybrid methods against NAGVAC and naive predictions.

Data come from two processes: with effects of sd 1, as in the paper's text, and of sd 0.1, as in the
authors' program.
"""

import pathlib
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import nghvi
from nghvi.paper.studies import printed_values, problems
from nghvi.paper.studies.compared import OURS, classification_scores, fit
from nghvi.paper.studies.exhibits import Table, beside, box_axis, save, trace_axes, verdicts
from nghvi.paper.studies.problems import GROUP, Part, Problem
from nghvi.paper.studies.problems import example3 as simulate
from nghvi.paper.studies.store import Row
from nghvi.paper.studies.study import Options, Study
from nghvi.priors import InverseGamma, Priors

EFFECT_SD = {"code": 0.1, "text": 1.0}
REPLICATES, OTHERS = 100, {"code": 20, "text": 3}
"""Data sets of each process: the paper's number for the hybrid methods, fewer for the others.
The paper's figures are those of its code."""
PRIORS = Priors(weight_sd=50**0.5, coef_sd=5**0.5, effects=InverseGamma(0.1, 0.1))
"""The paper's (its program has a gamma prior on the variances instead)."""
NAIVE = {"naive": problems.group_shares, "majority": problems.majority}
METHODS = (*NAIVE, "nagvac", "sg-hvi", "ng-hvi", OURS)
PRINCIPAL = ("sg-hvi", "ng-hvi")
NO_RULE = "nagvac no rule"
WITH_RULE = ("nagvac", "nagvac-published", "nagvac-program")
RANK = 1
"""Factors of the hybrid methods' Gaussian, the authors'."""
STEPS = {"nagvac": 300}
"""3,000 for the hybrid methods and for NAGVAC without its rule, which mostly ends it earlier."""
PATHS = {
    NO_RULE: (30, 100, 300, 1000, 3000),
    "sg-hvi": (50, 100, 200, 300, 500, 1000, 2000, 3000),
    "ng-hvi": (50, 100, 200, 300, 500, 1000, 2000, 3000),
}
"""Where the test PCE is read on the way, each by a run of its own."""


def cells(options: Options) -> list[Row]:
    """Replicates of both processes; on the first data set also the ways there."""
    replicates: list[Row] = [
        {"process": process, "method": method, "seed": seed, "steps": STEPS.get(method, 3000)}
        for process, usual in OTHERS.items()
        for seed in options.seeds(REPLICATES)
        for method in METHODS
        if method in PRINCIPAL or seed in options.seeds(REPLICATES)[:usual]
    ]
    # The picture shows the ways of the code's process only; the tables need the last lengths.
    ways: list[Row] = [
        {"process": process, "method": method, "seed": options.seed, "steps": steps}
        for process in EFFECT_SD
        for method, lengths in PATHS.items()
        for steps in (lengths[:: len(lengths) - 1 if options.quick else 1])
        if process == "code" or steps == lengths[-1]
    ]
    return ways + [cell for cell in replicates if cell not in ways]


def run(cell: Row, options: Options) -> Row:
    """Fit one method and score training and test rows."""
    problem = simulate(cell["seed"], EFFECT_SD[cell["process"]], options.groups())
    method, train = cell["method"], problem.train
    if method in NAIVE:
        found: Row = {"taken": 0, "seconds": 0.0}
        return found | _scores(lambda part: NAIVE[method](train, part), problem)
    name = method.split()[0]
    estimator = classifier(name, cell["seed"], options.steps(cell["steps"]), options.quick)
    # A stopping rule watches the validation rows.
    found = fit(estimator, train, problem.validation if method in WITH_RULE else None)
    found["taken"] = found.pop("steps")
    # NAGVAC is published with effects drawn from their prior.
    which = "population" if name in WITH_RULE else "known"
    return found | _scores(
        lambda part: estimator.predict_proba(part.inputs, which=which)[:, 1], problem
    )


def classifier(name: str, seed: int, steps: int, quick: bool) -> nghvi.MixedClassifier:
    """The paper's network with the method's own link and settings."""
    chosen: dict[str, Any] = {} if name == OURS else {"method": name}
    if name in WITH_RULE:
        chosen["response"] = "logit"
    elif name != OURS:
        chosen["rank"] = RANK
    if name != OURS or quick:
        chosen["steps"] = steps
    return nghvi.MixedClassifier(
        GROUP,
        hidden=(5, 5),
        covariance="diagonal",
        standardize=False,
        priors=PRIORS,
        random_state=seed,
        **chosen,
    )


def _scores(predict: Callable[[Part], np.ndarray], problem: Problem) -> Row:
    train, test = problem.train, problem.test
    # Effects are drawn once for both parts.
    both = predict(Part(pd.concat([train.inputs, test.inputs]), np.concatenate([train.y, test.y])))
    of_train, of_test = np.split(both, [len(train.y)])
    return (
        classification_scores(of_train, train, "train")
        | classification_scores(of_test, test, "test")
        | {"pce_truth": nghvi.scores.pce(test.y, problem.test_mean)}
    )


def full_runs(rows: list[Row]) -> pd.DataFrame:
    """Those of a method's full length, as far as it has been run."""
    frame = pd.DataFrame(rows)
    return frame[frame["steps"] == frame.groupby(["process", "method"])["steps"].transform("max")]


def tables(rows: list[Row]) -> list[Table]:
    """One table per process."""
    final, found = full_runs(rows), []
    for process in EFFECT_SD:
        of_process = final[final["process"] == process]
        caption = (
            f"Example 3, effects of sd {EFFECT_SD[process]}: ours (paper's); medians over data "
            f"sets. The true probabilities have a PCE of {of_process['pce_truth'].median():.4f}."
        )
        found.append(Table(f"example3_{process}", caption, _table(of_process)))
    return found


def figures(rows: list[Row], folder: pathlib.Path) -> None:
    """The ways of the test PCE, box plots over replicates."""
    frame, final = pd.DataFrame(rows), full_runs(rows)
    figure, axes = plt.subplots(3, 2, figsize=(9, 9.6), layout="constrained")
    for row, process in enumerate(EFFECT_SD):
        of_process = final[final["process"] == process]
        for axis, key, label in zip(
            axes[1 + row], ("pce_test", "f1_test"), ("PCE", "F1"), strict=True
        ):
            chosen = of_process.groupby("method")[key]
            values = {m: chosen.get_group(m).to_numpy() for m in METHODS if m not in NAIVE}
            box_axis(axis, values, f"test {label}, sd {EFFECT_SD[process]}")
    first = frame[(frame["process"] == "code") & (frame["seed"] == frame["seed"].min())]
    trace_axes(axes[0], {m: _way(first[first["method"] == m]) for m in PATHS}, "test PCE")
    axes[0, 1].set_xscale("log")
    save(figure, folder, "example3")


def _table(frame: pd.DataFrame) -> pd.DataFrame:
    found = []
    for method, group in frame.groupby("method", sort=False):
        there = printed_values.EXAMPLE_3.get(str(method), {})
        scores = {
            f"{label} {part}": beside(group[f"{key}_{part}"].median(), there.get(f"{key}_{part}"))
            for key, label in (("pce", "PCE"), ("f1", "F1"))
            for part in ("train", "test")
        }
        low, high = group["pce_test"].quantile([0.05, 0.95])
        found.append(
            {"method": method}
            | scores
            | {
                "PCE 5-95 %": f"{low:.4f}-{high:.4f}" if len(group) > 1 else "-",
                "steps": int(group["taken"].median()),
                "minutes": f"{group['seconds'].median() / 60:.2f}",
                "data sets": len(group),
                "verdicts": verdicts(group["verdict"].dropna()) or "-",
            }
        )
    return pd.DataFrame(found).set_index("method")


def _way(frame: pd.DataFrame) -> Row:
    """The test PCE after each length of run, and how long a step takes in the longest."""
    frame = frame.sort_values("taken")
    last = frame.iloc[-1]
    return {
        "trace": frame["pce_test"].to_numpy(),
        "trace_steps": frame["taken"].to_numpy(),
        "seconds": last["seconds"],
        "steps": last["taken"],
    }


STUDY = Study("example3", "Bernoulli network [5, 5]", cells, run, tables, figures)
