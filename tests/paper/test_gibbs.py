"""The Gibbs samplers against integrals of the same models' log marginal likelihood.

Every comparison is of a mean over draws with its exact value, for x and for (x - E x)^2. The
standard error comes from 100 batch means, and five of them are allowed: a t with 99 degrees of
freedom exceeds that with probability 2.5e-6. The file makes about 200 comparisons, so with new
seeds a correct sampler would fail it with probability 5e-4. Seeds are fixed.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_ndtr, logsumexp
from scipy.stats import wishart

from nghvi.data import LinearStatistics, Rows
from nghvi.models import MixedModel, MixedParams
from nghvi.networks import Identity, Perceptron
from nghvi.paper.methods.gibbs import gibbs
from nghvi.paper.methods.sweep import (
    State,
    draw_location,
    draw_noise,
    draw_precision_factor,
    precision_shapes,
)
from nghvi.priors import HalfT, HuangWand, InverseGamma, PriorError, Priors, WishartPrecision
from nghvi.responses import Gaussian, Probit, Response

STANDARD_ERRORS = 5.0
DRAWS = 5_000


class Table(NamedTuple):
    """Raw data, groups in the order of their codes: the oracles do not see ``Rows``."""

    x: np.ndarray
    y: np.ndarray
    indicator: np.ndarray

    @property
    def rows(self) -> Rows:
        codes = self.indicator.argmax(axis=1)
        return Rows.from_arrays(self.x, self.y, codes, self.indicator.shape[1])


def simulate(seed: int, q: int, random: tuple[int, ...], *, binary: bool = False) -> Table:
    """Seven groups of 0 to 9 rows, rows in random order: padding and an empty group occur."""
    rng = np.random.default_rng(seed)
    sizes = np.array([5, 9, 0, 7, 4, 6, 5])
    codes = rng.permutation(np.repeat(np.arange(sizes.size), sizes))
    x = np.column_stack([np.ones(codes.size), rng.normal(size=(codes.size, q - 1))])
    effects = rng.normal(size=(sizes.size, len(random)))
    eta = x @ np.linspace(0.8, -0.5, q) + np.sum(x[:, list(random)] * effects[codes], axis=1)
    y = eta + 0.7 * rng.normal(size=codes.size)
    return Table(x, (y > 0).astype(float) if binary else y, np.eye(sizes.size)[codes])


def build(q: int, random: tuple, response: Response, effects, noise=InverseGamma()) -> MixedModel:
    priors = Priors(coef_sd=2.0, effects=effects, noise=noise)
    return MixedModel(Identity(q), response, priors, random)


class Exact(NamedTuple):
    """Mean and variance, and the standard errors with which they are known (0: quadrature)."""

    mean: np.ndarray
    variance: np.ndarray
    mean_error: np.ndarray | float = 0.0
    variance_error: np.ndarray | float = 0.0


def mix(weight: np.ndarray, mean: np.ndarray, variance: np.ndarray | float = 0.0) -> Exact:
    """Moments of a mixture with components on the leading axis, weights from quadrature."""
    total = np.tensordot(weight, mean, 1)
    return Exact(total, np.tensordot(weight, variance + (mean - total) ** 2, 1))


def normalise(log_weight: np.ndarray) -> np.ndarray:
    return np.exp(log_weight - logsumexp(log_weight))


def grid(*axes: np.ndarray) -> np.ndarray:
    """All combinations. Equally spaced points integrate smooth functions to many digits."""
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))


def assert_agrees(draws: jax.Array | None, exact: Exact) -> None:
    """Means of x and of (x - E x)^2 within the stated number of standard errors."""
    values = np.asarray(draws).reshape(100, -1, *exact.mean.shape)
    for sample, target, error, coarse in (
        (values, exact.mean, exact.mean_error, 0.05 * np.sqrt(exact.variance)),
        ((values - exact.mean) ** 2, exact.variance, exact.variance_error, 0.1 * exact.variance),
    ):
        batches = sample.mean(axis=1)
        se = np.sqrt(batches.var(axis=0, ddof=1) / len(batches) + error**2)
        # Too few effective draws would let anything pass.
        np.testing.assert_array_less(se, coarse)
        np.testing.assert_array_less(np.abs(batches.mean(axis=0) - target), STANDARD_ERRORS * se)


PRIORS = [
    (InverseGamma(1.5, 0.3), InverseGamma(2.0, 1.0)),
    (HalfT(3.0, (0.7,)), HalfT(2.0, 1.5, 0.4)),
    (WishartPrecision(0.7, 2.5), InverseGamma()),
    (HuangWand(2.5, 0.8), InverseGamma()),
]


@pytest.mark.parametrize(("effects", "noise"), PRIORS, ids=lambda prior: type(prior).__name__)
def test_linear_agrees_with_quadrature(effects: object, noise: InverseGamma | HalfT) -> None:
    table, model = simulate(1, 1, (0,)), build(1, (0,), Gaussian(), effects, noise)
    points = grid(np.arange(-4, 3, 0.1), np.arange(-20, 9, 0.3))
    free = points[:, 1:] * (-0.5 if isinstance(effects, WishartPrecision | HuangWand) else 1.0)
    weight, coef, precision = integrate_coef(model, table, points[:, :1], free)
    keep = not isinstance(effects, WishartPrecision)
    draws = gibbs(jax.random.key(2), model, table.rows, draws=DRAWS, burn_in=200, keep_effects=keep)
    assert_agrees(draws.coef[..., 0], mix(weight, coef, 1 / precision))
    assert_agrees(jnp.log(draws.noise_var), mix(weight, points[:, 0]))
    assert_agrees(jnp.log(draws.effects_cov[..., 0, 0]), mix(weight, points[:, 1]))

    # alpha_k | coef, .. ~ N(inner_k (sum_k - count_k coef) / v, inner_k), from the raw data.
    noise_var, variance = np.exp(points).T[:, :, None]
    counts, sums = table.indicator.sum(axis=0), table.indicator.T @ table.y
    inner = 1 / (1 / variance + counts / noise_var)
    mean = inner * (sums - counts * coef[:, None]) / noise_var
    exact = mix(weight, mean, inner + (inner * counts / noise_var) ** 2 / precision[:, None])
    if keep:
        assert_agrees(draws.effects[..., 0], exact)
        np.testing.assert_allclose(draws.effects_mean, draws.effects.mean((0, 1)), atol=1e-10)
        np.testing.assert_allclose(draws.effects_sd, draws.effects.std((0, 1)), rtol=1e-10)
    else:
        # Without draws there are no batches: a tenth of an sd is seven standard errors or so.
        assert draws.effects is None
        sd = np.sqrt(exact.variance)
        np.testing.assert_array_less(np.abs(draws.effects_mean[:, 0] - exact.mean), 0.1 * sd)
        np.testing.assert_allclose(draws.effects_sd[:, 0], sd, rtol=0.1)


def integrate_coef(
    model: MixedModel, table: Table, dispersion: np.ndarray, free: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weight of each point, and mean and precision of the only coefficient there.

    log_marginal is quadratic in the coefficient: three values integrate it out exactly.
    """
    rows = table.rows

    def value(coef: jax.Array, dispersion: jax.Array, free: jax.Array) -> jax.Array:
        return model.log_marginal(MixedParams((), coef[None], dispersion, free), rows)

    each = jax.jit(jax.vmap(jax.vmap(value, (None, 0, 0)), (0, None, None)))
    below, middle, above = np.asarray(each(np.array([-1.0, 0.0, 1.0]), dispersion, free))
    precision = 2 * middle - above - below
    coef = 0.5 * (above - below) / precision
    log_weight = middle + 0.5 * coef**2 * precision - 0.5 * np.log(precision)
    return normalise(log_weight), coef, precision


