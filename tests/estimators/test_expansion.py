"""Predictions of few rows where eliminations take long: solved for, and expanded in theta."""

import jax
import numpy as np
import pandas as pd
import pytest

import nghvi
from nghvi.models import lookups
from nghvi.posterior import effects, expansion
from nghvi.posterior.mixed_posterior import params_at

FORMULA = "y ~ x + (1 + x | firm) + (1 | month)"
KNOWN_AND_NEW = pd.DataFrame(
    {
        "x": [0.0, 2.0, 1.0, 1.0, -1.0],
        "firm": [0, 5, 999, 998, 7],
        "month": [1, 888, 2, 888, 5],
    }
)

KNOWN = np.array([True, True, True, False, True])
"""Rows with a known level of a factor."""


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    firm, month = rng.integers(0, 60, 900), rng.integers(0, 40, 900)
    x = rng.standard_normal(900)
    own, shared = rng.standard_normal((60, 2)) * [1.0, 0.4], 0.7 * rng.standard_normal(40)
    y = 2 + 0.5 * x + own[firm, 0] + own[firm, 1] * x + shared[month]
    y += 0.5 * rng.standard_normal(900)
    return nghvi.mixed(FORMULA, pd.DataFrame({"y": y, "x": x, "firm": firm, "month": month}))


@pytest.fixture
def slow(monkeypatch):
    """Every elimination counts as slow, and most draws as saved."""
    monkeypatch.setattr(lookups, "LEAST_SIZE", 0)
    monkeypatch.setattr(expansion, "SAVED", 1)


def request_of(estimator):
    request = estimator.reader_.request(estimator.posterior_, KNOWN_AND_NEW, draws=200)
    return request.x, request.codes


def test_expansion_is_near_the_moments_of_every_draw(fitted, slow):
    """The moments at draws are those from all covariances, which share no code with the solves."""
    posterior, (rows, codes) = fitted.posterior_, request_of(fitted)
    model, data = posterior.model, posterior.data
    found = expansion.expanded(posterior, rows, codes, 200)
    of_rows = effects.effects_of(model)

    @jax.jit
    def both(theta):
        params = params_at(model, data, theta)
        design = model.design(model.features(params, rows))
        whole = of_rows.predictor((None, params, 0.0), design, codes, (data,))
        new = of_rows.population_at(params, design, codes, (data,))
        return *whole, new, *found(params, model, data)

    theta = posterior.inference.pool.resample(50, np.random.default_rng(1))
    mean, variance, new, about, spread = map(np.asarray, jax.lax.map(both, theta))
    sd = np.sqrt((variance - new)[:, KNOWN])
    assert np.all(np.abs(about - mean)[:, KNOWN] < 0.02 * sd)
    np.testing.assert_allclose(np.sqrt(spread)[:, KNOWN], sd, rtol=0.02)
    np.testing.assert_allclose(about[:, ~KNOWN], 0, atol=1e-10)
    np.testing.assert_allclose(spread[:, ~KNOWN], 0, atol=1e-10)


def test_predictions_are_those_without_expansion(fitted, slow, monkeypatch):
    def found():
        return (
            *fitted.predict(KNOWN_AND_NEW, return_std=True),
            *fitted.predict_interval(KNOWN_AND_NEW),
        )

    expanded = found()
    monkeypatch.setattr(lookups, "LEAST_SIZE", np.inf)
    sd = fitted.predict(KNOWN_AND_NEW, return_std=True)[1]
    for one, other in zip(expanded, found(), strict=True):
        assert np.all(np.abs(one - other) < 2e-3 * sd)


def test_nothing_is_expanded_where_it_would_not_save_time(fitted, monkeypatch):
    posterior, (x, codes) = fitted.posterior_, request_of(fitted)
    assert expansion.expanded(posterior, x, codes, 200) is None  # eliminations are fast
    monkeypatch.setattr(lookups, "LEAST_SIZE", 0)
    assert expansion.expanded(posterior, x, codes, 20) is None  # as fast as its own points
    unknown = codes + 1000
    assert expansion.expanded(posterior, x, unknown, 200) is None
    assert expansion.expanded(posterior, np.repeat(x, 20, 0), np.repeat(codes, 20, 0), 200) is None


def test_moments_that_bend_with_theta_are_not_expanded(slow):
    """With three months their sd is hardly known, and effects bend with it."""
    rng = np.random.default_rng(1)
    firm, month = rng.integers(0, 8, 24), rng.integers(0, 3, 24)
    y = 0.3 * rng.standard_normal(8)[firm] + 0.2 * rng.standard_normal(3)[month]
    table = pd.DataFrame({"y": y + rng.standard_normal(24), "firm": firm, "month": month})
    model = nghvi.mixed("y ~ 1 + (1 | firm) + (1 | month)", table)
    request = model.reader_.request(model.posterior_, table.head(), draws=200)
    assert expansion.expanded(model.posterior_, request.x, request.codes, 200) is None
