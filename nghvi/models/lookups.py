"""Polynomials in place of most eliminations of a linear model with several grouping factors.

M depends on theta only through the covariances of the effects relative to the noise variance v. If
C holds Z' times the residuals of the least squares fit and times each column of X, and
d = (1, fitted beta - beta), then with a fixed noise variance v0 in the place of v ::

    log p(y | theta) = log_noise(theta) + (v0 / v) d' Q d / 2 - log|M| / 2,     Q = C' M^-1 C

Q and log|M| are smooth functions of few coordinates x: those in which theta holds the covariances,
once these are multiplied by v0 / v. Polynomials are fitted to them at points in a ball that holds
the posterior. Beta and v enter exactly. The error is measured at other points, and outside the ball
nothing is looked up.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy.special import betaincinv, ndtri

from nghvi._core.evaluate import AT_ONCE, draw
from nghvi._core.model import unraveller
from nghvi._core.sobol import sobol
from nghvi._core.variational import Variational
from nghvi._programs import program
from nghvi._typing import PyTree, Scalar
from nghvi.data.factors import CrossedStatistics
from nghvi.latents import selected_inverse as inverse
from nghvi.latents.schur import System
from nghvi.models import parameters
from nghvi.models.parameters import MixedParams

if TYPE_CHECKING:
    from nghvi.models.several_factors import SeveralFactors

RADII, FLATNESS = (6.0, 5.0, 4.0), 8.0
"""Radii of the ball, in posterior sds of x, the largest first; a point at the distance r counts
exp(-r^2 / FLATNESS) in the fit, since errors matter in the middle."""
MOST_TERMS, PER_TERM, MOST_DEGREE = 128, 1.5, 9
"""Most terms of a polynomial, number of points per term, and the highest power of one variable."""
WIDEST = 2.0
"""Largest distance from the centre in one variable: about a factor of seven in an sd."""
MOST_COORDINATES, LEAST_SIZE = 5, 3_000_000
"""Number of coordinates beyond which no ball has few enough terms, and the least number of numbers
touched by an evaluation for which a lookup is worth while."""
DRAWS, CHECKS, EXPECTED, ACCURATE = 200, 8, 0.01, 0.03
"""Number of draws that tell where the posterior is, how many of them check the lookup, the error in
nats for which its degree is chosen, and the largest one with which it is used."""


class Lookup(eqx.Module):
    """Polynomials in standardised x for log|M| and the lower triangle of Q, and their ball.

    The first polynomials are those of all estimates of log|M|, of which there may be several.
    """

    centre: Float[Array, " p"]
    whitening: Float[Array, "p p"]
    radius: Float[Array, ""]
    log_noise: Float[Array, ""]
    """The logarithm of v0."""
    powers: Int[Array, "t p"]
    """The degree of every term in every variable."""
    coefficients: Float[Array, "t o"]

    def standard(self, x: Float[Array, " p"]) -> Float[Array, " p"]:
        """Return x in the ball of radius one."""
        return self.whitening @ (x - self.centre) / self.radius

    def holds(self, x: Float[Array, " p"]) -> Bool[Array, ""]:
        """Return whether x is in the ball."""
        return jnp.sum(self.standard(x) ** 2) < 1

    def parts(self, x: Float[Array, " p"]) -> Float[Array, " o"]:
        """Return estimates of log|M| and the entries of Q."""
        return _terms_at(self.standard(x), self.powers) @ self.coefficients


def _terms_at(x: Float[Array, " p"], powers: Int[Array, "t p"]) -> Float[Array, " t"]:
    """Return products of Chebyshev polynomials."""
    chebyshev = [jnp.ones_like(x), x]
    for _ in range(1, MOST_DEGREE):
        chebyshev.append(2 * x * chebyshev[-1] - chebyshev[-2])
    return jnp.prod(jnp.stack(chebyshev)[powers, np.arange(powers.shape[1])], axis=1)


@program
def _all_terms(x: Float[Array, "s p"], powers: Int[Array, "t p"]) -> Float[Array, "s t"]:
    return jax.vmap(lambda each: _terms_at(each, powers))(x)


def _chosen(root: Float[np.ndarray, "p p"]) -> tuple[float, Int[np.ndarray, "t p"]] | None:
    """Return the radius of the ball and the degrees of all terms; None if these would be too many.

    In the log sd of an effect relative to the noise, log|M| is like log(1 + exp 2x), whose poles
    are pi / 2 away from the real axis: on an interval of half width h its Chebyshev series falls
    like exp(-d asinh(pi / 2h)). A log sd known to within s has a log|M| of the order of 1 / 2s^2.
    """
    sd = np.linalg.norm(root, axis=0)
    for radius in RADII:
        rate = np.arcsinh(np.pi / (2 * radius * sd))
        most = np.maximum(np.log(np.maximum(0.5 / (sd**2 * EXPECTED), 1.0)) / rate, 2.0)
        grid = np.indices((MOST_DEGREE + 1,) * len(sd)).reshape(len(sd), -1).T
        powers = grid[np.sum(grid / most, axis=1) <= 1 + 1e-9]
        few = most.max() <= MOST_DEGREE and len(powers) <= MOST_TERMS
        if few and radius * sd.max() < WIDEST:
            return radius, powers
    return None


def _combined(
    parts: Float[Array, " o"], d: Float[Array, " c"], log_ratio: Scalar | float
) -> Scalar:
    """Return (v0 / v) d'Q d / 2 - log|M| / 2; ``log_ratio``: the logarithm of v0 / v."""
    rows, columns = np.tril_indices(d.size)
    twice = np.where(rows == columns, 1.0, 2.0)
    square = parts[-rows.size :] @ (twice * d[rows] * d[columns])
    return 0.5 * (jnp.exp(log_ratio) * square - jnp.mean(parts[: -rows.size]))