def test_location_draw_is_the_joint_gaussian_conditional() -> None:
    q, random, noise_var = 3, (2, 0), 0.6
    table, model = simulate(3, q, random), build(q, random, Gaussian(), HuangWand())
    precision = np.array([[2.0, -0.9], [-0.9, 0.8]])
    statistics = LinearStatistics.from_rows(table.rows, random)
    factor, none = jnp.linalg.cholesky(precision), jnp.zeros((7, 2))
    state = State(jnp.zeros(q), none, jnp.array(noise_var), factor, jnp.array(jnp.inf))

    def draw(key: jax.Array) -> jax.Array:
        noise = draw_noise(key, model, statistics)
        coef, effects = draw_location(noise, state, model, statistics)
        return jnp.concatenate([coef, statistics.in_original_order(effects).ravel()])

    draws = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(4), 4 * DRAWS))
    # All coefficients and effects as one regression; pairs of draws multiply to covariances.
    blocks = table.indicator[:, :, None] * table.x[:, None, list(random)]
    joint = np.hstack([table.x, blocks.reshape(len(table.y), -1)])
    prior = np.zeros((q + 14, q + 14))
    prior[:q, :q] = np.eye(q) / 2.0**2
    prior[q:, q:] = np.kron(np.eye(7), precision)
    covariance = np.linalg.inv(joint.T @ joint / noise_var + prior)
    mean = covariance @ joint.T @ table.y / noise_var
    assert_agrees(draws, Exact(mean, np.diag(covariance)))
    turn = np.random.default_rng(5).normal(size=(q + 14, 20))
    assert_agrees(draws @ turn, Exact(mean @ turn, np.diag(turn.T @ covariance @ turn)))


