"""Response distributions: one contract, run over the registry."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

from nghvi._core.response import ResponseError
from nghvi.priors import Priors
from nghvi.responses import RESPONSES as AVAILABLE
from tests.registry import RESPONSES

responses = pytest.mark.parametrize("name", RESPONSES)
ETA = np.array([-2.5, -0.3, 0.0, 1.1, 3.0])
DRAWS = 20_000
MOST = 1000
"""Counts beyond are taken for impossible at these predictors."""


@functools.cache
def density(name):
    """Points y of the support, the weight of each in an integral, and log p(y | eta), row by y."""
    case, t = RESPONSES[name], np.linspace(-40, 40, 16_001)
    support = case.response.support
    if support.discrete:
        y = np.arange(support.low, min(support.high, MOST) + 1)
        weight = np.ones(y.size)
    elif np.isinf(support.low):
        y, weight = t, np.full(t.size, 0.005)
    elif np.isinf(support.high):
        y, weight = np.exp(t), 0.005 * np.exp(t)
    else:
        y, weight = expit(t), 0.005 * expit(t) * expit(-t)
    inside = support.holds(y)  # but for points that rounding has put at an end
    y, weight = y[inside], weight[inside]
    log_prob = jax.jit(
        lambda y, eta: case.response.log_prob(y, eta, jnp.asarray(case.dispersion, float))
    )
    log_prob = np.asarray(log_prob(*np.broadcast_arrays(y[:, None], ETA)))
    return y, weight, log_prob


@functools.cache
def sample(name):
    case = RESPONSES[name]
    eta = jnp.broadcast_to(ETA, (DRAWS, ETA.size))
    return np.asarray(
        case.response.sample(jax.random.key(5), eta, jnp.asarray(case.dispersion, float))
    )


def mean(name):
    case = RESPONSES[name]
    dispersion = jnp.asarray(case.dispersion, float)
    return np.asarray(case.response.mean(jnp.asarray(ETA), dispersion))


def test_every_response_of_the_library_is_in_the_registry():
    assert {case.response.name for case in RESPONSES.values()} == set(AVAILABLE)
    for case in RESPONSES.values():
        assert AVAILABLE[case.response.name] is type(case.response)


@responses
def test_the_density_integrates_to_one(name):
    _, weight, log_prob = density(name)
    np.testing.assert_allclose(weight @ np.exp(log_prob), 1, rtol=1e-10)


@responses
def test_the_mean_is_that_of_the_density(name):
    y, weight, log_prob = density(name)
    np.testing.assert_allclose((weight * y) @ np.exp(log_prob), mean(name), rtol=1e-9, atol=1e-10)


@responses
def test_the_cdf_is_that_of_the_density(name):
    case, (y, weight, log_prob) = RESPONSES[name], density(name)
    mass = np.cumsum(weight[:, None] * np.exp(log_prob), axis=0)
    if not case.response.support.discrete:  # a point stands for its cell, half of it to come
        mass -= 0.5 * weight[:, None] * np.exp(log_prob)
    known = (jnp.asarray(ETA), jnp.zeros(ETA.size), jnp.asarray(case.dispersion, float))
    np.testing.assert_allclose(case.response.cdf(y[:, None], *known), mass, atol=1e-5)
    below = np.vstack([np.zeros(ETA.size), mass[:-1]]) if case.response.support.discrete else mass
    np.testing.assert_allclose(case.response.below(y[:, None], *known), below, atol=1e-5)


@responses
def test_moments_are_those_of_the_density(name):
    case, (y, weight, log_prob) = RESPONSES[name], density(name)
    known = (jnp.asarray(ETA), jnp.zeros(ETA.size), jnp.asarray(case.dispersion, float))
    centre, variance = case.response.moments(*known)
    np.testing.assert_allclose(centre, mean(name), rtol=1e-12)
    spread = weight @ ((y[:, None] - mean(name)) ** 2 * np.exp(log_prob))
    np.testing.assert_allclose(variance, spread, rtol=1e-6)


@responses
def test_samples_have_the_mean_and_variance_of_the_density(name):
    """Ten comparisons at 4.5 standard errors: false alarm rate 7e-5 per response."""
    y, weight, log_prob = density(name)
    deviation = y[:, None] - mean(name)
    second, fourth = (weight @ (deviation**k * np.exp(log_prob)) for k in (2, 4))
    draws = sample(name) - mean(name)
    assert np.all(np.abs(draws.mean(axis=0)) < 4.5 * np.sqrt(second / DRAWS))
    error = np.abs(np.mean(draws**2, axis=0) - second)
    spread = np.maximum(fourth - second**2, 0)  # of a fair coin it is 0 but for rounding
    assert np.all(error < 4.5 * np.sqrt(spread / DRAWS) + 1e-12)


@responses
def test_samples_lie_in_the_support(name):
    assert RESPONSES[name].response.support.holds(sample(name)).all()


@responses
def test_steps_in_the_linear_predictor_lead_uphill(name):
    """What the Newton steps and the proposals of the effects rely on."""
    case, dispersion = RESPONSES[name], jnp.asarray(RESPONSES[name].dispersion, float)
    y = density(name)[0]
    y = jnp.asarray(y[:: max(1, len(y) // 20)])
    y, eta = (a.ravel() for a in jnp.meshgrid(y, jnp.linspace(-30, 30, 25)))

    @jax.jit
    def compute(y, eta):
        def log_prob(eta):
            return case.response.log_prob(y, eta, dispersion)

        slope = jax.grad(lambda eta: jnp.sum(log_prob(eta)))(eta)
        first, second = case.response.slopes(y, eta, dispersion)
        step = jnp.clip(first / jnp.maximum(-second, 1e-300), -50, 50)
        after = log_prob(eta + step)
        if not case.full_steps:  # a step that does not gain is halved
            halved = [log_prob(eta + step / 2**k) for k in range(1, 8)]
            after = jnp.maximum(after, jnp.max(jnp.stack(halved), axis=0))
        return slope, first, second, log_prob(eta), after

    slope, first, second, before, after = (np.asarray(a) for a in compute(y, eta))
    np.testing.assert_allclose(first, slope, rtol=1e-9, atol=1e-300)
    assert np.all(second <= 0)
    assert np.all(after >= before - 1e-9)


@responses
def test_slopes_are_those_of_autodiff(name):
    case, dispersion = RESPONSES[name], jnp.asarray(RESPONSES[name].dispersion, float)
    y = density(name)[0]
    y, eta = (a.ravel() for a in jnp.meshgrid(y[:: max(1, len(y) // 10)], ETA))

    @jax.jit
    def compute(eta):
        one = jnp.ones_like(eta)

        def slope(eta):
            return jax.jvp(lambda e: case.response.log_prob(y, e, dispersion), (eta,), (one,))[1]

        return jax.jvp(slope, (eta,), (one,))

    first, second = compute(eta)
    found = case.response.slopes(y, eta, dispersion)
    np.testing.assert_allclose(found[0], first, rtol=1e-9, atol=1e-300)
    curvature = case.response.curvature(y, eta, dispersion)
    np.testing.assert_allclose(curvature, -second, rtol=1e-6, atol=1e-12)
    if case.response.log_concave:
        np.testing.assert_allclose(found[1], second, rtol=1e-6, atol=1e-12)


@responses
def test_dispersion_has_a_start_a_prior_and_names(name):
    case, response = RESPONSES[name], RESPONSES[name].response
    assert len(case.dispersion) == response.num_dispersion == len(response.dispersion_names)
    start = response.start(jnp.var(jnp.asarray(sample(name)[:50, 2])))
    assert start.shape == (response.num_dispersion,)
    assert np.all(np.isfinite(start))
    prior = response.log_prior(start, Priors())
    assert prior.shape == ()
    assert np.isfinite(prior)


@responses
def test_one_parameter_of_its_own_has_a_proper_prior_with_draws(name):
    response = RESPONSES[name].response
    if response.num_dispersion != 1:
        return
    grid = np.linspace(-60, 60, 24_001)
    density = np.exp(jax.vmap(lambda t: response.log_prior(t[None], Priors()))(jnp.asarray(grid)))
    np.testing.assert_allclose(np.trapezoid(density, grid), 1, rtol=1e-4)
    drawn = response.sample_prior(np.random.default_rng(0), 40_000, Priors())[:, 0]
    found = np.interp(np.quantile(drawn, [0.1, 0.5, 0.9]), grid, 0.005 * np.cumsum(density))
    np.testing.assert_allclose(found, [0.1, 0.5, 0.9], atol=0.01)
    assert response.stated_priors(Priors()).keys() == response.reported(drawn[:, None], 1.0).keys()


@responses
def test_check_accepts_the_support_and_names_what_lies_outside(name):
    case = RESPONSES[name]
    case.response.check(sample(name)[:50, 2])
    for accepted in case.accepted:
        case.response.check(np.asarray(accepted))


@pytest.mark.parametrize(
    ("name", "values"),
    [(name, values) for name, case in RESPONSES.items() for values in case.rejected],
    ids=repr,
)
def test_check_rejects_what_the_density_cannot_explain(name, values):
    with pytest.raises(ResponseError):
        RESPONSES[name].response.check(np.asarray(values))
