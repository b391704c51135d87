"""Coordinates of the effects' covariance: a bijection, its Jacobian, its units, small sds."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

import nghvi
from nghvi._linalg.lowrank import packed_size
from nghvi.data import LinearStatistics, Rows
from nghvi.data.factors import CrossedRows, FactorRows
from nghvi.models import MixedModel, MixedParams, parameters
from nghvi.models.general_factors import GeneralFactors
from nghvi.networks import Identity
from nghvi.priors import HalfT, HuangWand, Priors
from nghvi.responses import Gaussian, Poisson, Probit

UNIT = jnp.array([0.02, 1.0, 30.0, 0.5])
SHAPES = [(1, False), (1, True), (3, False), (2, True), (4, True)]


def coordinates(r, correlated, seed=0):
    size = packed_size(r, r) if correlated else r
    return jnp.asarray(1.5 * np.random.default_rng(seed).standard_normal(size))


@pytest.mark.parametrize(("r", "correlated"), SHAPES)
def test_the_change_of_coordinates_goes_back_and_forth(r, correlated):
    here = coordinates(r, correlated)
    free, _ = parameters.to_free(here, UNIT[:r], correlated)
    np.testing.assert_allclose(parameters.from_free(free, UNIT[:r], correlated), here, atol=1e-9)


@pytest.mark.parametrize("log_sd", [-30.0, -5.0, 0.0, 3.0, 50.0])
def test_any_sd_has_coordinates(log_sd):
    free = jnp.array([2 * log_sd])
    there = parameters.from_free(free, jnp.ones(1), False)
    np.testing.assert_allclose(parameters.to_free(there, jnp.ones(1), False)[0], free, atol=1e-9)


@pytest.mark.parametrize(("r", "correlated"), SHAPES)
def test_the_log_jacobian_is_autodiffs(r, correlated):
    here = coordinates(r, correlated, seed=1)

    def forward(values):
        return parameters.to_free(values, UNIT[:r], correlated)[0]

    expected = np.linalg.slogdet(jax.jacobian(forward)(here))[1]
    np.testing.assert_allclose(
        parameters.to_free(here, UNIT[:r], correlated)[1], expected, rtol=1e-10
    )


def test_the_diagonal_holds_the_sds_whatever_the_correlations():
    here = coordinates(4, True)
    free, _ = parameters.to_free(here, UNIT, True)
    lower = np.asarray(HuangWand().precision_factor(free, 4))
    omega = np.linalg.inv(lower @ lower.T)
    u = np.asarray(here)[[0, 2, 5, 9]]
    np.testing.assert_allclose(
        np.sqrt(np.diag(omega)), UNIT * np.exp(u) * norm.cdf(4 * u), rtol=1e-9
    )


def grouped(groups, size, *, sds, noise, seed=0):
    """An intercept and a slope by group."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(groups), size)
    x = np.column_stack([np.ones(codes.size), rng.standard_normal(codes.size)])
    effects = np.asarray(sds) * rng.standard_normal((groups, 2))
    y = np.sum(x * effects[codes], axis=1) + noise * rng.standard_normal(codes.size)
    return x, y, codes


@pytest.mark.parametrize("intercept_sd", [0.0, 3.0])
def test_the_unit_of_a_slope_does_not_grow_with_other_effects(intercept_sd):
    x, y, codes = grouped(200, 10, sds=(intercept_sd, 0.0), noise=0.7)
    sums = LinearStatistics.from_rows(Rows.from_arrays(x, y, codes, 200), (0, 1))
    square = np.bincount(codes, x[:, 1] ** 2)
    expected = (2 / np.sum((square / 0.7**2) ** 2)) ** 0.25
    np.testing.assert_allclose(parameters.effects_units(sums, None)[1], expected, rtol=0.05)


