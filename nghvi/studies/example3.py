"""Example 3: binary rows, the hybrid methods against NAGVAC and naive predictions.

Two processes: effects of sd 1, as the paper's text says, and of sd 0.1, as the authors' program
has it.
"""

import pathlib
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd

import nghvi
from nghvi.priors import InverseGamma, Priors
from nghvi.studies import naive, paper
from nghvi.studies.figures import box_axis, save
from nghvi.studies.methods import OURS, classification_scores, fit
from nghvi.studies.problems import GROUP, Problem
from nghvi.studies.problems import example3 as simulate
from nghvi.studies.store import Row
from nghvi.studies.study import Options, Study
from nghvi.studies.tables import beside, write_table

EFFECT_SD = {"text": 1.0, "code": 0.1}
PRIORS = Priors(weight_sd=50**0.5, coef_sd=5**0.5, effects=InverseGamma(0.1, 0.1))
"""The paper's (its program has a gamma prior on the variances instead)."""
NAIVE = {"naive": naive.group_shares, "majority": naive.majority}
METHODS = (*NAIVE, "nagvac", "sg-hvi", "ng-hvi", OURS)
STEPS = {"nagvac": 300, "nagvac no rule": 3000}


def cells(options: Options) -> list[Row]:
    """Replicates of both processes; NAGVAC without its rule once, as it takes that long."""
    seeds = options.seeds(20)
    return [
        {"process": process, "method": method, "seed": seed}
        for process in EFFECT_SD
        for seed in seeds
        for method in (METHODS if seed > seeds[0] else (*METHODS, "nagvac no rule"))
    ]


def run(cell: Row, options: Options) -> Row:
    """Fit one method and score training and test rows."""
    problem = simulate(cell["seed"], EFFECT_SD[cell["process"]])
    method, train = cell["method"], problem.train
    if method in NAIVE:
        found: Row = {"steps": 0, "seconds": 0.0}
        return found | _scores(lambda part: NAIVE[method](train, part), problem)
    estimator = classifier(method, cell["seed"], options)
    # A stopping rule watches the validation rows.
    found = fit(estimator, train, problem.validation if method == "nagvac" else None)
    # NAGVAC is published with effects drawn from their prior.
    which = "population" if method.startswith("nagvac") else "known"
    return found | _scores(
        lambda part: estimator.predict_proba(part.inputs, which=which)[:, 1], problem
    )


def classifier(method: str, seed: int, options: Options) -> nghvi.MixedClassifier:
    """The paper's network with the method's own link and settings."""
    name = method.split()[0]
    chosen: dict[str, Any] = {} if name == OURS else {"method": name}
    if name == "nagvac":
        chosen["response"] = "logit"
    if name != OURS or options.quick:
        chosen["steps"] = options.steps(STEPS.get(method, 3000))
    return nghvi.MixedClassifier(
        GROUP,
        hidden=(5, 5),
        covariance="diagonal",
        standardize=False,
        priors=PRIORS,
        random_state=seed,
        **chosen,
    )


def _scores(predict: Any, problem: Problem) -> Row:
    train, test = problem.train, problem.test
    return (
        classification_scores(predict(train), train, "train")
        | classification_scores(predict(test), test, "test")
        | {"pce_truth": nghvi.scores.pce(test.y, problem.test_mean)}
    )


def report(rows: list[Row], folder: pathlib.Path) -> None:
    """One table a process, and box plots over replicates."""
    frame = pd.DataFrame(rows)
    for process, of_process in frame.groupby("process", sort=False):
        found = []
        for method, group in of_process.groupby("method", sort=False):
            there = paper.EXAMPLE_3.get(str(method), {})
            scores = {
                f"{label} {part}": beside(
                    group[f"{key}_{part}"].median(), there.get(f"{key}_{part}")
                )
                for key, label in (("pce", "PCE"), ("f1", "F1"))
                for part in ("train", "test")
            }
            low, high = group["pce_test"].quantile([0.05, 0.95])
            seconds = group["seconds"] / group["steps"].clip(lower=1)
            found.append(
                {"method": method}
                | scores
                | {
                    "PCE 5-95 %": f"{low:.4f}-{high:.4f}",
                    "steps": int(group["steps"].median()),
                    "ms a step": f"{1e3 * seconds.median():.1f}",
                    "minutes": f"{group['seconds'].median() / 60:.2f}",
                    "data sets": len(group),
                }
            )
        truth = of_process["pce_truth"].median()
        caption = (
            f"Example 3, effects of sd {EFFECT_SD[str(process)]}: ours (paper's); medians over "
            f"data sets. The true probabilities have PCE {truth:.4f}."
        )
        table = pd.DataFrame(found).set_index("method")
        write_table(table, folder, f"example3_{process}", caption)
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.4), layout="constrained")
    compared = ("nagvac", "sg-hvi", "ng-hvi", OURS)
    for row, process in zip(axes, EFFECT_SD, strict=True):
        for axis, key, label in zip(row, ("pce_test", "f1_test"), ("PCE", "F1"), strict=True):
            chosen = frame[frame["process"] == process].groupby("method")[key]
            values = {m: chosen.get_group(m).to_numpy() for m in compared}
            box_axis(axis, values, f"test {label}, sd {EFFECT_SD[process]}")
    save(figure, folder, "example3")


STUDY = Study("example3", "Bernoulli network [5, 5]", cells, run, report)