def is_worth_while(model: "SeveralFactors", data: CrossedStatistics) -> bool:
    """Return whether evaluations are slow, and the coordinates few."""
    few = model.effects_prior.size(model.num_effects) <= MOST_COORDINATES
    return few and data.plan.size * max(model.num_probes, 1) > LEAST_SIZE


def coordinates(
    model: "SeveralFactors", params: MixedParams, data: CrossedStatistics, log_noise: Scalar
) -> tuple[Float[Array, " p"], Float[Array, " c"]]:
    """Return x and d; ``log_noise``: the logarithm of v0."""
    coef = model.coef(params)
    d = jnp.concatenate([jnp.ones(1), data.centre[: coef.size] - coef])
    shift = log_noise - params.dispersion[0]
    free, _ = model._free_effects(params)
    relative = [
        parameters.multiplied(part, shift, number, prior.correlated)
        for prior, part, number in model.effects_prior.each(free)
    ]
    return model.effects_from_free(jnp.concatenate(relative)), d


@eqx.filter_custom_vjp
def log_marginal(
    params: MixedParams, model: "SeveralFactors", data: CrossedStatistics
) -> Float[Array, ""]:
    """Return log p(y, theta) by the model's lookup, or by elimination outside the lookup's ball."""
    return jax.lax.cond(*_either(params, model, data), params)


@log_marginal.def_fwd
def _value_and_gradient(
    perturbed: PyTree, params: MixedParams, model: "SeveralFactors", data: CrossedStatistics
) -> tuple[Scalar, MixedParams]:
    # Differentiating a conditional would compile parts of both its branches several times.
    inside, *both = _either(params, model, data)
    return jax.lax.cond(inside, *map(jax.value_and_grad, both), params)


@log_marginal.def_bwd
def _gradient_times(
    gradient: MixedParams, factor: Scalar, perturbed: PyTree, *given: PyTree
) -> MixedParams:
    return jax.tree.map(lambda each: factor * each, gradient)


