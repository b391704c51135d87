"""Posterior predictions for known groups, for groups never seen, and without effects.

The predictive distribution is a mixture over draws of theta, and over nodes or draws of the effects
(:mod:`nghvi.posterior.request`). Means, densities, distribution functions and quantiles are those
of the mixture; joint draws share theta and the effects between rows.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, Int

from nghvi._core.response import Support
from nghvi._linalg.small import one_thread
from nghvi._programs import program
from nghvi.data.blocks import padded
from nghvi.posterior.effects import effects_of
from nghvi.posterior.mixed_posterior import MixedPosterior, params_at
from nghvi.posterior.request import Draw, Inputs, Predictor, held, predictor, predictors
from nghvi.posterior.request import Request as Request
from nghvi.recipes.importance import Pool


def inputs_once(
    posterior: MixedPosterior, request: Request, *, nodes: bool = False
) -> tuple[Inputs, Int[np.ndarray, " n"], Int[Array, " padded"]]:
    """Return the distinct inputs, which of them each row has, and these positions padded."""
    posterior, request = held(posterior, request)
    distinct, index = request.distinct()
    inputs = Inputs.of(posterior, distinct.rows(0, len(distinct.x)), nodes=nodes)
    return inputs, index, jax.device_put(filled(index, padded(len(index))))


def filled(values: np.ndarray, size: int) -> np.ndarray:
    """Return values padded with zeros."""
    return np.concatenate([values, np.zeros(size - len(values), values.dtype)])


NUMBERS_AT_ONCE = 4e7
"""How many numbers, draws times rows, are in memory at a time for quantiles."""
CLOSE_ENOUGH, MOST_STEPS = 1e-7, 60
"""How closely a quantile is found, in predictive sds, and in how many steps at most."""
OF_RANKS = 1
"""The stream of random numbers that places observations within their steps."""


class Predicted(NamedTuple):
    """Moments of the predictive distribution of each row, on the fitted scale."""

    mean: Float[np.ndarray, " n"]
    sd: Float[np.ndarray, " n"]
    log_density: Float[np.ndarray, " n"]
    """Log predictive density at y; meaningless if no y was given."""


@one_thread
def predict(posterior: MixedPosterior, request: Request, y: np.ndarray | None = None) -> Predicted:
    """Return predictive moments of each row, and log predictive densities at y."""
    n = len(request.x)
    inputs, index, which = inputs_once(posterior, request, nodes=True)
    observed = jax.device_put(filled(np.zeros(n) if y is None else y, len(which)))
    mean, sd, log_density = map(np.asarray, _accumulate(inputs, which, observed, request.effects))
    return Predicted(mean[index], sd[index], log_density[:n])


def cdf(posterior: MixedPosterior, request: Request, y: np.ndarray) -> Float[np.ndarray, " n"]:
    """Return P(Y <= y) of each row's predictive distribution."""
    return around(posterior, request, y)[1]


