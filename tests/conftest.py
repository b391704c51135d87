"""Shared small problems; every fit in the suite is tiny."""

import functools
import gc
import os

# Workers, processes that tests start, and later runs share compiled programs, but not with the
# user: a run that follows a change compiles only what the change touched.
if "NGHVI_CACHE" not in os.environ:
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    os.environ["NGHVI_CACHE"] = os.path.join(caches, "nghvi-tests")
os.environ.setdefault("NGHVI_CACHE_MB", "3000")

# Each worker gets a core of its own, before JAX starts its threads: two thread pools on the same
# cores spend their time waiting for each other.
if "PYTEST_XDIST_WORKER" in os.environ and hasattr(os, "sched_setaffinity"):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["PYTEST_XDIST_WORKER"][2:]) % len(cores)]})

import jax
import matplotlib
import numpy as np
import pandas as pd
import pytest

import nghvi
from nghvi import _compiled, _programs
from nghvi.cli.reproduce import quick_to_compile
from nghvi.recipes.importance import Pool

# Most of the time goes into compiling programs that run once. JAX has not started yet; processes
# that tests start inherit this.
os.environ.update(quick_to_compile())

matplotlib.use("Agg")

# Tracing leaves behind millions of objects that stay, all of which the collector would visit.
gc.freeze()
gc.set_threshold(100_000, 50, 1000)

_SHARED = _compiled.programs_folder
_file = _programs._file


def _untraced_file(number, kind):
    traced = kind == "traced" and _compiled.programs_folder == _SHARED
    return None if traced else _file(number, kind)


@pytest.fixture(autouse=True)
def programs_of_patched_code(request):
    """Let a test that replaces parts of the package trace its programs itself: the files by which
    other tests find theirs know nothing of replaced functions. Compiled programs are still found,
    by their own text."""
    with pytest.MonkeyPatch.context() as patch:
        if "monkeypatch" in request.fixturenames:
            patch.setattr(_programs, "_file", _untraced_file)
        yield


MOST_MEGABYTES = 1_500
"""Memory of a worker beyond which it forgets what it has traced and compiled."""


@pytest.fixture(scope="module", autouse=True)
def bounded_programs():
    """Forget programs between files when there are many, and all of them when memory is short."""
    yield
    _programs.forget_programs_if_many()
    if _megabytes() > MOST_MEGABYTES:
        _programs.forget_programs()


def _megabytes():
    if not os.path.exists("/proc/self/statm"):
        return 0
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@functools.lru_cache
def panel_frame(num_groups=30, size=8, seed=0, binary=False):
    """Rows with a random intercept and slope in groups of unequal size."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(max(size - 4, 1), size + 5, num_groups)
    group = np.repeat(np.arange(num_groups), sizes)
    x = rng.normal(size=(group.size, 2))
    effects = rng.normal(size=(num_groups, 2)) * [0.8, 0.4]
    eta = 0.5 + x @ [1.0, -0.5] + effects[group, 0] + effects[group, 1] * x[:, 0]
    y = (rng.normal(size=eta.size) < eta) * 1 if binary else eta + 0.7 * rng.normal(size=eta.size)
    return pd.DataFrame({"g": group, "a": x[:, 0], "b": x[:, 1], "y": y})


@pytest.fixture(scope="session")
def panel():
    return panel_frame()


@pytest.fixture(scope="session")
def binary_panel():
    return panel_frame(binary=True)


@pytest.fixture(scope="session")
def fitted(panel):
    """A linear mixed model with correlated intercept and slope."""
    return nghvi.MixedRegressor("g", random=["intercept", "a"]).fit(
        panel[["g", "a", "b"]], panel["y"]
    )


@pytest.fixture(scope="session")
def fitted_binary(binary_panel):
    return nghvi.MixedClassifier("g").fit(binary_panel[["g", "a", "b"]], binary_panel["y"])


@pytest.fixture
def unmoved(monkeypatch):
    """Predictions use draws of theta as they are, not moved to the mean and covariance of all."""
    monkeypatch.setattr(Pool, "matched", Pool.resample)


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture(scope="session")
def fitted_case(request, panel, binary_panel):
    """Fitted estimators with their rows, by name: linear and deep, for numbers and classes, with
    groups and without. They take few steps if the quality of the fit does not matter."""
    X, y = panel[["g", "a", "b"]], panel["y"]
    binary, labels = binary_panel[["g", "a", "b"]], np.where(binary_panel["y"] == 1, "yes", "no")
    deep = nghvi.MixedRegressor("g", hidden=(3,), steps=60, n_starts=1)
    plain = nghvi.MixedClassifier(method="sg-hvi", steps=20)

    @functools.cache
    def case(name):
        if name == "linear":
            return request.getfixturevalue("fitted"), X, y
        if name == "classes":
            return request.getfixturevalue("fitted_binary"), binary, binary_panel["y"]
        if name == "deep":
            return deep.fit(X, y), X, y
        return plain.fit(binary[["a", "b"]], labels), binary[["a", "b"]], labels

    return case