@pytest.mark.parametrize("prior", [WishartPrecision(0.7, 4.5), HuangWand(2.5, 0.8)])
def test_precision_draw_keeps_the_conditional_of_correlated_effects(
    prior: WishartPrecision | HuangWand,
) -> None:
    effects = np.random.default_rng(6).normal(size=(9, 2)) @ np.array([[1.0, 0.7], [0.0, 0.9]])
    shapes = precision_shapes(prior, 2, len(effects))
    keys = jax.random.split(jax.random.key(7))
    gammas = jax.random.gamma(keys[0], shapes, (DRAWS, 4, *shapes.shape))
    normals = jax.random.normal(keys[1], (DRAWS, 4, 2, 2))

    def advance(factor: jax.Array, noise: tuple) -> tuple[jax.Array, jax.Array]:
        factor = draw_precision_factor(*noise, prior, factor, jnp.asarray(effects))
        return factor, factor

    start = jnp.broadcast_to(jnp.eye(2), (4, 2, 2))
    factors = jax.lax.scan(jax.vmap(advance), start, (gammas, normals))[1]
    assert not np.any(np.triu(factors, 1))

    # Another Wishart prior gives an independent proposal; the priors' ratio is the weight.
    base = WishartPrecision(50.0, 3.5)
    rate = np.eye(2) / 50.0 + effects.T @ effects
    matrices = wishart(3.5 + len(effects), np.linalg.inv(rate)).rvs(50_000, random_state=8)
    proposals = np.linalg.cholesky(matrices)
    free = describe(proposals)
    log_ratio = jax.jit(jax.vmap(lambda f: prior.log_density(f, 2) - base.log_density(f, 2)))
    weight = normalise(np.asarray(log_ratio(free)))
    mean = weight @ free
    square = (free - mean) ** 2
    variance = weight @ square
    errors = [np.sqrt(weight**2 @ (x - m) ** 2) for x, m in ((free, mean), (square, variance))]
    draws = describe(np.swapaxes(factors, 0, 1).reshape(-1, 2, 2))
    assert_agrees(draws, Exact(mean, variance, *errors))


def describe(lower: np.ndarray) -> np.ndarray:
    """The log-Cholesky coordinates of the priors, r = 2."""
    return np.stack([np.log(lower[..., 0, 0]), lower[..., 1, 0], np.log(lower[..., 1, 1])], -1)