def test_a_probits_unit_is_that_of_its_latent_variable():
    x, latent, codes = grouped(50, 20, sds=(0.0, 0.0), noise=1.0)
    rows = Rows.from_arrays(x, (latent > 0) * 1.0, codes, 50)
    information = 20 * 2 / np.pi  # of a group whose y are as often 0 as 1
    expected = (2 / (50 * information**2)) ** 0.25
    sums = LinearStatistics.from_rows(rows, (0,))
    found = parameters.effects_units(sums, Probit().noise(0.5, float(sums.variance)))
    np.testing.assert_allclose(found, [expected], rtol=0.01)


@pytest.mark.parametrize("effects", [HuangWand(), HalfT()])
def test_the_density_moves_by_the_jacobian_only(effects):
    x, y, codes = grouped(10, 6, sds=(1.0, 0.3), noise=0.5)
    data = LinearStatistics.from_rows(Rows.from_arrays(x, y, codes, 10), (0, 1))
    plain = MixedModel(Identity(2), Gaussian(), Priors(effects=effects), (0, 1))
    model = plain.suited(data)
    here = coordinates(2, effects.correlated)
    free, log_jacobian = parameters.to_free(here, model.effects_unit, effects.correlated)
    params = MixedParams((), jnp.array([0.5, -1.0]), jnp.zeros(1), here)
    moved = params._replace(effects=free, coef=model.coef(params))
    log_jacobian += jnp.linalg.slogdet(
        jax.jacobian(lambda c: model.coef(params._replace(coef=c)))(params.coef)
    )[1]
    np.testing.assert_allclose(
        model.log_marginal(params, data), plain.log_marginal(moved, data) + log_jacobian, rtol=1e-12
    )
    np.testing.assert_allclose(
        model.precision_factor(params), plain.precision_factor(moved), rtol=1e-12
    )
    drawn = model.sample_prior(np.random.default_rng(1), 5, params)
    expected = plain.sample_prior(np.random.default_rng(1), 5, moved)
    np.testing.assert_allclose(jax.vmap(model.coef)(drawn), expected.coef, rtol=1e-7)
    factor = jax.vmap(plain.precision_factor)(expected)
    np.testing.assert_allclose(jax.vmap(model.precision_factor)(drawn), factor, rtol=1e-7)


def test_an_effect_that_is_nearly_zero_leaves_the_density_its_digits():
    x, y, codes = grouped(10, 6, sds=(1.0, 0.0), noise=0.5)
    rows = Rows.from_arrays(x, y, codes, 10)

    def log_likelihood(random, variances):
        model = MixedModel(Identity(2), Gaussian(), Priors(effects=HalfT()), random)
        params = MixedParams((), jnp.zeros(2), jnp.zeros(1), jnp.log(jnp.array(variances)))
        data = LinearStatistics.from_rows(rows, random)
        found = model.log_marginal(params, data) - model.log_prior(params)
        return found, jax.grad(lambda p: model.log_marginal(p, data))(params)

    both, gradient = log_likelihood((0, 1), [1.0, 1e-26])
    one, expected = log_likelihood((0,), [1.0])
    np.testing.assert_allclose(both, one, rtol=1e-12)
    np.testing.assert_allclose(gradient.effects[0], expected.effects[0], rtol=1e-8)


