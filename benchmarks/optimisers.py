"""Optimisers of a network's Gaussian, side by side: the ELBO and test scores they buy per gradient.

All begin at the same climb to a mode (of one random start) and move a Gaussian around it for a
number of gradients, each run with that number as its budget, since steps shrink towards its end:

    diagonal         natural gradients of a diagonal Gaussian in its own units (the default)
    Adam             explore and polish on a Gaussian with three factors
    NG-HVI           the published rule: printed Fisher matrix, effects drawn, three factors
    NG-HVI, exact    the same with the exact Fisher matrix of the family, effects integrated out

The ELBO is evaluated again with fresh draws; log scores are means over held-out rows. CPU seconds
are those of the steps without their compilation. One line of JSON per run, so that an interrupted
run continues where it stopped.

Run: python -m benchmarks.optimisers [--problems 2(a),friedman] [--seeds 2]
"""

import argparse
import copy
import json
import pathlib
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

import nghvi
from benchmarks.tables import divide, load
from nghvi._core.score import Integrated
from nghvi._core.variational import Start
from nghvi.families import Factor
from nghvi.inference import finish
from nghvi.methods import PUBLISHED, NaturalGradient
from nghvi.paper.studies import problems
from nghvi.paper.studies.facts import about
from nghvi.recipes.deep import STEPS, deep_recipe, starting_sd
from nghvi.recipes.plan import published_recipe
from nghvi.recipes.run import Recipe, Run, run
from nghvi.recipes.settings import Settings
from nghvi.recipes.verdict import Cause, Status, Verdict

ROOT = pathlib.Path(__file__).parent.parent
OUT, PICTURE = ROOT / "benchmarks/results/optimisers.jsonl", ROOT / "docs/figures/optimisers.png"
GRADIENTS = (200, 600, 1750)
SPLIT = 8
"""Of tables; those below were used while defaults were chosen."""
UNJUDGED = Verdict(Status.NOT_SETTLED, Cause.STEPS)


class Problem(NamedTuple):
    """Training rows with columns ``y`` and ``group``, rows to score, and hidden layers."""

    train: pd.DataFrame
    test: pd.DataFrame
    hidden: tuple[int, ...]


def example_2a(seed: int) -> Problem:
    """The paper's Example 2(a), with fresh data."""
    made = problems.example2a(1000 + seed)
    train, test = (part.inputs.assign(y=part.y) for part in (made.train, made.test))
    return Problem(train, test, (5, 5))


def of_table(name: str) -> Callable[[int], Problem]:
    """A simulated table; its held-out rows are of known and of new groups."""

    def made(seed: int) -> Problem:
        table = load(name, SPLIT + seed, None)
        assert table is not None
        parts = divide(table, SPLIT + seed)
        return Problem(parts["train"], pd.concat([parts["known"], parts["new"]]), (32, 16))

    return made


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "2(a)": example_2a,
    **{name: of_table(name) for name in ("friedman", "waves", "network")},
}


class Clock:
    """CPU seconds of the steps after every stage's first chunk, spread over all its steps."""

    def __init__(self) -> None:
        self.times: dict[str, list[tuple[int, float]]] = {}

    def __call__(self, stage: str, step: int, total: int, trace: Any) -> None:
        self.times.setdefault(stage, []).append((step, time.process_time()))

    def seconds(self, stages: list[str]) -> float:
        """Of some stages."""
        found = 0.0
        for stage in stages:
            (first, begun), (last, ended) = self.times[stage][0], self.times[stage][-1]
            found += last * (ended - begun) / max(last - first, 1)
        return found


def climbs(name: str) -> bool:
    """Whether a stage comes before the Gaussian."""
    return name.startswith(("search", "climb"))


def recipe_of(method: str, model: Any, data: Any, gradients: int, theta: Any) -> Recipe:
    """The steps after the climb; ``theta``: where it ended."""
    steps = round(gradients * 24 / 20)
    if method in ("diagonal", "Adam"):
        family: Any = {"diagonal": "auto", "Adam": Factor()}[method]
        usual = Settings(n_starts=1, steps=steps, family=family, start=theta)
        whole = deep_recipe(model, data, Integrated(), usual)
        stages = [stage for stage in whole.stages if not climbs(stage.name)]

        def widened(*unused: Any) -> Any:
            return (Factor(rank=0) if method == "diagonal" else Factor()).at(theta, unit)

        unit = starting_sd(model.init_params(jax.random.key(0), data))
        stages[0] = stages[0]._replace(begin=widened)
        return whole._replace(stages=tuple(stages), judge=lambda *unused: UNJUDGED)
    start = Start(theta, starting_sd(model.init_params(jax.random.key(0), data)))
    rule = PUBLISHED["ng-hvi"] if method == "NG-HVI" else NaturalGradient(fisher="exact")
    latents = "sample" if method == "NG-HVI" else "integrate"
    chosen = Settings(steps=gradients, start=start, latents=latents)
    found = published_recipe(rule, chosen, theta, integrable=True)
    return found._replace(judge=lambda *unused: UNJUDGED)


METHODS = ("diagonal", "Adam", "NG-HVI", "NG-HVI, exact")


class Begun(NamedTuple):
    """A model, its data and the climb that all methods begin at."""

    problem: Problem
    estimator: Any
    drawn: Any
    """The same estimator with rows as methods need them that draw the effects."""
    theta: Any
    seconds: float


