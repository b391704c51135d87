"""Settings: every one with values of the wrong kind or size, and odd ones that are allowed."""

import itertools
from typing import Any

import numpy as np

import nghvi
from benchmarks.fuzz.formulas import frame
from benchmarks.fuzz.judge import ANY, FIT, REFUSE, Case, Checked, fit_checked
from nghvi.priors import HalfT, InverseGamma, Priors

FEW = {"hidden": (2,), "steps": 20, "n_starts": 1}
"""A network that is quick to fit."""


def _each(name: str, expects: str, *values: Any, **others: Any) -> list[tuple[dict[str, Any], str]]:
    """One setting with every one of these values."""
    return [({**others, name: value}, expects) for value in values]


SETTINGS: list[tuple[dict[str, Any], str]] = [
    *_each("random", REFUSE, 3, None, [], ["q"], "slopes", {"x": 1}, [["x"]], 1.5),
    *_each("random", FIT, ["x"], ("intercept", "x"), np.array(["x"]), "all"),
    *_each("random_state", REFUSE, "a", 1.5, [1], -1, 2**70, {}, True),
    *_each("random_state", FIT, 7, np.int64(7), np.random.RandomState(1)),
    ({"random_state": np.random.default_rng(1)}, FIT),
    *_each("hidden", REFUSE, 4, "ab", (10**6,), (0,), (-1,), (2.5,), ("a",), {2: 2}),
    *_each("hidden", ANY, [2], np.array([2]), (np.int32(2),), **FEW),
    *_each("steps", REFUSE, 10**18, 0, -1, 2.5, "many", [3], True, **FEW),
    *_each("n_starts", REFUSE, 0, -3, 1.5, "some", [1], **FEW),
    *_each("activation", REFUSE, "gelu", 3, None, ["relu"], **FEW),
    *_each("response", REFUSE, "poisson", 3, ["gaussian"], None, "probit"),
    *_each("covariance", REFUSE, "banded", 3, ["full"], None),
    *_each("priors", REFUSE, {"coef_sd": 1}, "flat", 3, HalfT()),
    ({"priors": Priors(coef_sd=1e-6)}, ANY),
    ({"priors": Priors(effects=InverseGamma(1e-3, 1e-3))}, ANY),
    ({"priors": Priors(noise=HalfT(3.0, 1e-8))}, ANY),
    *_each("rank", REFUSE, -2, 1.5, "some", [1], True),
    *_each("rank", ANY, 0, 1, 10**6, "full"),
    *_each("fit_intercept", ANY, "no", 0, None),
    *_each("standardize", ANY, False, 0, "no"),
    *_each("method", REFUSE, "fast", 3, None, ["auto"], "least-squares"),
    *_each("latents", REFUSE, "guess", 3, ["sample"]),
    *_each("batch_groups", REFUSE, 0, -1, 1.5, "some", [2]),
    *_each("batch_groups", ANY, 1, 10**6, **FEW),
    *_each("devices", REFUSE, 0, -1, "some", 1.5, 10**6, [1]),
    *_each("trunk", REFUSE, 3, "network", (1, 2), lambda x: x),
    *_each("group", REFUSE, "school", 99, ["g"], 1.5),
    *_each("formula", REFUSE, 3, "", "y", ["y ~ x"]),
    *(({name: 1}, REFUSE) for name in ("family", "REML", "standardise", "seed", "sample_weight")),
    *_each("verbose", ANY, "yes", 2),
    *_each("missing", REFUSE, "ignore", 3, None, ["drop"]),
    *_each("missing", FIT, "drop"),
    *_each("importance", ANY, "no", None),
]
CALLS: list[tuple[str, dict[str, Any], str]] = [
    *(("predict", {"seed": v}, REFUSE) for v in (-1, "a", 1.5, 2**70)),
    *(("predict", {"draws": v}, REFUSE) for v in (0, -1, 1.5, 10**15, "many")),
    *(("predict", {"which": v}, REFUSE) for v in ("best", 3, None, ["known"])),
    *(("predict_interval", {"level": v}, REFUSE) for v in (0, 1, 90, "wide", None)),
    *(("summary", {"level": v}, REFUSE) for v in (0, 1, 95, "wide")),
    *(("posterior_draws", {"draws": v}, REFUSE) for v in (0, "a", 10**15)),
    *(("posterior_draws", {"seed": v}, REFUSE) for v in (-1, "a")),
]


def cases(number: int, seed: int) -> list[Case]:
    """Every setting and call once, then pairs of settings."""
    rng = np.random.default_rng([seed, 4])
    made = [_of_settings(i, *each) for i, each in enumerate(SETTINGS)]
    made += [_of_call(len(made) + i, *each) for i, each in enumerate(CALLS)]
    for i in itertools.count(len(made)):
        if i >= number:
            break
        first, second = rng.choice(len(SETTINGS), 2, replace=False)
        made.append(_of_settings(i, SETTINGS[first][0] | SETTINGS[second][0], ANY))
    if len(made) > number:  # as many of all kinds as are asked for
        kept = np.sort(rng.choice(len(made), number, replace=False))
        made = [made[i] for i in kept]
    return made


def _of_settings(number: int, settings: dict[str, Any], expects: str) -> Case:
    def run() -> Checked:
        data = frame()[["g", "x", "z", "y"]]
        inputs = data[["g", "x", "z"]]
        model = nghvi.MixedRegressor(**{"group": "g", **settings}).fit(inputs, data["y"])
        return fit_checked(model, inputs)

    return Case(f"setting-{number}", run, expects, repr(settings)[:120])


def _of_call(number: int, method: str, arguments: dict[str, Any], expects: str) -> Case:
    def run() -> Checked:
        data = frame()[["g", "x", "z", "y"]]
        inputs = data[["g", "x", "z"]]
        model = nghvi.MixedRegressor("g").fit(inputs, data["y"])
        rows = (inputs,) if method.startswith("predict") else ()
        getattr(model, method)(*rows, **arguments)
        return Checked({}, [])

    return Case(f"setting-{number}", run, expects, f"{method}({arguments!r})"[:120])
