"""The methods under comparison: one estimator, of which one argument changes."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

import nghvi
from nghvi.data import Rows
from nghvi.paper.studies.problems import GROUP, Part, Problem
from nghvi.paper.studies.store import Row
from nghvi.priors import InverseGamma, Priors

OURS = "nghvi"
TRACE_POINTS = 200


def settings(method: str, steps: int) -> dict[str, Any]:
    """Estimator arguments of a method; ``nghvi`` is the default and chooses its own steps."""
    return {} if method == OURS else {"method": method, "steps": steps}


def regressor(seed: int, **chosen: Any) -> nghvi.MixedRegressor:
    """The paper's parametrisation: raw data, its priors."""
    usual = {"group": GROUP, "standardize": False, "priors": Priors.paper(), "skip": False}
    return nghvi.MixedRegressor(random_state=seed, **{**usual, **chosen})


def linear(seed: int, **chosen: Any) -> nghvi.MixedRegressor:
    """Example 1's model: a random intercept with inverse gamma priors."""
    return regressor(seed, priors=Priors(noise=InverseGamma(), effects=InverseGamma()), **chosen)


def with_intercept(part: Part) -> np.ndarray:
    """A part's columns, intercept first."""
    x = part.inputs.drop(columns=GROUP).to_numpy()
    return np.column_stack([np.ones(len(x)), x])


def rows_of(part: Part) -> Rows:
    """A part as the library's own models read it, with an intercept."""
    codes = part.inputs[GROUP].to_numpy()
    return Rows.from_arrays(with_intercept(part), part.y, codes, codes.max() + 1)


def fit(estimator: Any, part: Part, validation: Part | None = None) -> Row:
    """Fit, and what every row says about it."""
    estimator.fit(part.inputs, part.y, validation=validation)
    steps = max(int(estimator.n_iter_), 1)
    elbo = estimator.trace_["elbo"].to_numpy()
    every = max(1, -(-len(elbo) // TRACE_POINTS))
    return {
        "elbo": float(estimator.elbo_),
        "elbo_se": float(estimator.elbo_se_),
        "steps": steps,
        "seconds": estimator.seconds_,
        "verdict": estimator.verdict_,
        "trace_every": every,
        "trace": [round(float(v), 2) for v in elbo[::every]],
    }


def step_seconds(rows: Iterable[Mapping[Any, Any]]) -> float:
    """The time of a step: the median over runs, most of which others did not disturb."""
    return float(np.median([row["seconds"] / max(row["steps"], 1) for row in rows]))


def regression_scores(estimator: Any, problem: Problem) -> Row:
    """R2 on training and test rows, log score and coverage on test rows."""
    train, test = problem.train, problem.test
    lower, upper = estimator.predict_interval(test.inputs, level=0.9)
    return {
        "r2_train": nghvi.scores.r2(train.y, estimator.predict(train.inputs)),
        "r2_test": nghvi.scores.r2(test.y, estimator.predict(test.inputs)),
        "log_score": estimator.log_score(test.inputs, test.y),
        "coverage": nghvi.scores.coverage(test.y, lower, upper),
    }


def classification_scores(probability: Any, part: Part, name: str) -> Row:
    """PCE and F1 of one part."""
    return {
        f"pce_{name}": nghvi.scores.pce(part.y, probability),
        f"f1_{name}": nghvi.scores.f1(part.y, probability),
    }