def begin(problem: Problem, seed: int) -> Begun:
    """Climb from one random start."""
    train = problem.train.drop(columns="y"), problem.train["y"].to_numpy()
    settings: dict[str, Any] = {"hidden": problem.hidden, "steps": 1, "n_starts": 1}
    estimator = nghvi.MixedRegressor("group", skip=True, **settings).fit(*train)
    drawn = nghvi.MixedRegressor("group", skip=True, latents="sample", **settings).fit(*train)
    model, data = estimator.posterior_.model, estimator.posterior_.data
    usual = deep_recipe(model, data, Integrated(), Settings(n_starts=1, steps=STEPS))
    stages = tuple(stage for stage in usual.stages if climbs(stage.name))
    clock = Clock()
    climb = usual._replace(stages=stages, judge=lambda *unused: UNJUDGED)
    climbed = run(climb, jax.random.key(seed), model, data, clock)
    seconds = clock.seconds([stage.name for stage in stages])
    return Begun(problem, estimator, drawn, climbed.q.centre, seconds)


def measured(begun: Begun, method: str, gradients: int, seed: int) -> dict:
    """One run: its ELBO, the log score of held-out rows and CPU seconds."""
    posterior = begun.estimator.posterior_
    fitted = begun.drawn.posterior_ if method == "NG-HVI" else posterior
    recipe, clock = recipe_of(method, fitted.model, fitted.data, gradients, begun.theta), Clock()
    done: Run = run(recipe, jax.random.key(seed), fitted.model, fitted.data, clock)
    names = list(dict.fromkeys(stage.name for stage in recipe.stages))
    found = finish(jax.random.key(seed), posterior.model, posterior.data, done, correct=False)
    scored = copy.copy(begun.estimator)
    scored.posterior_ = posterior._replace(inference=found)
    test = begun.problem.test
    with warnings.catch_warnings():  # groups are new on purpose
        warnings.simplefilter("ignore")
        score = scored.log_densities(test.drop(columns="y"), test["y"].to_numpy(), draws=300)
    return {
        "elbo": found.elbo,
        "log_score": float(np.mean(score)),
        "cpu seconds": clock.seconds(names),
        "steps": done.steps,
        "climb seconds": begun.seconds,
    }


def picture(rows: list[dict], path: pathlib.Path) -> None:
    """What is missing to the best of a data set, in ELBO and log score; a row per problem."""
    import matplotlib.pyplot as plt

    table = pd.DataFrame(rows)
    runs = table.groupby(["problem", "seed"])["elbo"].transform("size")
    table = table[runs == len(METHODS) * len(GRADIENTS)].copy()
    for name in ("elbo", "log_score"):
        best = table.groupby(["problem", "seed"])[name].transform("max")
        table[name] = best - table[name]
    table["elbo"] = table["elbo"].clip(lower=1)
    names = [name for name in PROBLEMS if name in set(table["problem"])]
    columns = (("gradients", "elbo"), ("cpu seconds", "elbo"), ("gradients", "log_score"))
    labels = {"elbo": "nats below the best ELBO", "log_score": "log score below the best"}
    figure, axes = plt.subplots(len(names), 3, figsize=(10, 2.5 * len(names)), squeeze=False)
    for name, line in zip(names, axes, strict=True):
        here = table[table["problem"] == name]
        for axis, (x, y) in zip(line, columns, strict=True):
            for colour, method in enumerate(METHODS):
                own = here[here["method"] == method]
                for _, each in own.groupby("seed"):
                    axis.plot(each[x], each[y], color=f"C{colour}", alpha=0.35, lw=0.8)
                middle = own.groupby("gradients", as_index=False)[
                    ["cpu seconds", "elbo", "log_score"]
                ].mean()
                axis.plot(middle[x], middle[y], "o-", color=f"C{colour}", ms=3.5, label=method)
            axis.set(xscale="log", xlabel=x, ylabel=labels[y])
            if y == "elbo":
                axis.set_yscale("log")
            axis.invert_yaxis()
            if x == "gradients":
                axis.set_xticks(GRADIENTS, map(str, GRADIENTS))
            else:
                axis.xaxis.set_major_formatter("{x:g}")
            axis.xaxis.set_minor_formatter("")
        sets = here["seed"].nunique()
        title = f"{name}, {sets} data sets" if sets > 1 else name
        line[0].set_title(title, loc="left", fontsize=9)
    axes[0, 0].legend(frameon=False, fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> int:
    """Run what is missing, and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    chosen = parser.parse_args()
    rows = []
    if chosen.out.exists():
        rows = [json.loads(text) for text in chosen.out.read_text().splitlines()]
    known = ("problem", "seed", "method", "gradients")
    done = {tuple(row[name] for name in known) for row in rows}
    for name in chosen.problems.split(","):
        for seed in range(1, chosen.seeds + 1):
            wanted = [(name, seed, m, g) for m in METHODS for g in GRADIENTS]
            wanted = [each for each in wanted if each not in done]
            if not wanted:
                continue
            begun = begin(PROBLEMS[name](seed), seed)
            for each in wanted:
                row = dict(zip(known, each, strict=True))
                row |= measured(begun, each[2], each[3], seed)
                rows.append(row)
                print(row, flush=True)
                with chosen.out.open("a") as file:
                    file.write(json.dumps(row | {"about": about()}) + "\n")
    picture(rows, PICTURE)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