@pytest.mark.parametrize("between", [0.0, 0.25])
def test_the_posterior_of_a_small_sd_is_that_of_a_grid(between):
    """12 groups of 5; coefficient and effects integrated exactly, sd and noise on a grid.

    Without between-group variance the sd's 5 % quantile is .03; the best Gaussian in log sd has
    .09, the one in these coordinates .02, and importance weights do the rest. About 1,000
    effective draws leave probabilities an error of .016.
    """
    rng = np.random.default_rng(5)
    codes = np.repeat(np.arange(12), 5)
    y = between * rng.standard_normal(12)[codes] + rng.standard_normal(60)
    priors = Priors(coef_sd=3.0, noise=HalfT(3.0, 1.0), effects=HalfT(3.0, 1.0))
    model = nghvi.MixedRegressor("g", priors=priors, standardize=False)
    model.fit(pd.DataFrame({"g": codes}), y)
    assert model.converged_

    same = codes[:, None] == codes
    sds, noises = np.linspace(0.0005, 2.5, 250), np.linspace(0.6, 1.6, 40)
    eigenvalues, vectors = np.linalg.eigh(same * 1.0)
    turned, ones = vectors.T @ y, vectors.T @ np.ones(60)
    log_density = np.empty((sds.size, noises.size))
    for j, noise in enumerate(noises):
        variance = sds[:, None] ** 2 * eigenvalues + noise**2
        precision = 9.0**-1 + np.sum(ones**2 / variance, axis=1)
        explained = np.sum(ones * turned / variance, axis=1) ** 2 / precision
        fit = np.sum(np.log(variance) + turned**2 / variance, axis=1)
        log_density[:, j] = -0.5 * (fit + np.log(precision) - explained)
        log_density[:, j] -= 2 * (np.log1p(noise**2 / 3) + np.log1p(sds**2 / 3))
    mass = np.exp(log_density - log_density.max()).sum(axis=1)
    probability = np.cumsum(mass) / mass.sum()
    draws = np.sqrt(model.posterior_draws(4000)["effects_cov"][:, 0, 0])
    for level in (0.05, 0.25, 0.5, 0.75, 0.95):
        at = np.interp(level, probability, sds)
        assert abs(np.mean(draws < at) - level) < 0.05, level


def test_entries_beside_the_diagonal_may_be_of_any_size():
    prior = HuangWand()
    free = jnp.array([0.0, 5000.0, 8.0])
    gradient = jax.grad(lambda values: prior.log_density(values, 2))(free)
    assert np.isfinite(gradient).all()


def few_groups(number, between, seed):
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(number), 120 // number)
    frame = pd.DataFrame({"g": g, "x": rng.normal(size=g.size)})
    y = 0.5 * frame["x"] + between * rng.normal(size=number)[g] + 0.5 * rng.normal(size=g.size)
    return frame.assign(y=y)


def posterior_of_sd_by_quadrature(frame):
    """Log sds of the effects and their probabilities, coefficients and effects integrated out."""
    unit = frame["y"].std(ddof=0)
    y, x = (((c - c.mean()) / c.std(ddof=0)).to_numpy() for c in (frame["y"], frame["x"]))
    z = (frame["g"].to_numpy()[:, None] == np.unique(frame["g"])).astype(float)
    w = np.column_stack([z, np.ones(len(y)), x])
    k, left = z.shape[1], y - w @ np.linalg.lstsq(w, y, rcond=None)[0]
    log_noise = 0.5 * np.log(left @ left / (len(y) - k - 1)) + np.linspace(-0.4, 0.4, 41)
    log_sd = np.arange(-7, 9, 0.02)
    s, t = (np.exp(each).ravel() for each in np.meshgrid(log_sd, log_noise, indexing="ij"))
    prior = np.concatenate([np.repeat(s[:, None] ** -2, k, 1), np.full((len(s), 2), 0.01)], axis=1)
    root = np.linalg.cholesky((w.T @ w) / t[:, None, None] ** 2 + prior[:, :, None] * np.eye(k + 2))
    forward = np.linalg.solve(root, (w.T @ y / t[:, None] ** 2)[..., None])[..., 0]
    log_p = 0.5 * np.sum(forward**2, 1) - 0.5 * (y @ y) / t**2 - len(y) * np.log(t) - k * np.log(s)
    log_p -= np.log(np.diagonal(root, axis1=1, axis2=2)).sum(1)
    log_p += sum(np.log(v) - 1.5 * np.log1p(v**2 / 12.5) for v in (s, t))  # half-t(2, 2.5)
    mass = np.exp(log_p - log_p.max()).reshape(len(log_sd), -1).sum(1)
    return log_sd + np.log(unit), mass / mass.sum()


