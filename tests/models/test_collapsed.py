"""Coefficients that are integrated out: densities and draws equal those of dense algebra."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import nghvi
from nghvi.data import Panel, Rows
from nghvi.data.grouped import CellRows
from nghvi.data.panel import collapse
from nghvi.inference import infer, unravel_draws
from nghvi.models.by_rows import whitened
from nghvi.models.collapsed import Collapsed, eliminate, log_integral
from nghvi.models.mixed import MixedModel
from nghvi.networks import Perceptron, Skip
from nghvi.priors import HalfT, Priors
from nghvi.recipes.plan import collapsed_if_possible
from nghvi.recipes.settings import Settings
from nghvi.responses import Gaussian
from tests.models.test_skip import line_frame, rows_of
from tests.oracles import by_one_program

TRUNK = Skip(Perceptron(2, (4, 3), "tanh"), 2)
PRIORS = Priors(coef_sd=(10.0, 3.0, 5.0, 1.0, 1.0, 2.0), effects=HalfT(2.0, 1.0), weight_sd=1.0)


def grouped_rows(num_inputs_seen=None, rounded=None, seed=0):
    """Rows of 7 groups of unequal sizes; rounded responses make cells with several of them."""
    rng = np.random.default_rng(seed)
    group = np.sort(np.concatenate([np.arange(7), rng.integers(0, 7, 113)]))
    x = rng.normal(size=(num_inputs_seen or 120, 2))
    x = x[rng.integers(0, len(x), 120)]
    y = np.sin(x[:, 0]) + rng.normal(size=7)[group] + rng.normal(size=120)
    return Rows.from_arrays(x, y if rounded is None else y.round(rounded), group, 7)


def short_rows(often=1, seed=2):
    """Rows of 38 groups of two or three and of two groups of thirty, each counted ``often``."""
    rng = np.random.default_rng(seed)
    sizes = np.repeat([2, 3, 30], [20, 18, 2])
    group, x = np.repeat(np.arange(40), sizes), rng.normal(size=(sizes.sum(), 2))
    y = np.sin(x[:, 0]) + rng.normal(size=40)[group] + rng.normal(size=len(x))
    return Rows.from_arrays(x, y, group, 40, rng.integers(1, often + 1, len(x)).astype(float))


DATA = {
    "rows": grouped_rows(),
    "short": short_rows(),
    "short and counted": short_rows(3),
    "counted rows": collapse(grouped_rows(20, 0), sums_suffice=False),
    "cells": collapse(grouped_rows(8), sums_suffice=False),
    "panel": collapse(grouped_rows(8), sums_suffice=True),
}
RANDOM = {"none": (), "intercept": (0,), "some": (0, 2, 4), "all": (0, 1, 2, 3, 4, 5)}


def test_every_form_of_the_data_is_here():
    kinds = {name: type(data) for name, data in DATA.items()}
    forms = {"rows": Rows, "counted rows": Rows, "cells": CellRows, "panel": Panel}
    assert kinds == forms | {"short": Rows, "short and counted": Rows}


def test_some_groups_have_fewer_rows_than_effects_and_others_more():
    sizes = {size for _, size in DATA["short"].blocks}
    assert min(sizes) <= len(RANDOM["some"]) < len(RANDOM["all"]) < max(sizes)


def parameters(model, data):
    """Parameters away from the start, without coefficients."""
    params = Collapsed(model).init_params(jax.random.key(1), data)
    effects = jnp.linspace(-1.0, 0.5, params.effects.size)
    return params._replace(dispersion=jnp.array([-0.4]), effects=effects)


def dense(model, params, rows):
    """Features and responses of all observations, and the covariance given the coefficients."""
    seen = rows.observations()
    often = np.repeat(np.arange(len(seen.y)), seen.weight.astype(int))
    h = np.asarray(model.features(params, jnp.asarray(seen.x)))[often]
    y, group = seen.y[often], seen.group[often]
    lower, noise_var = model.precision_factor(params), np.exp(params.dispersion[0])
    z, omega = h[:, list(model.random)], np.linalg.inv(np.asarray(lower @ lower.T))
    return h, y, noise_var * np.eye(len(y)) + (z @ omega @ z.T) * (group[:, None] == group)


@pytest.mark.parametrize("random", RANDOM)
@pytest.mark.parametrize("form", ["rows", "counted rows", "cells", "short", "short and counted"])
def test_the_density_is_that_of_dense_algebra(form, random):
    model, data = MixedModel(TRUNK, Gaussian(), PRIORS, RANDOM[random]), DATA[form]
    params = parameters(model, data)
    h, y, covariance = dense(model, params, data)
    covariance += (h * np.square(PRIORS.coef_sd)) @ h.T
    expected = multivariate_normal.logpdf(y, np.zeros(len(y)), covariance)
    small = Collapsed(model)
    found = by_one_program(
        lambda params, data: small.log_marginal(params, data) - small.log_prior(params),
        *(params, data),
    )
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("random", RANDOM)
def test_sums_by_input_serve_as_well_as_rows(random):
    model = Collapsed(MixedModel(TRUNK, Gaussian(), PRIORS, RANDOM[random]))
    values = [
        by_one_program(model.log_marginal, parameters(model.model, data), data)
        for data in (DATA["panel"], DATA["cells"], grouped_rows(8))
    ]
    np.testing.assert_allclose(values, values[0], rtol=1e-10)


@pytest.mark.parametrize("random", RANDOM)
def test_the_slope_is_that_of_automatic_differentiation(random):
    model, data = Collapsed(MixedModel(TRUNK, Gaussian(), PRIORS, RANDOM[random])), DATA["rows"]
    normal, _ = by_one_program(model._normal, parameters(model.model, data), data)
    ours = by_one_program(jax.grad(log_integral), normal)
    expected = by_one_program(jax.grad(lambda n: eliminate(n).log_integral), normal)
    for name in ("coef", "effects"):  # only symmetric changes of a precision mean anything
        found, wanted = getattr(ours, name), getattr(expected, name)
        np.testing.assert_allclose(found, (wanted + wanted.mT) / 2, rtol=1e-8, atol=1e-10)
    for name in ("coupling", "coef_right", "effects_right"):
        np.testing.assert_allclose(getattr(ours, name), getattr(expected, name), atol=1e-9)


@pytest.mark.parametrize("n", [3, 12])
def test_the_slope_of_what_short_groups_say_is_that_of_automatic_differentiation(n):
    rng = np.random.default_rng(n)
    rows, design = jnp.asarray(rng.normal(size=(5, n, 4))), jnp.asarray(rng.normal(size=(5, n, 6)))
    weight = jnp.asarray(rng.normal(size=(4, 4)))

    def plain(rows, design):
        cross = jnp.eye(n) + design @ design.mT
        square = jnp.sum(rows.mT @ jnp.linalg.solve(cross, rows), axis=0)
        return jnp.sum(weight * square) + 1.5 * jnp.sum(jnp.linalg.slogdet(cross)[1])

    def ours(rows, design):
        found = whitened(rows, design)
        return jnp.sum(weight * found.square) + 3 * found.half_log_det

    for of in (lambda f: f, lambda f: jax.grad(f, 0), lambda f: jax.grad(f, 1)):
        pair = (by_one_program(of(f), rows, design) for f in (ours, plain))
        np.testing.assert_allclose(*pair, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("form", ["short", "short and counted"])
def test_short_groups_have_the_slope_of_others(monkeypatch, form):
    model, data = Collapsed(MixedModel(TRUNK, Gaussian(), PRIORS, RANDOM["all"])), DATA[form]
    params, cut = parameters(model.model, data), Rows.cut
    assert data.weight is not None  # padding
    found = jax.grad(model.log_marginal)(params, data)
    monkeypatch.setattr(Rows, "cut", lambda rows, h, most: cut(rows, h, 0))
    expected = jax.grad(model.log_marginal)(params, data)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", ["rows", "short"])
def test_the_conditional_of_the_coefficients_is_that_of_dense_algebra(form):
    model, data = MixedModel(TRUNK, Gaussian(), PRIORS, RANDOM["some"]), DATA[form]
    params = parameters(model, data)
    h, y, covariance = dense(model, params, data)
    precision = np.diag(1 / np.square(PRIORS.coef_sd)) + h.T @ np.linalg.solve(covariance, h)
    mean = np.linalg.solve(precision, h.T @ np.linalg.solve(covariance, y))
    found = eliminate(Collapsed(model)._normal(params, data)[0]).coefficients
    np.testing.assert_allclose(found.root @ found.root.T, precision, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-8)


def test_density_times_conditional_is_the_density_of_the_whole_model():
    model, data = MixedModel(TRUNK, Gaussian(), PRIORS, RANDOM["some"]), DATA["rows"]
    small, params = Collapsed(model), parameters(model, data)
    whole = small.completed(jax.random.key(3), params, data)
    found = eliminate(small._normal(params, data)[0]).coefficients
    precision = np.asarray(found.root @ found.root.T)
    normal = multivariate_normal(found.mean, np.linalg.inv(precision))
    expected = small.log_marginal(params, data) + normal.logpdf(whole.coef)
    np.testing.assert_allclose(model.log_marginal(whole, data), expected, rtol=1e-9)


@pytest.fixture(scope="module")
def found():
    rows = rows_of(*line_frame())
    trunk = Skip(Perceptron(3, (4,)), 3)
    model = MixedModel(trunk, Gaussian(), Priors(coef_sd=2.0, weight_sd=1.0), random=(0, 1))
    return infer(model, rows, steps=300, n_starts=1)


def test_draws_have_coefficients_from_their_conditional(found):
    # Standardised coefficients of 2,000 independent draws are standard normal; bounds of five
    # standard errors fail by chance in one of 50,000 runs.
    small = Collapsed(found.model)
    params = unravel_draws(found.model, found.data, found.pool.theta)
    rest = params._replace(coef=jnp.zeros((len(found.pool.theta), 0)))
    given = jax.jit(jax.vmap(lambda p: eliminate(small._normal(p, found.data)[0]).coefficients))(
        rest
    )
    z = np.einsum("sji,sj->si", given.root, params.coef - given.mean)
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=5 / np.sqrt(len(z)))
    np.testing.assert_allclose(z.var(axis=0), 1, atol=5 * np.sqrt(2 / len(z)))


def test_q_has_the_moments_of_the_draws_and_the_run_is_one_of_the_rest(found):
    assert not found.drawn_from_q
    assert found.q.dim == found.pool.theta.shape[1] == found.run.q.dim + 8
    np.testing.assert_allclose(found.q.mean, found.pool.theta.mean(axis=0))
    np.testing.assert_allclose(found.q.scale, found.pool.theta.std(axis=0), rtol=1e-6)


@pytest.mark.parametrize(
    "asked",
    [
        {"method": "ng-hvi"},
        {"latents": "sample"},
        {"family": nghvi.families.Factor(2)},
        {"batch_groups": 5},
    ],
)
def test_other_ways_keep_the_coefficients(asked, found):
    model = found.model
    assert collapsed_if_possible(model, found.data, Settings(**asked)) is model
    assert isinstance(collapsed_if_possible(model, found.data, Settings()), Collapsed)


def test_known_coefficients_stay(found):
    model = dataclasses.replace(found.model, known_coef=(1.0,))
    assert collapsed_if_possible(model, found.data, Settings()) is model