def deviations(
    params: MixedParams, model: "SeveralFactors", data: CrossedStatistics
) -> Float[Array, " s"]:
    """Return by how much each estimate of log|M| alone would change the log marginal."""
    lookup = model.lookup
    assert lookup is not None
    x, _ = coordinates(model, params, data, lookup.log_noise)
    log_dets = lookup.parts(x)[: model.num_probes]
    return -0.5 * (log_dets - jnp.mean(log_dets))


def _either(
    params: MixedParams, model: "SeveralFactors", data: CrossedStatistics
) -> tuple[Bool[Array, ""], Callable, Callable]:
    """Return whether the lookup holds, and the log marginal with and without it."""
    lookup = model.lookup
    assert lookup is not None

    def looked_up(params: MixedParams) -> Scalar:
        x, d = coordinates(model, params, data, lookup.log_noise)
        sums, log_noise = model.sums(params, data), params.dispersion[0]
        noise = inverse.log_noise(sums.square, sums.num_rows, jnp.exp(log_noise))
        effects = _combined(lookup.parts(x), d, lookup.log_noise - log_noise)
        return noise + effects + model.log_prior(params)

    def computed(params: MixedParams) -> Scalar:
        return model.computed_log_marginal(params, data)

    x, _ = coordinates(model, params, data, lookup.log_noise)
    return lookup.holds(x), looked_up, computed


@program
def coordinates_of(
    model: "SeveralFactors",
    data: CrossedStatistics,
    theta: Float[Array, "s m"],
    start: Float[Array, " m"],
) -> tuple[Float[Array, "s p"], Float[Array, "s c"], Float[Array, " s"], Float[Array, ""]]:
    """Return x, d and log(v0 / v) of every row, and log v0, which is that of ``start``."""
    unravel = unraveller(model, data)
    log_noise = unravel(start).dispersion[0]

    def one(theta: Array) -> tuple[Array, Array, Array]:
        params = unravel(theta)
        found = coordinates(model, params, data, log_noise)
        return *found, log_noise - params.dispersion[0]

    return *jax.vmap(one)(theta), log_noise


def parts_at(
    model: "SeveralFactors",
    data: CrossedStatistics,
    params: MixedParams,
    x: Float[Array, " p"],
    rows: tuple[Float[Array, "n r k"], ...] = (),
) -> tuple[Float[Array, " e"], Float[Array, "c c"]]:
    """Return estimates of log|M|, and Q, where v0 is the noise variance of ``params``.

    ``rows``: columns of rows to predict, factors in the order of elimination. They follow those of
    C in Q, which then holds the conditional covariances of the rows' effects, too.
    """
    noise_var, free, plan = jnp.exp(params.dispersion[0]), params.coef.size, data.plan
    cross = []
    for place, factor in enumerate(data.in_order):
        own = [factor.effects_cross[:, None], factor.effects_design[:, :free]]
        columns = jnp.swapaxes(jnp.concatenate(own, axis=1), 0, 1)
        # Whitening also divides by the noise variance.
        cross.append(jnp.concatenate([columns, noise_var * rows[place]]) if rows else columns)
    gram = tuple(factor.effects_gram for factor in data.in_order)
    lower = model.precision_factors(params._replace(effects=x))
    factors = tuple(lower[f] for f in plan.order)

    def whitened(cross: tuple[Array, ...]) -> System:
        sums = gram, data.cells, data.rest_cells, cross
        return System.whiten(*sums, noise_var, factors, plan)

    system = whitened(tuple(each[0] for each in cross))
    right = jax.vmap(lambda cross: whitened(cross).right)(tuple(cross))
    return inverse.parts_of_evidence(system, right, plan, model.probes(plan))