@pytest.mark.parametrize(("number", "between"), [(2, 0.1), (2, 2.0), (3, 0.5)])
def test_few_groups_have_the_long_tail_of_their_posterior(number, between):
    # Quantiles of the log sd with 4,000 draws: standard errors of at most .05 posterior sd.
    frame = few_groups(number, between, seed=number)
    log_sd, mass = posterior_of_sd_by_quadrature(frame)
    below, mean = np.cumsum(mass) - mass / 2, mass @ log_sd
    sd = np.sqrt(mass @ (log_sd - mean) ** 2)
    drawn = nghvi.mixed("y ~ x + (1 | g)", frame).posterior_draws(4000)["effects_cov"][:, 0, 0]
    for share in (0.25, 0.5, 0.75, 0.95):
        exact = np.interp(share, below, log_sd)
        assert abs(0.5 * np.log(np.quantile(drawn, share)) - exact) < 0.15 * sd


@pytest.mark.parametrize("number", [2, 3])
def test_few_groups_of_counts_have_the_long_tail_of_their_posterior(number):
    """Standard errors of quantiles of the log sd with 4,000 draws are at most .05 posterior sd."""
    rng = np.random.default_rng(number)
    g = np.repeat(np.arange(number), 120 // number)
    y = rng.poisson(np.exp(0.3 + 0.5 * rng.normal(size=number))[g])
    log_sd, centre = np.arange(-6, 7, 0.05), np.linspace(-1, 1, 201)
    level = np.arange(-4, 4, 0.004)  # of a group
    log_p = np.zeros((len(log_sd), len(centre)))
    for k in range(number):
        fit = y[g == k].sum() * level - (g == k).sum() * np.exp(level)
        fit = np.exp(fit - fit.max())
        for i, s in enumerate(np.exp(log_sd)):
            # Where the group's level is known, so that the intercept may be anywhere.
            at = 0.3 + 30 * np.hypot(s, 0.1) * centre
            log_p[i] += np.log(norm.pdf(level, at[:, None], s) @ fit + 1e-300)
    s, width = np.exp(log_sd), 30 * np.hypot(np.exp(log_sd), 0.1)
    log_p += (np.log(s * width) - 1.5 * np.log1p(s**2 / 12.5))[:, None]
    log_p -= 0.005 * (0.3 + width[:, None] * centre) ** 2
    mass = np.exp(log_p - log_p.max()).sum(axis=1)
    mass /= mass.sum()
    below, mean = np.cumsum(mass) - mass / 2, mass @ log_sd
    sd = np.sqrt(mass @ (log_sd - mean) ** 2)
    model = nghvi.mixed(
        "y ~ 1 + (1 | g)",
        pd.DataFrame({"y": y, "g": g}),
        response="poisson",
        priors=Priors(coef_sd=10.0, effects=HalfT()),
        standardize=False,
    )
    drawn = model.posterior_draws(4000)["effects_cov"][:, 0, 0]
    for share in (0.25, 0.5, 0.75, 0.95):
        exact = np.interp(share, below, log_sd)
        assert abs(0.5 * np.log(np.quantile(drawn, share)) - exact) < 0.15 * sd


def test_the_centre_of_few_groups_is_the_mode_of_coefficients_and_effects():
    rng = np.random.default_rng(2)
    g, x = np.repeat(np.arange(3), 20), np.column_stack([np.ones(60), rng.normal(size=60)])
    y = rng.poisson(np.exp(x @ [0.5, -0.3] + np.array([0.9, -0.2, 0.1])[g]))
    rows = Rows.from_arrays(x, y, g, 3)
    model = MixedModel(Identity(2), Poisson(), Priors(coef_sd=3.0, effects=HalfT()), (0,))
    found = model.suited(rows).spread
    design = np.concatenate([x, np.eye(3)[g]], axis=1)
    prior = np.array([1 / 9, 1 / 9, 1, 1, 1])

    def height(at):
        eta = design @ at
        return np.sum(np.exp(eta) - y * eta) + 0.5 * prior @ at**2

    best = minimize(height, np.zeros(5), tol=1e-12).x
    np.testing.assert_allclose(found.centre, best[:2], atol=1e-2)
    rate = np.exp(design @ best)
    np.testing.assert_allclose(found.square, rate @ x**2, rtol=1e-2)
    many = Rows.from_arrays(np.tile(x, (3, 1)), np.tile(y, 3), np.arange(180) % 9, 9)
    assert model.suited(many).spread is None


def test_the_centre_beside_a_factor_of_few_levels_knows_the_other_factor():
    rng = np.random.default_rng(3)
    codes = np.column_stack([np.arange(90) % 9, rng.integers(0, 3, 90)])
    x = np.column_stack([np.ones(90), rng.normal(size=90)])
    eta = (
        x @ [0.5, -0.3] + rng.normal(size=9)[codes[:, 0]] + np.array([0.9, -0.2, 0.1])[codes[:, 1]]
    )
    y = rng.poisson(np.exp(eta))
    plain = GeneralFactors(
        Identity(2), Poisson(), Priors(coef_sd=3.0), (0, 0), parts=(HalfT(),) * 2, effects=(1, 1)
    )

    def suited(codes, levels):
        rows = FactorRows(x, y, codes, None, levels)
        data = CrossedRows.from_rows(rows, plain.by_factor)
        return plain.suited(data), data

    model, data = suited(codes, (9, 3))
    design = np.concatenate([x, np.eye(9)[codes[:, 0]], np.eye(3)[codes[:, 1]]], axis=1)
    prior = np.concatenate([np.full(2, 1 / 9), np.ones(12)])

    def height(at):
        eta = design @ at
        return np.sum(np.exp(eta) - y * eta) + 0.5 * prior @ at**2

    best = minimize(height, np.zeros(14), tol=1e-12).x
    np.testing.assert_allclose(model.spread.centre, best[:2], atol=1e-2)
    np.testing.assert_array_equal(model.spread.levels, [9, 3])
    many, _ = suited(np.column_stack([codes[:, 0], np.arange(90) % 7]), (9, 7))
    assert many.spread is None
    # The same density in other coordinates: theta holds (beta - centre) / unit.
    start = model.init_params(jax.random.key(0), data)
    params = start._replace(coef=jnp.array([0.4, -1.1]))
    other = dataclasses.replace(model, spread=None)
    unit = model.coef_unit(params)
    same = params._replace(coef=model.coef(params))
    volume = float(jnp.sum(jnp.log(unit)))
    found = model.log_marginal(params, data) - other.log_marginal(same, data)
    assert abs(float(found) - volume) < 1e-9


@pytest.mark.parametrize("apart", [1e-4, 1e-6])
def test_columns_that_are_nearly_the_same_leave_the_rest_as_it_is(apart):
    frame = few_groups(6, 1.0, seed=1)
    noise = np.random.default_rng(2).normal(size=len(frame))
    twins = nghvi.mixed("y ~ x + w + (1 | g)", frame.assign(w=frame["x"] + apart * noise))
    same = nghvi.mixed("y ~ x + w + (1 | g)", frame.assign(w=frame["x"] + 1e-3 * noise))
    assert twins.converged_
    rows = ["intercept", "noise_var", "effects_sd[intercept]"]
    found, usual = (m.summary().loc[rows, "mean"] for m in (twins, same))
    np.testing.assert_allclose(found, usual, rtol=0.05)
    # The prior has mean zero and sd 10, in standardised units.
    assert np.abs(twins.summary().loc[["x", "w"], "mean"]).max() < 10