@one_thread
def around(
    posterior: MixedPosterior, request: Request, y: np.ndarray
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return P(Y < y) and P(Y <= y) of each row's predictive distribution."""
    # Distribution functions of counts are sums, too expensive at every node.
    classes = posterior.model.response.classes
    inputs, _, which = inputs_once(posterior, request, nodes=classes)
    observed = jax.device_put(filled(y, len(which)))
    below, up_to = map(np.asarray, _around(inputs, which, observed, request.effects))
    return below[: len(y)], up_to[: len(y)]


def between(below: np.ndarray, up_to: np.ndarray, seed: int) -> Float[np.ndarray, " n"]:
    """A number drawn between each P(Y < y) and P(Y <= y), uniform where predictions are right."""
    # Data are often simulated with the same seed: drawn by that very stream, the number would
    # know whether a zero is an extra one.
    rng = np.random.default_rng([seed, OF_RANKS])
    return below + rng.random(len(below)) * (up_to - below)


@one_thread
def interval(
    posterior: MixedPosterior, request: Request, level: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return both ends of each row's central interval: quantiles of the mixture, not of draws."""
    posterior, request = held(posterior, request)
    tails = jnp.array([0.5 - level / 2, 0.5 + level / 2])
    step = max(1, int(NUMBERS_AT_ONCE // request.draws))
    request, index = request.distinct()
    ends = []
    for start in range(0, len(request.x), step):
        stop = min(start + step, len(request.x))
        inputs = Inputs.of(posterior, request.rows(start, stop))
        ends.append(np.asarray(_quantiles(inputs, tails, request.effects))[:, : stop - start])
    lower, upper = np.concatenate(ends, axis=1)[:, index]
    return lower, upper


def sample(posterior: MixedPosterior, request: Request) -> Float[np.ndarray, "s n"]:
    """Draw responses jointly: one theta and one set of effects per draw, shared within groups."""
    return _joint_draws(posterior, request, noise=True)


def predictor_draws(posterior: MixedPosterior, request: Request) -> Float[np.ndarray, "s n"]:
    """Draw every row's mean response jointly; theta and effects are as in :func:`sample`."""
    return _joint_draws(posterior, request, noise=False)


def distance_of_starts(
    posterior: MixedPosterior, request: Request
) -> Float[np.ndarray, " n"] | None:
    """Return how far the means of a network's two starts are apart, in posterior sds of both.

    Where they agree this is near zero; it cannot exceed two. None if there is only one start.
    """
    inference = posterior.inference
    theta, member = inference.pool.theta, inference.pool.member
    if member is None:
        return None

    def of(start: int) -> np.ndarray:
        own = dataclasses.replace(inference, pool=Pool.plain(theta[member == start]))
        return predictor_draws(posterior._replace(inference=own), request)

    one, other = of(0), of(1)
    return np.abs(one.mean(axis=0) - other.mean(axis=0)) / np.concatenate([one, other]).std(axis=0)


@one_thread
def _joint_draws(
    posterior: MixedPosterior, request: Request, *, noise: bool
) -> Float[np.ndarray, "s n"]:
    n = len(request.x)
    posterior, request = held(posterior, request)
    inputs = Inputs.of(posterior, request.rows(0, n), averaged=False, moved=not noise)
    # At least one unseen group more than the codes name, rounded so that few programs compile.
    num_known = effects_of(posterior.model).num_known(posterior.parts)
    beyond = np.atleast_1d(request.codes.max(axis=0, initial=0) + 2 - num_known)
    number = tuple(max(padded(int(each)), 1) for each in beyond)
    return np.asarray(_draw(inputs, request.effects, number, noise))[:, :n]


@program
def _accumulate(
    inputs: Inputs, which: Int[Array, " n"], y: Float[Array, " n"], effects: bool
) -> tuple[Array, Array, Array]:
    """Return mean and sd of each input, and the log density of each y, without storing draws."""
    model = inputs.model
    response, response_of_rows = (model.response_at(x) for x in (inputs.x, inputs.x[which]))

    def add(total: tuple, at: Predictor) -> tuple[tuple, None]:
        mean, spread = response.moments(at.location, at.variance, at.dispersion)
        of_rows = at.location[which], at.variance[which], at.dispersion
        density = response_of_rows.log_predictive(y, *of_rows)
        # Welford's update: no digits cancel if the mean is large relative to its variation.
        so_far, average, square, log_sum = total
        share = jnp.maximum(at.share, np.finfo(float).tiny)
        moved = average + (mean - average) * share / (so_far + share)
        square = square + share * (spread + (mean - average) * (mean - moved))
        log_sum = jnp.logaddexp(log_sum, jnp.log(share)[which] + density)
        return (so_far + share, moved, square, log_sum), None

    def add_draw(total: tuple, draw: Draw) -> tuple[tuple, None]:
        return jax.lax.scan(add, total, predictors(inputs, draw, effects))

    zero = jnp.zeros(len(inputs.x))
    begin = (zero, zero, zero, jnp.full(len(y), -jnp.inf))
    (_, mean, square, log_sum), _ = jax.lax.scan(add_draw, begin, inputs.draws)
    return mean, jnp.sqrt(square), log_sum


@program
def _around(
    inputs: Inputs, which: Int[Array, " n"], y: Float[Array, " n"], effects: bool
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Return P(Y < y) and P(Y <= y) averaged over draws."""
    response = inputs.model.response_at(inputs.x[which])

    def add(total: tuple[Array, Array], at: Predictor) -> tuple[tuple[Array, Array], None]:
        share = at.share[which]
        below, up_to = response.around(y, at.location[which], at.variance[which], at.dispersion)
        return (total[0] + share * below, total[1] + share * up_to), None

    def add_draw(total: tuple[Array, Array], draw: Draw) -> tuple[tuple[Array, Array], None]:
        return jax.lax.scan(add, total, predictors(inputs, draw, effects))

    zero = jnp.zeros(len(y))
    return jax.lax.scan(add_draw, (zero, zero), inputs.draws)[0]


@program
def _quantiles(inputs: Inputs, levels: Array, effects: bool) -> Float[Array, "l n"]:
    """Quantiles of each row's mixture, on the support of the response."""
    response = inputs.model.response_at(inputs.x)
    support = response.support
    parts = jax.lax.map(lambda draw: predictor(inputs, draw, effects)[:3], inputs.draws)
    mean, spread = jax.vmap(response.moments)(*parts)
    sd = jnp.sqrt(jnp.max(spread, axis=0))
    first, last = jnp.min(mean, axis=0), jnp.max(mean, axis=0)
    usual = jnp.sqrt(jnp.mean(spread, axis=0) + jnp.var(mean, axis=0))

    def up_to(y: Array) -> Array:
        if support.discrete:  # one draw at a time: sums over counts end at the largest
            found = jax.lax.map(lambda part: response.cdf(y, *part), parts)
        else:
            found = jax.vmap(lambda *part: response.cdf(y, *part))(*parts)
        return jnp.mean(found, axis=0)

    def density(y: Array) -> Array:
        found = jax.vmap(lambda *part: response.log_predictive(y, *part))(*parts)
        return jnp.mean(jnp.exp(found), axis=0)

    def find(level: Array) -> Array:
        # Cantelli's inequality: no distribution has its quantile farther from the mean.
        ends = first - sd * jnp.sqrt(1 / level - 1), last + sd * jnp.sqrt(level / (1 - level))
        if support.discrete:
            return _least_value(up_to, level, ends, support)
        low, high = (jnp.clip(end, support.low, support.high) for end in ends)
        normal = jnp.mean(mean, axis=0) + usual * ndtri(level)
        guess = jnp.where((low < normal) & (normal < high), normal, 0.5 * (low + high))
        found, ends = _point(up_to, density, level, (low, high), guess, CLOSE_ENOUGH * usual)
        if not support.closed:
            return found
        # An end of the support that has probability of its own may be the quantile.
        stuck = (ends[0] == low) & (low == support.low)
        found = jnp.where(stuck, support.low, found)
        return jnp.where((ends[1] == high) & (high == support.high), support.high, found)

    return jax.lax.map(find, levels)


Ends = tuple[Float[Array, " n"], Float[Array, " n"]]


def _narrowed(level: Array, at: Array, up_to: Array, ends: Ends) -> Ends:
    """Narrow the bracket of a quantile by the probability ``up_to`` a point inside it."""
    below = up_to < level
    return jnp.where(below, at, ends[0]), jnp.where(below, ends[1], at)


def _least_value(
    up_to: Callable[[Array], Array], level: Array, ends: Ends, support: Support
) -> Float[Array, " n"]:
    """Return the least whole number up to which there is that probability, by bisection."""
    whole = jnp.floor(ends[0]) - 1, jnp.ceil(ends[1])
    low, high = (jnp.clip(end, support.low - 1, support.high) for end in whole)

    def halve(ends: Ends) -> Ends:
        middle = jnp.floor(0.5 * (ends[0] + ends[1]))
        return _narrowed(level, middle, up_to(middle), ends)

    return jax.lax.while_loop(lambda ends: jnp.any(ends[1] - ends[0] > 1), halve, (low, high))[1]


def _point(
    up_to: Callable[[Array], Array],
    density: Callable[[Array], Array],
    level: Array,
    ends: Ends,
    guess: Float[Array, " n"],
    close: Float[Array, " n"],
) -> tuple[Float[Array, " n"], Ends]:
    """Find where the probability reaches a level by Newton steps, or bisection if they lead out.

    Distribution functions are expensive: about five Newton steps replace thirty bisections.
    Returns the point and its final bracket.
    """

    def step(state: tuple[Array, Array, Array, Ends]) -> tuple[Array, Array, Array, Ends]:
        count, at, _, ends = state
        probability = up_to(at)
        ends = _narrowed(level, at, probability, ends)
        ahead = at + (level - probability) / jnp.maximum(density(at), np.finfo(float).tiny)
        # The ends count as inside, so that a search that has arrived at one stays there.
        inside = (ends[0] <= ahead) & (ahead <= ends[1])
        ahead = jnp.where(inside, ahead, 0.5 * (ends[0] + ends[1]))
        return count + 1, ahead, jnp.abs(ahead - at), ends

    def goes_on(state: tuple[Array, Array, Array, Ends]) -> Array:
        return (state[0] < MOST_STEPS) & jnp.any(state[2] > close)

    begin = (jnp.zeros((), int), guess, jnp.full_like(guess, jnp.inf), ends)
    _, found, _, ends = jax.lax.while_loop(goes_on, step, begin)
    return found, ends


@program
def _draw(
    inputs: Inputs, effects: bool, num_new: tuple[int, ...], noise: bool
) -> Float[Array, "s n"]:
    """Return responses, or without ``noise`` their means, for every draw of theta and effects."""
    model, of_groups = inputs.model, effects_of(inputs.model)
    response = model.response_at(inputs.x)

    def one(draw: tuple[Array, Array]) -> Array:
        params = params_at(model, inputs.parts[0], draw[1])
        key_effects, key_new, key_noise = jax.random.split(draw[0], 3)
        h = model.features(params, inputs.x)
        eta = h @ model.all_coef(params)
        if effects and model.num_effects:
            known = of_groups.draw_all(key_effects, params, inputs.parts)
            tables = of_groups.with_new(known, params, key_new, num_new)
            eta = eta + of_groups.at_rows(model.design(h), tables, inputs.codes)
        if not noise:
            return response.mean(eta, model.dispersion(params))
        return response.sample(key_noise, eta, model.dispersion(params))

    return jax.lax.map(one, (inputs.draws.key, inputs.draws.theta))
