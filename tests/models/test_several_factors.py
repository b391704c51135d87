"""The model with several factors: densities, coordinates, priors and a fit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from nghvi._core.model import initial_theta, unraveller
from nghvi.data import elimination
from nghvi.data.factors import CrossedStatistics, FactorRows
from nghvi.inference import infer, unravel_draws
from nghvi.models import lookups, parameters
from nghvi.models.mixed import MixedModel
from nghvi.models.several_factors import ByFactor, SeveralFactors
from nghvi.models.smallest_form import prepare
from nghvi.networks import Identity
from nghvi.priors import HalfT, HuangWand, Priors
from nghvi.recipes.smooth import laplace_start
from nghvi.responses import RESPONSES
from tests.latents.test_schur import Example

PARTS = (HuangWand(scale=(1.0, 2.0)), HalfT())
PLAIN = SeveralFactors(
    Identity(3), RESPONSES["gaussian"](), Priors(), (0, 1, 0), parts=PARTS, effects=(2, 1)
)


@pytest.fixture(scope="module")
def example():
    return Example("slopes")


def params_of(model, example):
    start = model.init_params(jax.random.key(0), example.data)
    flat, unravel = ravel_pytree(start)
    return unravel(flat + 0.1 * jnp.sin(jnp.arange(flat.size)))


def test_several_priors_are_independent(example):
    both = ByFactor(PARTS, (2, 1))
    free = jnp.array([0.1, 0.4, -0.2, 0.3])
    apart = PARTS[0].log_density(free[:3], 2) + PARTS[1].log_density(free[3:], 1)
    np.testing.assert_allclose(both.log_density(free, 3), apart)
    volumes = PARTS[0].log_volume(free[:3], 2) + PARTS[1].log_volume(free[3:], 1)
    np.testing.assert_allclose(both.log_volume(free, 3), volumes)
    whole = both.precision_factor(free, 3)
    np.testing.assert_allclose(whole[:2, :2], PARTS[0].precision_factor(free[:3], 2))
    np.testing.assert_allclose(whole[2, 2], PARTS[1].precision_factor(free[3:], 1)[0, 0])
    assert both.size(3) == both.sample(np.random.default_rng(0), 5, 3).shape[1] == 4
    assert [both.stated(i) for i in range(3)] == [
        *(PARTS[0].stated(i) for i in range(2)),
        PARTS[1].stated(0),
    ]


def test_density_does_not_depend_on_coordinates(example):
    # The same beta, Omegas and noise in other coordinates: densities differ by the Jacobian.
    suited = PLAIN.suited(example.data)
    flat, unravel = ravel_pytree(params_of(suited, example))

    def plain(theta):
        params = unravel(theta)
        coef, effects = suited.coef(params), suited._free_effects(params)[0]
        return params._replace(coef=coef, effects=effects)

    @jax.jit
    def both(theta):
        jacobian = jax.jacobian(lambda t: ravel_pytree(plain(t))[0])(theta)
        changed = PLAIN.log_marginal(plain(theta), example.data) + jnp.linalg.slogdet(jacobian)[1]
        return changed, suited.log_marginal(unravel(theta), example.data)

    np.testing.assert_allclose(*both(flat))


def test_one_factor_beside_an_empty_one_is_the_one_factor_model(example):
    # A second factor with hardly any variance changes nothing.
    data, rows = example.data, example.rows
    one = MixedModel(Identity(3), RESPONSES["gaussian"](), Priors(effects=PARTS[0]), (0, 1))
    params = params_of(PLAIN, example)
    small = params._replace(effects=params.effects.at[3].set(-40.0))
    alone = params._replace(effects=params.effects[:3])
    expected = one.log_marginal(alone, prepare(one, rows.of_factor(0)))
    found = PLAIN.log_marginal(small, data) - PARTS[1].log_density(jnp.array([-40.0]), 1)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_joint_density_is_that_of_rows_and_effects(example):
    params, rows = params_of(PLAIN, example), example.rows
    effects = PLAIN.draw_effects(jax.random.key(4), params, example.data)
    lowers = PLAIN.precision_factors(params)
    eta, prior = rows.x @ np.asarray(PLAIN.coef(params)), 0.0
    for f, (each, lower, columns) in enumerate(zip(effects, lowers, PLAIN.by_factor, strict=True)):
        labelled = np.asarray(each)[np.asarray(example.data.factors[f].original_order)]
        eta = eta + np.sum(rows.x[:, columns] * labelled[rows.codes[:, f]], axis=1)
        squares = np.sum((labelled @ np.asarray(lower)) ** 2)
        constant = np.linalg.slogdet(lower)[1] - 0.5 * len(columns) * np.log(2 * np.pi)
        prior += len(each) * constant - 0.5 * squares
    variance = float(np.exp(params.dispersion[0]))
    fit = -0.5 * np.sum(np.log(2 * np.pi * variance) + (rows.y - eta) ** 2 / variance)
    found = PLAIN.log_joint(params, effects, example.data)
    np.testing.assert_allclose(found, fit + prior + PLAIN.log_prior(params), rtol=1e-10)


def test_opposite_draws_have_the_mean_in_the_middle(example):
    params, key = params_of(PLAIN, example), jax.random.key(2)
    draw = jax.jit(lambda sign: PLAIN.draw_effects(key, params, example.data, sign))
    pair = draw(1.0), draw(-1.0)
    moments = jax.jit(lambda: PLAIN.moments_by_factor(jax.random.key(0), params, example.data))()
    for one, other, (mean, _) in zip(*pair, moments, strict=True):
        np.testing.assert_allclose(0.5 * (one + other), mean, atol=1e-12)


def test_prior_draws_have_the_stated_coefficients(example):
    suited = PLAIN.suited(example.data)
    start = params_of(suited, example)
    drawn = suited.sample_prior(np.random.default_rng(0), 4000, start)
    coef = jax.jit(jax.vmap(suited.coef))(drawn)
    np.testing.assert_allclose(np.std(coef, axis=0), 10.0, rtol=0.05)


def test_a_few_levels_are_fitted_exactly():
    # Balanced and crossed: the evidence by quadrature over the three variances is the same.
    rng = np.random.default_rng(5)
    a, b = np.divmod(np.arange(60), 5)
    y = 2 + 0.8 * rng.standard_normal(12)[a] + 0.6 * rng.standard_normal(5)[b]
    y += 0.5 * rng.standard_normal(60)
    rows = FactorRows(np.ones((60, 1)), y, np.column_stack([a, b]), None, (12, 5))
    data = CrossedStatistics.from_rows(rows, ((0,), (0,)))
    model = dataclasses.replace(
        PLAIN, trunk=Identity(1), random=(0, 0), parts=(HalfT(), HalfT()), effects=(1, 1)
    ).suited(data)
    found = infer(model, data)
    assert found.converged, found.verdict.sentence
    log_sd = np.linspace(-3.5, 3.5, 36)
    grid = np.stack(np.meshgrid(log_sd, log_sd, np.linspace(-1.1, -0.2, 25), indexing="ij"), -1)
    plain = dataclasses.replace(model, effects_unit=None, spread=None)
    unravel = unraveller(plain, data)
    centre = float(data.centre[0])

    @jax.jit
    def over_coef(point):
        """log of the integral over the intercept: by its Gaussian shape given the variances."""

        def at(coef):
            return plain.log_marginal(
                unravel(jnp.array([coef, 2 * point[2], 2 * point[0], 2 * point[1]])), data
            )

        slope, curvature = jax.grad(at)(centre), -jax.grad(jax.grad(at))(centre)
        peak = at(centre) + 0.5 * slope**2 / curvature
        return peak + 0.5 * jnp.log(2 * jnp.pi / curvature)

    values = np.asarray(jax.lax.map(over_coef, jnp.asarray(grid.reshape(-1, 3)), batch_size=500))
    steps = np.prod([np.diff(axis)[0] for axis in (log_sd, log_sd, np.linspace(-1.1, -0.2, 25))])
    largest = values.max()
    mass = np.exp(values - largest)
    evidence = largest + np.log(mass.sum() * steps * 8)  # theta holds log variances
    assert abs(found.log_evidence - evidence) < 0.02
    params = unravel_draws(model, data, found.pool.theta)
    log_sds = -np.log(np.asarray(jax.vmap(model.precision_factor)(params))[:, [0, 1], [0, 1]])
    exact = grid.reshape(-1, 3)[:, :2]
    mean = mass @ exact / mass.sum()
    sd = np.sqrt(mass @ (exact - mean) ** 2 / mass.sum())
    weight = found.pool.weight
    ours = weight @ log_sds
    assert np.all(np.abs(ours - mean) < 0.05 * sd)
    np.testing.assert_allclose(np.sqrt(weight @ (log_sds - ours) ** 2), sd, rtol=0.05)


def crossed_rows(shape, number=3000):
    rng = np.random.default_rng(8)
    codes = np.column_stack([rng.integers(0, k, number) for k in shape])
    x = np.column_stack([np.ones(number), rng.standard_normal(number)])
    y = x @ [1.0, 0.5] + rng.standard_normal(number)
    slopes = 0.4 * x[:, 1] * rng.standard_normal(shape[0])[codes[:, 0]]
    y += slopes + sum(0.6 * rng.standard_normal(k)[c] for k, c in zip(shape, codes.T, strict=True))
    return FactorRows(x, y, codes, None, shape)


@pytest.mark.parametrize("columns", [10**6, 0], ids=["dense", "not formed"])
def test_most_eliminations_are_looked_up(columns, monkeypatch):
    monkeypatch.setattr(elimination, "MOST_COLUMNS", columns)
    random = ((0, 1), (0,))
    data = CrossedStatistics.from_rows(crossed_rows((90, 50)), random)
    model = dataclasses.replace(
        PLAIN, trunk=Identity(2), parts=(HuangWand(scale=(1.0, 2.0)), HalfT())
    ).suited(data)
    begin = laplace_start(model, data, initial_theta(jax.random.key(0), model, data))
    assert model.with_lookup(begin, data) is model  # since evaluations are fast
    monkeypatch.setattr(lookups, "LEAST_SIZE", 0)
    looking = model.with_lookup(begin, data)
    assert looking.lookup is not None
    assert looking.evaluation_size(data) < model.evaluation_size(data)
    unravel = unraveller(model, data)

    def both(own):
        return jax.jit(jax.value_and_grad(lambda t: own.log_marginal(unravel(t), data)))

    root = np.asarray(begin.factor)
    noise = np.random.default_rng(1).standard_normal((4, len(root)))
    for theta in np.asarray(begin.centre) + noise @ root.T:
        (value, slope), (near, near_slope) = both(model)(theta), both(looking)(theta)
        assert 0 < abs(value - near) < 2 * lookups.ACCURATE
        near = root.T @ (near_slope - slope)
        np.testing.assert_allclose(near, 0, atol=2 * lookups.ACCURATE)
    far = np.asarray(begin.centre) + 20 * root @ np.eye(len(root))[-1]
    for one, other in zip(both(model)(far), both(looking)(far), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)


def test_a_multiple_of_a_covariance_has_the_multiple_as_free_parameters():
    free, factor = jnp.array([0.3, -0.7, 0.2]), 1.7
    for prior, own, r in ((HuangWand(), free, 2), (HalfT(), free, 3)):
        found = parameters.multiplied(own, np.log(factor), r, prior.correlated)
        roots = (np.linalg.inv(prior.precision_factor(each, r)) for each in (own, found))
        before, after = (root.T @ root for root in roots)
        np.testing.assert_allclose(after, factor * before)
