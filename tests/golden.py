"""Nine small fits, whose numbers are kept in ``tests/files/golden.json``.

They guard moves and merges: a change that should change no number must change none of these. After
a change that should, run ``python -m tests.golden``, which rewrites the file and the saved models
beside it, and put their diff into the same commit.
"""

import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import nghvi
from tests.conftest import panel_frame

FILES = pathlib.Path(__file__).parent / "files"
NUMBERS = FILES / "golden.json"
SAVED = ("correlated slopes", "logit")
"""Fits whose models are kept as files."""
SMALL = {"num_groups": 8, "size": 8}


class Case(NamedTuple):
    """A fit, and how closely its numbers have to be met."""

    fit: Callable[[], Any]
    rtol: float
    binary: bool = False


def by_formula(formula: str, **settings: Any) -> Callable[[], Any]:
    return lambda: nghvi.mixed(
        formula, panel_frame(**SMALL, binary=settings.get("response") == "logit"), **settings
    )


def by_settings(kind: Any, binary: bool = False, **settings: Any) -> Callable[[], Any]:
    frame = panel_frame(**SMALL, binary=binary)
    return lambda: kind("g", **settings).fit(frame[["g", "a", "b"]], frame["y"])


# Newton's method ends at the same place whatever the order of its sums. The paths of noisy steps
# do not: a last bit that differs is carried on and grows from step to step.
NEWTON, PATH = 1e-6, 1e-4
CASES = {
    "random intercept": Case(by_settings(nghvi.MixedRegressor), NEWTON),
    "correlated slopes": Case(by_formula("y ~ a + b + (1 + a | g)"), NEWTON),
    "diagonal": Case(by_formula("y ~ a + b + (1 + a || g)"), NEWTON),
    "probit": Case(by_settings(nghvi.MixedClassifier, binary=True), NEWTON, binary=True),
    "logit": Case(by_formula("y ~ a + (1 | g)", response="logit"), NEWTON, binary=True),
    "student-t": Case(by_formula("y ~ a + b + (1 | g)", response="student-t"), NEWTON),
    "network": Case(by_settings(nghvi.MixedRegressor, hidden=(3,), steps=60, n_starts=1), PATH),
    "network without skip": Case(
        by_settings(nghvi.MixedRegressor, hidden=(3,), skip=False, steps=60, n_starts=1), PATH
    ),
    "ng-hvi": Case(by_settings(nghvi.MixedRegressor, method="ng-hvi", steps=30), PATH),
}


@functools.cache
def fitted(name: str) -> Any:
    return CASES[name].fit()


def predicted(model: Any, binary: bool) -> list[float]:
    """Predictions for two known groups and a new one."""
    rows = panel_frame(**SMALL, binary=binary)[["g", "a", "b"]].iloc[[0, 20, 1]]
    rows["g"] = [0, int(rows["g"].iloc[1]), 99]
    if binary:
        return model.predict_proba(rows, draws=100)[:, 1].tolist()
    mean, sd = model.predict(rows, return_std=True, draws=100)
    return [*mean.tolist(), *sd.tolist()]


def numbers(name: str) -> dict[str, Any]:
    """Return what a fit says about itself."""
    model = fitted(name)
    summary = model.summary()
    draws = model.posterior_draws(3)
    return {
        "status": model.status_,
        "elbo": model.elbo_,
        "log_evidence": model.log_evidence_,
        "summary": {row: [float(of["mean"]), float(of["sd"])] for row, of in summary.iterrows()},
        "draws": {what: np.asarray(values).ravel()[:8].tolist() for what, values in draws.items()},
        "predicted": predicted(model, CASES[name].binary),
    }


def saved(name: str) -> pathlib.Path:
    return FILES / f"{name.replace(' ', '_')}.nghvi"


if __name__ == "__main__":
    FILES.mkdir(exist_ok=True)
    NUMBERS.write_text(json.dumps({name: numbers(name) for name in CASES}, indent=1) + "\n")
    for name in SAVED:
        fitted(name).save(saved(name))