def test_probit_agrees_with_quadrature() -> None:
    prior = InverseGamma(2.0, 0.8)
    # A seed with both outcomes in every group: effects then have light tails.
    table, model = simulate(5, 1, (0,), binary=True), build(1, (0,), Probit(), prior)
    rows, fine = table.rows, dataclasses.replace(model, num_nodes=15)
    # Coefficients spread with the effects, so the grid is one of coef / sqrt(1 + variance).
    points = grid(np.arange(-2.5, 2.5, 0.15), np.arange(-6, 8, 0.2))
    variance = np.exp(points[:, 1])
    coef = points[:, 0] * np.sqrt(1 + variance)

    def log_marginal(point: jax.Array) -> jax.Array:
        return fine.log_marginal(MixedParams((), point[:1], jnp.zeros(0), point[1:]), rows)

    theta = jnp.asarray(np.column_stack([coef, points[:, 1]]))
    value = jax.jit(lambda x: jax.lax.map(log_marginal, x, batch_size=250))(theta)
    weight = normalise(np.asarray(value) + 0.5 * np.log1p(variance))
    draws = gibbs(jax.random.key(10), model, rows, draws=DRAWS, burn_in=200)
    assert_agrees(draws.coef[..., 0], mix(weight, coef))
    assert_agrees(jnp.log(draws.effects_cov[..., 0, 0]), mix(weight, points[:, 1]))
    np.testing.assert_array_equal(draws.noise_var, 1.0)

    # Effects: one more grid, over u = alpha / sd, from the raw counts of either outcome.
    u = np.arange(-7, 7, 0.25)
    effect = np.sqrt(variance)[:, None] * u
    ones, zeros = table.indicator.T @ table.y, table.indicator.T @ (1 - table.y)
    eta = coef[:, None] + effect
    log_each = np.multiply.outer(ones, log_ndtr(eta)) + np.multiply.outer(zeros, log_ndtr(-eta))
    log_each -= 0.5 * u**2
    inner = np.exp(log_each - logsumexp(log_each, axis=-1, keepdims=True))
    mean = np.sum(inner * effect, axis=-1)
    spread = np.sum(inner * (effect - mean[..., None]) ** 2, axis=-1)
    assert_agrees(draws.effects[..., 0], mix(weight, mean.T, spread.T))


def test_linear_without_effects() -> None:
    table, model = simulate(11, 1, ()), build(1, (), Gaussian(), HuangWand())
    points = grid(np.arange(-4, 3, 0.05))
    weight, coef, precision = integrate_coef(model, table, points, np.zeros((len(points), 0)))
    draws = gibbs(jax.random.key(12), model, table.rows, draws=DRAWS, burn_in=50)
    assert_agrees(draws.coef[..., 0], mix(weight, coef, 1 / precision))
    assert_agrees(jnp.log(draws.noise_var), mix(weight, points[:, 0]))
    assert draws.effects_cov.shape == (4, DRAWS, 0, 0)
    assert draws.effects.shape == (4, DRAWS, 7, 0)
    assert draws.effects_mean.shape == draws.effects_sd.shape == (7, 0)

    keys = jax.random.key(12), jax.random.key(13)
    again, other = (gibbs(key, model, table.rows, draws=DRAWS, burn_in=50) for key in keys)
    np.testing.assert_array_equal(again.coef, draws.coef)
    firsts = np.concatenate([draws.coef[:, 0, 0], other.coef[:, 0, 0]])
    assert np.unique(firsts).size == 8, "chains and keys must not share their random numbers"


def test_probit_without_effects() -> None:
    table, model = simulate(14, 2, (), binary=True), build(2, (), Probit(), HuangWand())
    points = grid(np.arange(-3, 4, 0.1), np.arange(-4, 3, 0.1))
    log_value = log_ndtr((points @ table.x.T) * (2 * table.y - 1)).sum(axis=1)
    log_value -= 0.5 * np.sum(points**2, axis=1) / model.priors.coef_sd**2
    draws = gibbs(jax.random.key(15), model, table.rows, draws=DRAWS, burn_in=50)
    assert_agrees(draws.coef, mix(normalise(log_value), points))


def test_errors_name_reason_and_remedy() -> None:
    rows, key = simulate(1, 2, (1,)).rows, jax.random.key(0)
    good = build(2, (1,), Gaussian(), HuangWand())
    deep = MixedModel(Perceptron(2, (3,)), Gaussian(), Priors(), (0,))
    with pytest.raises(ValueError, match=r"Perceptron(.|\n)*Use Identity"):
        gibbs(key, deep, rows)
    with pytest.raises(ValueError, match=r"3 columns.*Identity\(rows"):
        gibbs(key, build(3, (1,), Gaussian(), HuangWand()), rows)
    with pytest.raises(ValueError, match=r"not of NoneType\. Use one of them"):
        gibbs(key, build(2, (1,), None, HuangWand()), rows)  # type: ignore[arg-type]
    with pytest.raises(PriorError, match="df must exceed 1"):
        gibbs(key, build(2, (0, 1), Gaussian(), WishartPrecision(1.0, 0.5)), rows)
    for setting in ({"draws": 0}, {"burn_in": -1}, {"chains": 0}, {"draws": 2.5}):
        with pytest.raises(ValueError, match=f"{next(iter(setting))} must be an integer"):
            gibbs(key, good, rows, **setting)  # type: ignore[arg-type]
