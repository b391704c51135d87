"""Several factors with any response, against dense algebra, quadrature and differences."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

from nghvi.data.factors import CrossedRows, FactorRows
from nghvi.inference import infer
from nghvi.latents import crossed
from nghvi.models.general_factors import FRESH, PAIRS, GeneralFactors
from nghvi.models.several_factors import SeveralFactors
from nghvi.networks import Identity
from nghvi.priors import HalfT, HuangWand, Priors
from nghvi.responses import RESPONSES
from tests.latents.test_schur import Example
from tests.oracles import marginal_facts


def model_of(kind, response, random):
    return kind(
        Identity(3),
        RESPONSES[response](),
        Priors(),
        sum(random, ()),
        parts=tuple(HuangWand() if len(own) > 1 else HalfT() for own in random),
        effects=tuple(map(len, random)),
    )


def rows_of(response, example, scale=1.0):
    """The example's rows with responses of this kind."""
    rows, rng = example.rows, np.random.default_rng(0)
    eta = (
        rows.x @ [0.2, 0.5, -0.3]
        + scale * rng.standard_normal(rows.num_levels[0])[rows.codes[:, 0]]
    )
    drawn = {
        "logit": lambda: (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float),
        "poisson": lambda: rng.poisson(np.exp(eta)).astype(float),
        "student-t": lambda: eta + 0.5 * rng.standard_t(3, len(eta)),
    }
    return dataclasses.replace(rows, y=drawn[response]())


def shifted(params, size=0.2):
    flat, unravel = ravel_pytree(params)
    return unravel(flat + size * jnp.sin(1 + jnp.arange(flat.size)))


