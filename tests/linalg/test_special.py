"""The normal distribution's tails against scipy, and their derivatives against integrals.

Oracle of the derivatives: ``log Phi(x) + x^2 / 2`` is, up to a constant, the logarithm of
``int_0^inf exp(x t - t^2 / 2) dt``, so the derivatives of ``log Phi`` are the cumulants of t
under that density, less those of ``x^2 / 2``.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from nghvi._special import (
    digamma,
    erfcx,
    inverse_mills,
    log,
    log_expit,
    log_gamma,
    log_ndtr,
    log_rising,
    positive_normal,
    trigamma,
)

X = np.unique(np.concatenate([np.linspace(-50, 40, 361), [-1e-9, 1e-9, 0.0]]))
NODES, WEIGHTS = (v[:, None] for v in np.polynomial.legendre.leggauss(300))


def derivative(function, order, x=X):
    for _ in range(order):
        function = jax.grad(function)
    return np.asarray(jax.jit(jax.vmap(function))(jnp.asarray(x)))


def cumulants(x):
    """First three cumulants of the density proportional to exp(x t - t^2 / 2), t > 0."""
    low = np.maximum(0.0, x - 12)
    high = np.where(x > 0, x + 12, np.minimum(12.0, 45 / np.maximum(-x, 1e-9)))
    t = low + (high - low) * (NODES + 1) / 2
    log_weight = x * t - t**2 / 2
    weight = WEIGHTS * np.exp(log_weight - log_weight.max(axis=0))
    weight /= weight.sum(axis=0)
    mean = np.sum(weight * t, axis=0)
    return mean, *(np.sum(weight * (t - mean) ** k, axis=0) for k in (2, 3))


def test_erfcx_equals_scipy_on_the_half_line_it_serves():
    x = np.abs(X)
    np.testing.assert_allclose(derivative(erfcx, 0, x), special.erfcx(x), rtol=3e-14)


@pytest.mark.parametrize(("order", "rtol"), [(1, 5e-11), (2, 5e-9)])
def test_derivatives_of_erfcx_are_those_of_its_integral(order, rtol):
    # erfcx(x) = 2 / sqrt(pi) int_0^inf exp(-t^2 - 2 x t) dt, differentiated under the integral.
    x = np.abs(X)
    high = np.minimum(8.0, 25 / np.maximum(x, 1e-9))
    t = high * (NODES + 1) / 2
    integrand = (-2 * t) ** order * np.exp(-(t**2) - 2 * x * t)
    exact = 2 / np.sqrt(np.pi) * np.sum(WEIGHTS * integrand, axis=0) * high / 2
    np.testing.assert_allclose(derivative(erfcx, order, x), exact, rtol=rtol)


def test_the_logarithm_is_numpys_over_all_magnitudes():
    x = np.exp(np.linspace(-690, 700, 4001))
    near = 1 + np.concatenate([-np.logspace(-15, -0.4, 200), np.logspace(-15, 1, 200)])
    for values in (x, near):
        found = derivative(log, 0, values)
        np.testing.assert_allclose(found, np.log(values), rtol=2e-15, atol=2e-16)
    np.testing.assert_allclose(derivative(log, 1, near), 1 / near, rtol=1e-15)


def test_no_logarithm_turns_what_is_no_number_into_one():
    lost = jnp.array([np.nan, np.inf])
    assert not np.isfinite(log(lost)).any()
    assert np.isnan(log_ndtr(lost)[0])
    assert np.isnan(log_expit(lost)[0])


def test_log_expit_and_its_derivatives_equal_scipy():
    x = np.concatenate([X, [-700.0, 700.0]])
    np.testing.assert_allclose(derivative(log_expit, 0, x), special.log_expit(x), rtol=3e-15)
    np.testing.assert_allclose(derivative(log_expit, 1, x), special.expit(-x), rtol=1e-14)
    curvature = -special.expit(x) * special.expit(-x)
    np.testing.assert_allclose(derivative(log_expit, 2, x), curvature, rtol=1e-13, atol=2e-16)


def test_log_ndtr_and_inverse_mills_equal_scipy():
    np.testing.assert_allclose(derivative(log_ndtr, 0), special.log_ndtr(X), rtol=5e-14, atol=5e-16)
    exact = np.exp(stats.norm.logpdf(X) - special.log_ndtr(X))
    np.testing.assert_allclose(derivative(inverse_mills, 0), exact, rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(derivative(log_ndtr, 1), exact, rtol=1e-12, atol=1e-300)


def test_second_derivative_of_log_ndtr_is_the_variance_less_one():
    exact = cumulants(X)[1] - 1
    np.testing.assert_allclose(derivative(log_ndtr, 2), exact, rtol=1e-11, atol=1e-10)
    np.testing.assert_allclose(derivative(inverse_mills, 1), exact, rtol=1e-11, atol=1e-10)
    assert np.all(np.abs(derivative(inverse_mills, 1) + 0.5) <= 0.5 + 1e-10)


def test_third_derivative_of_log_ndtr_is_the_third_cumulant():
    np.testing.assert_allclose(derivative(inverse_mills, 2), cumulants(X)[2], rtol=1e-8, atol=1e-8)


def test_cumulants_of_the_oracle_give_the_first_derivative_as_well():
    exact = np.exp(stats.norm.logpdf(X) - special.log_ndtr(X))
    np.testing.assert_allclose(cumulants(X)[0] - X, exact, rtol=1e-11, atol=1e-12)


ETA = [-200.0, -40.0, -12.0, 0.0, 8.0, 40.0]
DRAWS = 4000


def test_positive_normal_is_finite_positive_and_has_the_truncated_distribution():
    """False alarm rate: six Kolmogorov-Smirnov tests at level 1e-4, so 6e-4 with a new seed."""
    eta = jnp.broadcast_to(jnp.asarray(ETA)[:, None], (len(ETA), DRAWS))
    draws = np.asarray(jax.jit(positive_normal)(jax.random.key(3), eta))
    assert np.all(np.isfinite(draws))
    assert np.all(draws > 0)
    for centre, sample in zip(ETA, draws, strict=True):
        # P(Y > y) = Phi(eta - y) / Phi(eta), in logarithms.
        survival = np.exp(special.log_ndtr(centre - sample) - special.log_ndtr(centre))
        assert stats.kstest(survival, "uniform").pvalue > 1e-4, centre


def test_positive_normal_stays_finite_far_beyond_any_real_predictor():
    eta = jnp.asarray([-1e8, -1e5, -1e3, 1e3, 1e5, 1e8])
    draws = np.asarray(jax.jit(positive_normal)(jax.random.key(0), eta))
    assert np.all(np.isfinite(draws))
    assert np.all(draws >= 0)


def test_a_function_of_the_logarithm_has_a_second_derivative_at_zero():
    def half(x):
        return jnp.exp(log_ndtr(x)) ** 0.5

    found = jax.grad(jax.grad(half))(0.0)
    np.testing.assert_allclose(found, -0.25 * 0.5**-1.5 / (2 * np.pi), rtol=1e-12)


def test_log_gamma_and_its_derivatives_are_scipys():
    x = jnp.asarray(np.geomspace(1e-12, 1e9, 4001))
    for ours, known in (
        (log_gamma, special.gammaln(x)),
        (digamma, special.digamma(x)),
        (trigamma, special.polygamma(1, x)),
    ):
        np.testing.assert_allclose(ours(x), known, rtol=2e-14, atol=1e-13)
    np.testing.assert_array_equal(jax.vmap(jax.grad(log_gamma))(x), digamma(x))
    np.testing.assert_array_equal(jax.vmap(jax.grad(digamma))(x), trigamma(x))


@pytest.mark.parametrize("size", [1e-9, 0.3, 99.0, 101.0, 1e6, 1e12])
def test_rising_factorials_in_units_of_their_size_are_products(size):
    y = np.array([0.0, 1.0, 7.0, 300.0])
    known = [np.sum(np.log1p(np.arange(n) / size)) for n in y]
    np.testing.assert_allclose(log_rising(jnp.asarray(y), size), known, rtol=1e-11, atol=1e-11)
