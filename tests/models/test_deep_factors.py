"""A network with several grouping factors against dense algebra, and against the linear model."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.scipy.stats import multivariate_normal

from nghvi.data.factors import CrossedStatistics
from nghvi.data.panel import CrossedPanel
from nghvi.models.parameters import LinearStart
from nghvi.models.several_factors import SeveralFactors
from nghvi.networks import Identity, Perceptron, Skip
from nghvi.priors import HalfT, HuangWand, Priors
from nghvi.responses import RESPONSES
from tests.latents.test_schur import Example

TRUNK = Skip(Perceptron(2, (3,), "tanh"), 2)
"""Features: 1, two inputs, three learnt ones."""
EFFECTS = {
    "crossed": ((0, 1, 4), (0,)),
    "slopes of both": ((0, 3), (1, 4, 5)),
    "three": ((0,), (0, 2, 3), (5,)),
    "nested": ((0, 4), (0,), (0, 3)),
    "nested and crossed": ((0,), (0, 1), (0, 5)),
}


def repeated(rows, rng):
    """Rows of which some have the same inputs and levels, so that responses are merged."""
    again = np.sort(rng.integers(0, len(rows.y), 2 * len(rows.y)))
    return dataclasses.replace(
        rows,
        x=rows.x[again, 1:],
        y=rows.y[again] + 0.3 * rng.standard_normal(len(again)),
        codes=rows.codes[again],
        weight=None if rows.weight is None else rows.weight[again],
    )


def setting(name, weighted=False):
    """The model, its data, parameters, and the rows as they were given."""
    rows = repeated(Example(name, weighted).rows, np.random.default_rng(8))
    random = EFFECTS[name]
    parts = tuple(HuangWand() if f == 0 else HalfT() for f in range(len(random)))
    model = SeveralFactors(
        *(TRUNK, RESPONSES["gaussian"](), Priors(), sum(random, ())),
        parts=parts,
        effects=tuple(map(len, random)),
    )
    # Levels that were drawn away stay in the plan, without rows.
    data = CrossedPanel.from_rows(rows, random)
    start = model.init_params(jax.random.key(1), data)
    flat, unravel = ravel_pytree(start)
    return model, data, unravel(flat + 0.3 * jnp.cos(jnp.arange(flat.size))), rows


def dense_covariance(model, params, rows, features):
    """The covariance that the effects add to every two rows."""
    lowers = model.precision_factors(params)
    total = 0.0
    for f, (columns, lower) in enumerate(zip(model.by_factor, lowers, strict=True)):
        z = features[:, np.array(columns)]
        same = rows.codes[:, f][:, None] == rows.codes[:, f]
        total += same * (z @ jnp.linalg.inv(lower @ lower.T) @ z.T)
    return total


def dense_log_marginal(model, params, rows):
    x, y, codes = (np.asarray(a) for a in (rows.x, rows.y, rows.codes))
    if rows.weight is not None:
        x, y, codes = (np.repeat(a, rows.weight.astype(int), axis=0) for a in (x, y, codes))
    rows = dataclasses.replace(rows, x=x, y=y, codes=codes)
    features = model.features(params, jnp.asarray(x))
    noise = jnp.exp(params.dispersion[0]) * jnp.eye(len(y))
    covariance = dense_covariance(model, params, rows, features) + noise
    return multivariate_normal.logpdf(jnp.asarray(y), features @ model.coef(params), covariance)


@pytest.mark.parametrize("name", EFFECTS)
def test_log_marginal_and_its_gradient_are_the_dense_ones(name):
    model, data, params, rows = setting(name, weighted=name == "crossed")
    assert len(data.rows.y) < len(rows.y)
    assert data.num_rows == (len(rows.y) if rows.weight is None else rows.weight.sum())
    flat, unravel = ravel_pytree(params)
    found = jax.jit(jax.value_and_grad(lambda t: model.log_marginal(unravel(t), data)))(flat)
    expected = jax.jit(
        jax.value_and_grad(
            lambda t: dense_log_marginal(model, unravel(t), rows) + model.log_prior(unravel(t))
        )
    )(flat)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-9)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-6, atol=1e-7)


def test_a_network_that_is_off_leaves_the_linear_model():
    model, _, params, rows = setting("crossed")
    off = params.weights._replace(size=jnp.zeros(1))
    linear = dataclasses.replace(model, trunk=Identity(3))
    columns = dataclasses.replace(rows, x=np.column_stack([np.ones(len(rows.x)), rows.x]))
    random = ((0, 1), (0,))
    linear = dataclasses.replace(linear, random=(0, 1, 0), effects=(2, 1))
    summed = CrossedStatistics.from_rows(columns, random)
    deep = dataclasses.replace(model, random=(0, 1, 0), effects=(2, 1))
    panel = CrossedPanel.from_rows(rows, random)
    effects = params.effects[: linear.effects_prior.size(3)]
    alone = params._replace(weights=(), coef=params.coef[:3], effects=effects)
    beside = params._replace(weights=off, effects=effects)
    found = deep.log_marginal(beside, panel) - deep.log_prior(beside)
    expected = linear.log_marginal(alone, summed) - linear.log_prior(alone)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_conditional_moments_are_the_dense_ones():
    model, data, params, rows = setting("slopes of both")
    moments = jax.jit(lambda: model.moments_by_factor(jax.random.key(0), params, data))()
    means = data.labelled(tuple(mean for mean, _ in moments))
    covariances = data.labelled(tuple(jnp.moveaxis(cov, -1, 0) for _, cov in moments))
    features = np.asarray(model.features(params, jnp.asarray(rows.x)))
    total = np.array(dense_covariance(model, params, rows, jnp.asarray(features)))
    total += float(jnp.exp(params.dispersion[0])) * np.eye(len(rows.y))
    error = rows.y - features @ np.asarray(model.coef(params))
    for f, lower in enumerate(map(np.asarray, model.precision_factors(params))):
        prior = np.linalg.inv(lower @ lower.T)
        z = features[:, model.by_factor[f]]
        for level in (0, rows.num_levels[f] - 1):
            own = (rows.codes[:, f] == level)[:, None] * z @ prior
            np.testing.assert_allclose(means[f][level], own.T @ np.linalg.solve(total, error))
            expected = prior - own.T @ np.linalg.solve(total, own)
            np.testing.assert_allclose(covariances[f][level], expected, atol=1e-10)


def test_the_start_knows_the_variances_of_every_factor():
    rng = np.random.default_rng(0)
    a, b = (each.ravel() for each in np.meshgrid(range(40), range(25)))
    x = rng.standard_normal((1000, 2))
    first, second = rng.standard_normal(40), 2 * rng.standard_normal(25)
    y = 1 + x @ [0.5, -1.0] + first[a] + second[b]
    rows = Example("crossed").rows
    rows = dataclasses.replace(
        rows, x=x, y=y + 0.5 * rng.standard_normal(1000), codes=np.column_stack([a, b])
    )
    rows = dataclasses.replace(rows, num_levels=(40, 25))
    start = LinearStart.of_factors(CrossedPanel.from_rows(rows, ((0, 1), (0,))), (2, 1))
    np.testing.assert_allclose(start.coef[1:], [0.5, -1], atol=0.2)
    variances = [np.var(each, ddof=1) for each in (first, first, second)]
    np.testing.assert_allclose(start.between, variances, rtol=0.1)
    assert start.noise < 1.2 * (variances[0] + 0.25)