@pytest.mark.parametrize("name", ["slopes of both", "nested and crossed"])
def test_gaussian_response_is_integrated_exactly(name):
    example = Example(name, weighted=True)
    exact, general = (
        model_of(kind, "gaussian", example.random) for kind in (SeveralFactors, GeneralFactors)
    )
    data = CrossedRows.from_rows(example.rows, example.random)
    params = shifted(exact.init_params(jax.random.key(0), example.data))
    of_sums = jax.jit(jax.value_and_grad(lambda p: exact.log_marginal(p, example.data)))(params)
    of_rows = jax.jit(jax.value_and_grad(lambda p: general.log_marginal(p, data)))(params)
    for found, expected in zip(jax.tree.leaves(of_rows), jax.tree.leaves(of_sums), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("response", ["logit", "student-t"])
def test_gradient_is_that_of_the_number_itself(response):
    example = Example("crossed")
    model = model_of(GeneralFactors, response, example.random)
    data = CrossedRows.from_rows(rows_of(response, example), example.random)
    params = shifted(model.init_params(jax.random.key(0), data))
    _, gradient, differences = marginal_facts(dataclasses.replace(model, num_pairs=2), params, data)
    # Where a density is not log-concave, the mode's derivative is that of a safe step, and the
    # integral nearly does not depend on it.
    atol = 1e-5 if model.response.log_concave else 0.02
    np.testing.assert_allclose(gradient, differences, atol=atol)


def test_mode_and_curvature_are_those_of_all_effects_at_once():
    example = Example("three")
    rows = rows_of("poisson", example)
    model = model_of(GeneralFactors, "poisson", example.random)
    data = CrossedRows.from_rows(rows, example.random)
    params = shifted(model.init_params(jax.random.key(0), data))
    lower = model.precision_factors(params)
    precision = np.zeros((example.z.shape[1],) * 2)
    start = 0
    for own, number in zip(lower, rows.num_levels, strict=True):
        size = number * len(own)
        block = np.kron(np.eye(number), np.asarray(own @ own.T))
        precision[start : start + size, start : start + size] = block
        start += size
    fixed = rows.x @ np.asarray(model.coef(params))

    def negative(effects):
        eta = fixed + example.z @ effects
        mu = np.exp(eta)
        value = np.sum(mu - rows.y * eta) + 0.5 * effects @ precision @ effects
        return value, example.z.T @ (mu - rows.y) + precision @ effects

    found = minimize(negative, np.zeros(len(precision)), jac=True, options={"gtol": 1e-10})
    mode = jax.jit(lambda p: crossed.joint_mode(model.problem(p, data)))(params)
    assert mode.found
    effects = data.labelled(model.coloured(mode.effects, params, data.plan))
    flat = np.concatenate([np.ravel(each) for each in effects])
    np.testing.assert_allclose(flat, found.x, atol=1e-6)
    mu = np.exp(fixed + example.z @ flat)
    hessian = example.z.T @ (mu[:, None] * example.z) + precision
    constant = float(np.sum(jax.scipy.special.gammaln(rows.y + 1)))
    expected = 0.5 * np.linalg.slogdet(precision)[1] - 0.5 * np.linalg.slogdet(hessian)[1]
    expected -= found.fun + constant
    laplace = model.approximate()
    value = jax.jit(laplace.log_marginal)(params, data) - laplace.log_prior(params)
    np.testing.assert_allclose(value, expected, rtol=1e-8)


class Square:
    """Two by two levels, three rows of two classes each: integrals by a grid in four dimensions."""

    def __init__(self):
        codes = np.repeat(np.array(list(itertools.product((0, 1), (0, 1)))), 3, axis=0)
        y = np.array([1, 1, 1, 1, 0, 1, 0, 1, 1, 0, 0, 0.0])
        x = np.column_stack([np.ones(12), np.linspace(-1, 1, 12), np.cos(np.arange(12.0))])
        self.model = model_of(GeneralFactors, "logit", ((0,), (0,)))
        self.data = CrossedRows.from_rows(FactorRows(x, y, codes, None, (2, 2)), ((0,), (0,)))
        start = self.model.init_params(jax.random.key(0), self.data)
        self.params = start._replace(
            coef=jnp.array([0.3, -0.4, 0.2]), effects=jnp.log(jnp.array([1.5, 0.8]))
        )
        sds = np.sqrt([1.5, 0.8])
        drawn = [1 / float(each[0, 0]) for each in self.model.precision_factors(self.params)]
        np.testing.assert_allclose(drawn, sds)
        nodes, weights = np.polynomial.hermite_e.hermegauss(24)
        grid = np.array(list(itertools.product(nodes, repeat=4)))
        weight = np.prod(list(itertools.product(weights / weights.sum(), repeat=4)), axis=1)
        self.effects = grid * np.repeat(sds, 2)
        eta = x @ [0.3, -0.4, 0.2] + self.effects[:, codes[:, 0]] + self.effects[:, 2 + codes[:, 1]]
        mass = weight * np.prod(1 / (1 + np.exp(-(2 * y - 1) * eta)), axis=1)
        self.log_marginal = np.log(mass.sum())
        self.mass = mass / mass.sum()


@pytest.fixture(scope="module")
def square():
    return Square()


def test_two_by_two_levels_by_a_grid(square):
    model = dataclasses.replace(square.model, num_pairs=2000)
    value = jax.jit(lambda: model.log_marginal(square.params, square.data))()
    value -= model.log_prior(square.params)
    assert abs(value - square.log_marginal) < 0.003
    laplace = model.approximate()
    rough = jax.jit(laplace.log_marginal)(square.params, square.data)
    rough -= laplace.log_prior(square.params)
    assert abs(rough - square.log_marginal) > 0.02


def test_effects_have_the_moments_of_the_grid(square):
    mean = square.mass @ square.effects
    deviation = square.effects - mean
    covariance = (square.mass[:, None] * deviation).T @ deviation
    sd = np.sqrt(np.diagonal(covariance))
    keys = jax.random.split(jax.random.key(1), 3000)
    model, params, data = square.model, square.params, square.data

    @jax.jit
    def draw(keys):
        def one(key):
            tables = data.labelled(model.draw_effects(key, params, data))
            return jnp.concatenate(tables)[:, 0]

        return jax.lax.map(one, keys, batch_size=100)

    drawn = np.asarray(draw(keys))
    assert np.all(np.abs(drawn.mean(axis=0) - mean) < 4 * sd / np.sqrt(3000))
    np.testing.assert_allclose(drawn.std(axis=0), sd, rtol=0.06)
    np.testing.assert_allclose(np.cov(drawn.T), covariance, atol=0.1 * sd.max() ** 2)
    many = dataclasses.replace(model, num_pairs=2000)
    moments = jax.jit(lambda: many.moments_by_factor(keys[0], params, data))()
    ours = np.concatenate(data.labelled([m[:, 0] for m, _ in moments]))
    variances = np.concatenate(data.labelled([np.ravel(v) for _, v in moments]))
    np.testing.assert_allclose(ours, mean, atol=0.03)
    np.testing.assert_allclose(np.sqrt(variances), sd, rtol=0.03)


class Nest:
    """Two classes, with five levels nested in two of another factor: integrals within integrals."""

    def __init__(self):
        outer = np.array([0, 0, 0, 1, 1])
        codes = np.column_stack([np.repeat(outer, 4), np.repeat(np.arange(5), 4)])
        y = np.array([1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1, 0, 0, 1, 0, 1, 0, 0, 0.0])
        x = np.column_stack([np.ones(20), np.linspace(-1, 1, 20), np.cos(np.arange(20.0))])
        self.model = dataclasses.replace(
            model_of(GeneralFactors, "logit", ((0,), (0,))), num_pairs=32
        )
        self.data = CrossedRows.from_rows(FactorRows(x, y, codes, None, (2, 5)), ((0,), (0,)))
        start = self.model.init_params(jax.random.key(0), self.data)
        self.params = start._replace(
            coef=jnp.array([0.3, -0.4, 0.2]), effects=jnp.log(jnp.array([1.5, 0.8]))
        )
        nodes, weights = np.polynomial.hermite_e.hermegauss(40)
        weights = weights / weights.sum()
        eta = (x @ [0.3, -0.4, 0.2])[:, None, None] + np.sqrt(1.5) * nodes[:, None]
        eta = eta + np.sqrt(0.8) * nodes
        rows = 1 / (1 + np.exp(-(2 * y - 1)[:, None, None] * eta))
        inner = np.prod(rows.reshape(5, 4, 40, 40), axis=1)
        each = inner @ weights
        whole = np.stack([np.prod(each[outer == a], axis=0) for a in (0, 1)])
        self.log_marginal = np.log(whole @ weights).sum()
        share = whole * weights / (whole @ weights)[:, None]
        self.outer_mean = np.sqrt(1.5) * share @ nodes
        inner_mean = np.sqrt(0.8) * (inner * weights) @ nodes / each
        self.inner_mean = np.sum(share[outer] * inner_mean, axis=1)
        inner_square = 0.8 * (inner * weights) @ nodes**2 / each
        square = np.sum(share[outer] * inner_square, axis=1)
        self.inner_sd = np.sqrt(square - self.inner_mean**2)


def test_nested_levels_are_integrated_one_around_the_other():
    nest = Nest()
    assert not nest.model.is_drawn(nest.data)
    value = jax.jit(lambda: nest.model.log_marginal(nest.params, nest.data))()
    value -= nest.model.log_prior(nest.params)
    assert abs(value - nest.log_marginal) < 1e-4
    key = jax.random.key(0)
    moments = jax.jit(lambda: nest.model.moments_by_factor(key, nest.params, nest.data))()
    outer, inner = nest.data.labelled([mean[:, 0] for mean, _ in moments])
    np.testing.assert_allclose(outer, nest.outer_mean, atol=1e-3)
    np.testing.assert_allclose(inner, nest.inner_mean, atol=1e-3)
    sds = np.sqrt(nest.data.labelled([variance[0, 0] for _, variance in moments])[1])
    np.testing.assert_allclose(sds, nest.inner_sd, rtol=1e-3)


def test_integrals_in_parts_are_the_same(monkeypatch):
    nest = Nest()

    def found():
        of = jax.value_and_grad(lambda p: nest.model.log_marginal(p, nest.data))
        return jax.tree.leaves(jax.jit(of)(nest.params))

    whole = found()
    monkeypatch.setattr("nghvi.latents.crossed_integrals.SIDE_BY_SIDE", 100)
    for ours, expected in zip(found(), whole, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-12)


def test_draws_are_placed_where_the_drawn_effects_are():
    # Forty levels of six rows are integrated out, which moves the eight others by a known amount.
    rng = np.random.default_rng(3)
    codes = np.column_stack([np.repeat(np.arange(40), 6), rng.integers(0, 8, 240)])
    x = np.column_stack([np.ones(240), rng.standard_normal((240, 2))])
    eta = 1 + 1.5 * rng.standard_normal(40)[codes[:, 0]] + rng.standard_normal(8)[codes[:, 1]]
    y = (rng.random(240) < 1 / (1 + np.exp(-eta))).astype(float)
    model = model_of(GeneralFactors, "logit", ((0,), (0,)))
    data = CrossedRows.from_rows(FactorRows(x, y, codes, None, (40, 8)), ((0,), (0,)))
    start = model.init_params(jax.random.key(0), data)
    params = start._replace(coef=jnp.array([1.0, 0, 0]), effects=jnp.log(jnp.array([2.25, 1.0])))
    assert model.is_drawn(data)
    placed = jax.jit(model.placed)(params, data)
    afresh = jax.jit(lambda model: model.log_marginal_afresh(jax.random.key(1), params, data))
    (plain, plain_error), (value, error) = afresh(model), afresh(placed)
    assert error < 0.3 * plain_error
    assert abs(plain - value) < 4 * plain_error
    few = jax.jit(lambda: placed.log_marginal(params, data))()
    assert abs(few - value) < 4 * error * np.sqrt(FRESH / PAIRS)


def test_draws_that_cannot_be_afforded_are_not_called_converged(square, monkeypatch):
    monkeypatch.setattr("nghvi.recipes.refinement.ASTRAY", 0.0)
    monkeypatch.setattr("nghvi.inference.HUGE", 0)
    done = infer(square.model.suited(square.data), square.data, importance=False)
    assert (done.verdict.status, done.verdict.cause) == ("not_converged", "draws")
    assert "one of the crossed factors" in done.verdict.sentence
    # The level of the marginal has noise, which is stated, beside that of draws of theta.
    assert 0 < done.elbo_se < 0.2