@program
def _parts(
    model: "SeveralFactors",
    data: CrossedStatistics,
    start: Float[Array, " m"],
    x: Float[Array, "s p"],
    number: Int[Array, ""],
) -> Float[Array, "s o"]:
    """Return log|M| and Q at the first ``number`` points, one after another."""
    params = unraveller(model, data)(start)

    def one(x: Array) -> Float[Array, " o"]:
        log_dets, among = parts_at(model, data, params, x)
        return jnp.concatenate([log_dets, among[np.tril_indices(len(among))]])

    def add(i: Array, found: Array) -> Array:
        return jax.lax.dynamic_update_index_in_dim(found, one(x[i]), i, 0)

    columns = params.coef.size + 1
    size = max(1, model.num_probes) + columns * (columns + 1) // 2
    return jax.lax.fori_loop(0, number, add, jnp.zeros((len(x), size)))


def fitted(model: "SeveralFactors", data: CrossedStatistics, q: Variational) -> Lookup | None:
    """Return the lookup for a posterior near q, or None if no polynomials are near enough."""
    theta, _ = draw(jax.random.key(0), q, DRAWS)
    start = jax.device_put(np.asarray(q.centre))
    found = coordinates_of(model, data, jax.device_put(theta), start)
    x, d, log_ratio, log_noise = map(np.asarray, found)
    centre, root = x.mean(axis=0), np.linalg.cholesky(np.atleast_2d(np.cov(x.T)))
    if (chosen := _chosen(root)) is None:
        return None
    radius, powers = chosen
    ball = _in_ball(len(centre), int(PER_TERM * len(powers)))
    points = np.concatenate([centre + radius * ball @ root.T, x[:CHECKS]])
    true = _all_parts(model, data, start, points)
    if not np.isfinite(true).all():
        return None
    # Terms of degree zero fill the list up, so that all lookups share programs.
    powers = np.pad(powers, [(0, MOST_TERMS - len(powers)), (0, 0)]).astype(np.int32)
    whitening = np.linalg.inv(root)
    standard = (points - centre) @ whitening.T / radius
    rows = np.asarray(_all_terms(jax.device_put(standard), jax.device_put(powers)))
    weight = np.exp(-0.5 * radius**2 * np.sum(ball**2, axis=1) / FLATNESS)[:, None]
    fitted = weight * rows[:-CHECKS], weight * true[:-CHECKS]
    coefficients = np.linalg.lstsq(*fitted, rcond=None)[0]
    missed = rows[-CHECKS:] @ coefficients - true[-CHECKS:]
    checks = zip(missed, d, log_ratio, strict=False)
    if not max(abs(float(_combined(*check))) for check in checks) < ACCURATE:
        return None
    whole = centre, whitening, np.asarray(radius), log_noise, powers, coefficients
    return Lookup(*map(jax.device_put, whole))


def _all_parts(
    model: "SeveralFactors",
    data: CrossedStatistics,
    start: Float[Array, " m"],
    points: Float[np.ndarray, "s p"],
) -> Float[np.ndarray, "s o"]:
    """Return log|M| and Q at all points, in calls of about a second each."""
    most = max(1, AT_ONCE // model.evaluation_size(data))
    found = []
    for first in range(0, len(points), most):
        number = min(most, len(points) - first)
        some = np.resize(points[first : first + number], points.shape)
        asked = jax.device_put(some), jax.device_put(np.asarray(number))
        found.append(np.asarray(_parts(model, data, start, *asked))[:number])
    return np.concatenate(found)


def _in_ball(dim: int, number: int) -> Float[np.ndarray, "s p"]:
    """Return points of the unit ball, denser near its surface, as polynomials need them."""
    log2 = int(np.ceil(np.log2(number)))
    uniform = np.clip(sobol(dim + 1, log2, np.random.default_rng(0)), 1e-9, 1 - 1e-9)[:number]
    direction = ndtri(uniform[:, 1:])
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    return np.sqrt(betaincinv(dim / 2, 0.5, uniform[:, :1])) * direction
