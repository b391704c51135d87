"""Networks of other responses without coefficients: a bound, which is exact where it can be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.special import logsumexp

from nghvi.data import Rows
from nghvi.data.panel import collapse
from nghvi.models.bounded import Bounded
from nghvi.models.collapsed import Collapsed
from nghvi.models.mixed import MixedModel
from nghvi.networks import Perceptron, Skip
from nghvi.priors import HalfT, Priors
from nghvi.recipes.plan import collapsed_if_possible
from nghvi.recipes.settings import Settings
from nghvi.responses import Gaussian, Logit, Poisson
from tests.models.test_collapsed import DATA, PRIORS, RANDOM, TRUNK, parameters
from tests.oracles import by_one_program

NARROW = Skip(Perceptron(1, (1,), "tanh"), 1)
"""Features 1, x and one that is learnt, few enough for integrals over a grid."""


def counts(number=40, groups=5, seed=0, mean=1.0):
    """Rows of a few groups with small counts, the classes being whether there are any."""
    rng = np.random.default_rng(seed)
    group = np.sort(np.concatenate([np.arange(groups), rng.integers(0, groups, number - groups)]))
    x = rng.integers(0, 4, size=(number, 1)) / 2.0
    y = rng.poisson(mean * np.exp(0.5 * np.sin(2 * x[:, 0])))
    return x, y.astype(float), group


def rows(classes=False, **given):
    x, y, group = counts(**given)
    return Rows.from_arrays(x, (y > 0).astype(float) if classes else y, group, int(group.max()) + 1)


def small_model(response, random=(0,)):
    return MixedModel(NARROW, response, Priors(2.0, HalfT(2.0, 1.0), weight_sd=1.0), random)


def first(model, data, size=0.8):
    """Parameters away from the start, without coefficients."""
    params = Bounded(model).init_params(jax.random.key(2), data)
    weights = params.weights._replace(size=jnp.array([size]))
    return params._replace(weights=weights, effects=jnp.full(params.effects.size, -0.3))


@pytest.mark.parametrize("random", RANDOM)
@pytest.mark.parametrize("form", ["rows", "counted rows", "cells"])
def test_with_a_gaussian_response_the_bound_is_the_density(form, random):
    model, data = MixedModel(TRUNK, Gaussian(), PRIORS, RANDOM[random]), DATA[form]
    params = parameters(model, data)
    found = by_one_program(Bounded(model).log_marginal, params, data)
    expected = by_one_program(Collapsed(model).log_marginal, params, data)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize(("response", "classes"), [(Logit(), True), (Poisson(), False)])
def test_the_bound_lies_just_below_the_integral(response, classes):
    """Three coefficients are integrated over a grid, and the effect of the group by quadrature."""
    model, data = small_model(response), rows(classes=classes, number=25, groups=1)
    params = first(model, data)
    axis = np.linspace(-8, 8, 49)
    coef = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), axis=-1).reshape(-1, 3)

    def density(coef):
        return model.log_marginal(params._replace(coef=coef), data)

    each = jax.jit(lambda every: jax.lax.map(density, every, batch_size=1000))
    exact = logsumexp(each(jnp.asarray(coef))) + 3 * np.log(axis[1] - axis[0])
    bound = by_one_program(Bounded(model).log_marginal, params, data)
    assert exact - 0.1 < bound < exact + 1e-6


@pytest.mark.parametrize(("response", "classes"), [(Logit(), True), (Poisson(), False)])
def test_the_slope_is_that_of_the_best_bound(response, classes, monkeypatch):
    """The Gaussian is held fixed in derivatives, which is right at the best one."""
    monkeypatch.setattr("nghvi.models.bounded.CLOSE", 1e-9)
    model, data = Bounded(small_model(response)), rows(classes=classes)
    flat, unravel = ravel_pytree(first(model.model, data))
    value = jax.jit(lambda theta: model.log_marginal(unravel(theta), data))
    slope = jax.jit(jax.grad(lambda theta: model.log_marginal(unravel(theta), data)))(flat)
    step = 1e-4
    steps = step * np.eye(len(flat))
    expected = [(value(flat + s) - value(flat - s)) / (2 * step) for s in steps]
    np.testing.assert_allclose(slope, expected, rtol=2e-3, atol=2e-3)


def test_repeated_inputs_change_nothing():
    model, data = small_model(Poisson()), rows(number=60, groups=4)
    params = first(model, data)
    cells = collapse(data, sums_suffice=False)
    values = [by_one_program(Bounded(model).log_marginal, params, d) for d in (data, cells)]
    assert type(cells) is not type(data)
    np.testing.assert_allclose(values[0], values[1], rtol=1e-9)


def test_far_starts_do_not_lead_astray():
    """Large counts are far from where the search for the best Gaussian begins."""
    model, data = small_model(Poisson()), rows(mean=2000.0)
    assert np.isfinite(by_one_program(Bounded(model).log_marginal, first(model, data), data))


def test_draws_of_coefficients_have_the_moments_of_the_best_gaussian():
    """4,000 draws: six standard errors."""
    model, data = Bounded(small_model(Logit())), rows(classes=True)
    params = first(model.model, data)
    best = model._problem(params, data).best()
    covariance = np.asarray(best.inverse_root.T @ best.inverse_root)
    keys = jax.random.split(jax.random.key(3), 4000)
    draws = np.asarray(jax.jit(jax.vmap(lambda k: model.completed(k, params, data).coef))(keys))
    error = np.sqrt(np.diag(covariance) / 4000)
    assert np.all(np.abs(draws.mean(axis=0) - best.coef) < 6 * error)
    np.testing.assert_allclose(np.cov(draws.T), covariance, rtol=0.2, atol=0.02)


def test_it_serves_networks_of_log_concave_responses():
    model, data = small_model(Logit()), rows(classes=True)
    assert isinstance(collapsed_if_possible(model, data, Settings()), Bounded)
    assert collapsed_if_possible(model, data, Settings(latents="sample")) is model
