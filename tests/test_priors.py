"""Priors against scipy, against autodiff Jacobians, and against their hierarchical definition."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from nghvi._linalg.lowrank import packed_size, unpack_log_cholesky
from nghvi.priors import (
    HalfT,
    HuangWand,
    InverseGamma,
    PriorError,
    Priors,
    WishartPrecision,
    normal_log_density,
)
from tests.registry import EFFECTS_PRIORS, SCALAR_PRIORS

effects_priors = pytest.mark.parametrize("prior", EFFECTS_PRIORS.values(), ids=EFFECTS_PRIORS)
scalar_priors = pytest.mark.parametrize("prior", SCALAR_PRIORS.values(), ids=SCALAR_PRIORS)

# Equally spaced points integrate these densities to many digits; all are below 1e-20 outside.
GRID = np.arange(-150.0, 150.0, 0.05)


def on_grid(prior):
    """Log density of one free parameter at every point of the grid."""
    with np.errstate(over="ignore"):
        return np.asarray(jax.jit(jax.vmap(lambda t: prior.log_density(t[None], 1)))(GRID))


@scalar_priors
def test_a_scalar_prior_integrates_to_one_in_the_log_variance(prior):
    np.testing.assert_allclose(0.05 * np.exp(on_grid(prior)).sum(), 1, rtol=1e-9)


@effects_priors
def test_an_effects_prior_of_one_variance_integrates_to_one(prior):
    np.testing.assert_allclose(0.05 * np.exp(on_grid(prior)).sum(), 1, rtol=1e-9)


def test_scalar_priors_are_those_of_scipy_times_the_jacobian():
    t = np.linspace(-4, 6, 11)
    for a, b in ((1.01, 1.01), (7.0, 0.3)):
        ours = [InverseGamma(a, b).log_density(jnp.asarray([x])) for x in t]
        np.testing.assert_allclose(ours, stats.invgamma(a, scale=b).logpdf(np.exp(t)) + t)
    sd = np.exp(t / 2)
    for df, scale in ((2.0, 2.5), (1.0, 0.2)):
        ours = [HalfT(df, scale).log_density(jnp.asarray([x])) for x in t]
        half_t = np.log(2) + stats.t(df, scale=scale).logpdf(sd)
        np.testing.assert_allclose(ours, half_t + np.log(sd / 2), rtol=1e-10)
    values = jnp.asarray(t)
    np.testing.assert_allclose(
        normal_log_density(values, 1.7), stats.norm(0, 1.7).logpdf(t).sum(), rtol=1e-12
    )


@pytest.mark.parametrize("name", ["inverse-gamma", "half-t"])
def test_a_diagonal_effects_prior_is_a_product_of_scalar_ones(name):
    prior, free = EFFECTS_PRIORS[name], jnp.array([0.3, -1.2, 2.0])
    each = sum(prior.log_density(free[i : i + 1], 1) for i in range(3))
    np.testing.assert_allclose(prior.log_density(free, 3), each, rtol=1e-13)


# coordinates


@effects_priors
@pytest.mark.parametrize("r", [1, 3])
def test_start_gives_its_variances_back_through_the_precision_factor(prior, r):
    variances = np.array([0.04, 1.0, 25.0])[:r]
    free = prior.start(jnp.asarray(variances))
    assert free.shape == (prior.size(r),)
    lower = np.asarray(prior.precision_factor(free, r))
    np.testing.assert_allclose(np.linalg.inv(lower @ lower.T), np.diag(variances), atol=1e-14)


@effects_priors
def test_any_free_parameters_give_a_lower_triangle_with_positive_diagonal(prior):
    free = jnp.asarray(np.random.default_rng(0).normal(size=prior.size(3)))
    lower = np.asarray(prior.precision_factor(free, 3))
    np.testing.assert_array_equal(lower, np.tril(lower))
    assert np.all(np.diag(lower) > 0)
    assert np.isfinite(prior.log_density(free, 3))


def log_jacobian(function, free):
    """log |det| of the derivative of the lower triangle of a symmetric matrix, by autodiff."""
    rows, columns = np.tril_indices(function(free).shape[0])
    jacobian = jax.jit(jax.jacobian(lambda x: function(x)[rows, columns]))(free)
    return np.linalg.slogdet(np.asarray(jacobian))[1]


def free_parameters(r, seed=1):
    return jnp.asarray(0.7 * np.random.default_rng(seed).normal(size=packed_size(r, r)))


@pytest.mark.parametrize("r", [1, 2, 3])
@pytest.mark.parametrize("extra", [None, 0.5, 6.2])
def test_wishart_precision_is_that_of_scipy_times_the_jacobian(r, extra):
    df = None if extra is None else r - 1 + extra
    free = free_parameters(r)

    def precision(free):
        return unpack_log_cholesky(free, r) @ unpack_log_cholesky(free, r).T

    omega_inverse = np.asarray(precision(free))
    jacobian = log_jacobian(precision, free)
    if df is None or df >= r:
        exact = stats.wishart(df or r + 1, 0.3 * np.eye(r)).logpdf(omega_inverse)
    else:  # scipy asks for df >= r, the density exists above r - 1: correct the one at df = r + 1
        exact = wishart_by_change_of_df(omega_inverse, df, 0.3)
    ours = WishartPrecision(0.3, df).log_density(free, r)
    np.testing.assert_allclose(ours, exact + jacobian, rtol=1e-10)


def wishart_by_change_of_df(matrix, df, scale):
    """From scipy's density at r + 1; the power of the determinant and the constants change."""
    r = len(matrix)
    start = stats.wishart(r + 1, scale * np.eye(r)).logpdf(matrix)
    change = 0.5 * (df - r - 1)
    gammas = sum(math.lgamma((r + 1 - j) / 2) - math.lgamma((df - j) / 2) for j in range(r))
    return start + change * np.linalg.slogdet(matrix)[1] - change * r * math.log(2 * scale) + gammas


