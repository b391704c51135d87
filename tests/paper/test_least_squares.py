"""The network trained by least squares, as a posterior at a point."""

import jax.numpy as jnp
import numpy as np
import pytest

import nghvi
from nghvi.data import Rows
from nghvi.models import MixedModel
from nghvi.networks import Identity, Perceptron
from nghvi.paper.methods.least_squares import least_squares
from nghvi.priors import Priors
from nghvi.recipes.verdict import Cause, Status
from nghvi.responses import Gaussian

RNG = np.random.default_rng(0)
X = np.column_stack([np.ones(80), RNG.normal(size=(80, 2))])
Y = X @ [0.3, -1.0, 0.5] + np.maximum(X[:, 1], 0) + 0.2 * RNG.normal(size=80)
WEIGHT = RNG.integers(1, 4, 80).astype(float)


def rows(x, weight=None):
    return Rows.from_arrays(x, Y, np.zeros(len(x), int), 1, weight)


def model(trunk, random=()):
    return MixedModel(trunk, Gaussian(), Priors(), random)


@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_without_hidden_layers_it_is_regression(weight):
    found = least_squares(model(Identity(3)), rows(X, weight)).draws(1)
    w = np.ones(80) if weight is None else weight
    coef, (squares,), *_ = np.linalg.lstsq(X * np.sqrt(w)[:, None], Y * np.sqrt(w))
    np.testing.assert_allclose(found.coef[0], coef, rtol=1e-6)
    np.testing.assert_allclose(jnp.exp(found.dispersion[0, 0]), squares / w.sum(), rtol=1e-6)


def test_a_network_fits_better_than_a_line():
    linear = least_squares(model(Identity(3)), rows(X))
    line = linear.draws(1)
    network = least_squares(model(Perceptron(2, (4,), "tanh")), rows(X[:, 1:]), steps=200)
    assert network.draws(1).dispersion[0, 0] < line.dispersion[0, 0]
    assert linear.verdict.status is Status.SETTLED
    assert network.verdict.status is Status.NOT_SETTLED  # after 200 evaluations


def test_repeated_inputs_count_as_often_as_they_occur():
    """Twelve inputs, more weights than that; squares of y about its means stay in the noise."""
    twelve = np.tile(X[:12], (7, 1))[:80]
    found = least_squares(model(Identity(3)), rows(twelve)).draws(1)
    coef, (squares,), *_ = np.linalg.lstsq(twelve, Y)
    np.testing.assert_allclose(found.coef[0], coef, rtol=1e-6)
    np.testing.assert_allclose(jnp.exp(found.dispersion[0, 0]), squares / 80, rtol=1e-6)
    network = least_squares(model(Perceptron(2, (8,), "tanh")), rows(twelve[:, 1:]), steps=400)
    kinds = np.arange(80) % 12
    within = Y - (np.bincount(kinds, Y) / np.bincount(kinds))[kinds]
    floor = np.log(np.mean(within**2))
    assert network.draws(1).dispersion[0, 0] == pytest.approx(floor, abs=0.01)


def test_effects_are_refused():
    with pytest.raises(ValueError, match="group=None"):
        least_squares(model(Identity(3), (0,)), rows(X))


def test_a_network_is_not_called_dead_because_its_first_rows_are_alike():
    x = np.repeat(np.arange(4.0), 1100)[:, None]
    estimator = nghvi.MixedRegressor(hidden=(4,), method="least-squares").fit(x, x[:, 0] ** 2)
    assert estimator.posterior_.inference.verdict.cause is Cause.LEAST_SQUARES