def huang_wand_by_integration(omega, df, scale):
    """log p(Omega) with Omega | a ~ IW(df + r - 1, 2 df diag(1 / a)), a_j ~ IG(1/2, 1/scale^2)."""
    r, spacing = len(omega), 0.4
    log_a = np.arange(-9.0, 21.0, spacing)
    log_prior = stats.invgamma(0.5, scale=scale**-2).logpdf(np.exp(log_a)) + log_a
    terms = [
        stats.invwishart.logpdf(omega, df + r - 1, 2 * df * np.diag(np.exp(-log_a[list(index)])))
        + log_prior[list(index)].sum()
        for index in itertools.product(range(log_a.size), repeat=r)
    ]
    return logsumexp(terms) + r * math.log(spacing)


@pytest.mark.parametrize(("df", "scale"), [(2.0, 2.5), (4.5, 0.7)])
@pytest.mark.parametrize("r", [1, 2])
def test_huang_wand_is_its_hierarchical_definition_with_the_scales_integrated_out(r, df, scale):
    free = free_parameters(r, 2)

    def covariance(free):
        lower = unpack_log_cholesky(free, r)
        return jnp.linalg.inv(lower @ lower.T)

    exact = huang_wand_by_integration(np.asarray(covariance(free)), df, scale)
    ours = HuangWand(df, scale).log_density(free, r)
    np.testing.assert_allclose(ours, exact + log_jacobian(covariance, free), rtol=1e-7)


@pytest.mark.parametrize(("df", "scale"), [(2.0, 2.5), (1.0, 0.2)])
def test_huang_wand_of_one_effect_is_the_half_t(df, scale):
    log_variance = jnp.linspace(-6.0, 8.0, 15)[:, None]
    half_t = jax.vmap(lambda t: HalfT(df, scale).log_density(t, 1))(log_variance)
    # Its coordinate is -t / 2, so its density is twice that of t.
    huang_wand = jax.vmap(lambda t: HuangWand(df, scale).log_density(-t / 2, 1))(log_variance)
    np.testing.assert_allclose(huang_wand - math.log(2), half_t, rtol=1e-12)


# errors

BAD_VALUES = [-1.0, 0.0, 0, math.nan, math.inf, "1", [1.0]]
PARAMETERS = [
    (InverseGamma, "shape"),
    (InverseGamma, "scale"),
    (HalfT, "df"),
    (HalfT, "scale"),
    (HuangWand, "df"),
    (HuangWand, "scale"),
    (WishartPrecision, "scale"),
    (Priors, "coef_sd"),
    (Priors, "weight_sd"),
]


@pytest.mark.parametrize("value", BAD_VALUES, ids=repr)
@pytest.mark.parametrize(("prior", "parameter"), PARAMETERS)
def test_a_parameter_that_is_not_a_positive_number_is_named(prior, parameter, value):
    with pytest.raises(PriorError, match=rf"{prior.__name__}\({parameter}="):
        prior(**{parameter: value})


@pytest.mark.parametrize(("prior", "parameter"), PARAMETERS[:-1])
def test_a_required_parameter_may_not_be_none(prior, parameter):
    with pytest.raises(PriorError, match=parameter):
        prior(**{parameter: None})


@pytest.mark.parametrize("value", BAD_VALUES, ids=repr)
def test_bad_degrees_of_freedom_of_the_wishart_are_named(value):
    with pytest.raises(PriorError, match=r"WishartPrecision\(df="):
        WishartPrecision(1.0, value)


def test_degrees_of_freedom_too_few_for_the_number_of_effects_are_named():
    assert np.isfinite(WishartPrecision(1.0, 2.1).log_density(jnp.zeros(6), 3))
    with pytest.raises(PriorError, match=r"df must exceed 2"):
        WishartPrecision(1.0, 2.0).log_density(jnp.zeros(6), 3)


@pytest.mark.parametrize("field", ["noise", "effects"])
def test_a_number_is_no_prior(field):
    with pytest.raises(PriorError, match=field):
        Priors(**{field: 1.0})


def test_numpy_numbers_and_integers_are_numbers():
    ours, plain = HalfT(np.float64(2), np.int64(3)), HalfT(2, 3)
    assert ours.log_density(jnp.zeros(1)) == plain.log_density(jnp.zeros(1))
