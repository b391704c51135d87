"""Posterior predictions for known groups, for groups never seen, and without effects.

Given a draw theta_j, the linear predictor of a row with features h is normal::

    known group     N(h'(beta + m_k), z'V_k z)     m_k, V_k: conditional moments given the data
    unseen group    N(h'beta, z'Omega z)           its effects come from the population
    zero            h'beta                         no effects at all

The predictive distribution is the mixture over j. Where the conditional is not normal, the effects
of known groups are drawn instead: the draw is in the location. Where a mean over the mixture is all
that is asked for, and it costs little, they are integrated by the quadrature of the fit, and those
of new groups by the trapezoidal rule, whose grid is shifted differently for every j.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, Int
from scipy import special

from nghvi._core.response import Support
from nghvi._linalg.small import one_thread
from nghvi._programs import program
from nghvi._typing import Data, Key
from nghvi.data.blocks import padded
from nghvi.data.panel import distinct_rows
from nghvi.data.working_copy import StreamedRows
from nghvi.models.mixed import MixedModel
from nghvi.models.parameters import MixedParams
from nghvi.models.several_factors import SeveralFactors
from nghvi.posterior.effects import effects_of
from nghvi.posterior.expansion import Expansion, expanded
from nghvi.posterior.mixed_posterior import MixedPosterior, params_at
from nghvi.recipes.importance import Pool


class Request(NamedTuple):
    """Rows to predict, on the fitted scale."""

    x: Float[np.ndarray, "n d"]
    codes: Int[np.ndarray, "n ..."]
    """Position of each row's group among the known groups; unseen groups have further numbers.

    With several factors there is one column per factor.
    """
    effects: bool
    """Whether predictions include effects."""
    draws: int
    seed: int

    def rows(self, start: int, stop: int) -> "Request":
        """Return some of the rows, padded to one of few lengths so that few programs compile."""
        x, codes = self.x[start:stop], self.codes[start:stop]
        more = padded(len(x)) - len(x)
        filled = np.concatenate([x, np.repeat(x[:1], more, axis=0)])
        repeated = np.concatenate([codes, np.repeat(codes[:1], more, axis=0)])
        return self._replace(x=filled, codes=repeated)

    def distinct(self) -> tuple["Request", Int[np.ndarray, " n"]]:
        """Return the rows that differ in inputs or group, and which of them each row equals."""
        first, index = distinct_rows(np.column_stack([self.x, self.codes]))
        return self._replace(x=self.x[first], codes=self.codes[first]), index


def held(posterior: MixedPosterior, request: Request) -> tuple[MixedPosterior, Request]:
    """Load the rows on disk that belong to the groups of a request; return both for memory.

    Data that are in memory already stay as they are.
    """
    data = posterior.data
    if not isinstance(data, StreamedRows):
        return posterior, request
    known = request.codes < data.num_groups
    groups, index = np.unique(request.codes[known], return_inverse=True)
    rows, position = data.some_groups(groups)
    codes = request.codes + rows.num_groups - data.num_groups
    codes[known] = position[index]
    inference = dataclasses.replace(posterior.inference, data=rows)
    return posterior._replace(inference=inference), request._replace(codes=codes)


SPACING, NODES = 1.25, 8
"""Distance of neighbouring nodes of the trapezoidal rule for new levels, in sds, and their
number."""
FEW_NUMBERS = 4e7
"""How many numbers, rows times draws times nodes, a prediction by quadrature may take."""


class Draw(NamedTuple):
    """A draw of theta and what goes with it; many of them have a leading axis."""

    key: Key
    theta: Float[Array, "... m"]
    sign: Float[Array, "..."]
    """The sign of drawn deviations of the effects from their mean."""
    nodes: Float[Array, "... j"]
    """Standardised values of a new level's part of the predictor."""
    share: Float[Array, "... j"]
    """The weights of these nodes, which sum to one over all nodes and draws."""


class Inputs(NamedTuple):
    """The arguments of the compiled programs; draws of theta have a leading axis."""

    model: MixedModel
    parts: tuple[Data, ...]
    draws: Draw
    x: Float[Array, "n d"]
    codes: Int[Array, "n ..."]
    expansion: Expansion | None = None
    """Moments of the effects as functions of theta; None if they are computed for every draw."""
    by_points: bool = False
    """Whether effects of known groups are integrated by quadrature."""

    @staticmethod
    def of(
        posterior: MixedPosterior,
        request: Request,
        *,
        averaged: bool = True,
        nodes: bool = False,
    ) -> "Inputs":
        """Draw theta for a request.

        ``averaged``: whether only the mixture over draws will be used; ``nodes``: whether it is
        used for means alone, which may then be taken over several nodes per draw.
        """
        rng = np.random.default_rng(request.seed)
        model, number, pool = posterior.model, request.draws, posterior.inference.pool
        effects, expansion, pairs = effects_of(model), None, False
        if averaged and request.effects:
            expansion = expanded(posterior, request.x, request.codes, number)
            pairs = expansion is None and effects.in_pairs(posterior.parts[0])
        # Moved draws of a posterior with several modes could lie between them.
        draw = pool.matched if averaged and not model.many_modes else pool.resample
        keys, sign = jax.random.split(jax.random.key(request.seed), number), np.ones(number)
        if pairs:  # every second draw is the mirror image of the one before: their mean is exact
            theta = np.repeat(draw(-(-number // 2), rng), 2, axis=0)[:number]
            keys, sign[1::2] = keys[2 * (np.arange(number) // 2)], -1.0
        else:
            theta = draw(number, rng)
        known = request.codes < effects.num_known(posterior.parts)
        asked = nodes and request.effects and not model.response.conjugate
        rows = len(request.x) + sum(len(part.x) for part in posterior.parts) if asked else 0
        by_points = asked and known.any() and 0 < rows * number * effects.num_points <= FEW_NUMBERS
        spread = _shifted_nodes if asked and not known.all() else _stratified
        arrays = (jax.device_put(a) for a in (theta, sign, *spread(number, rng)))
        x, codes = (jax.device_put(a) for a in (request.x, request.codes))
        draws = Draw(keys, *arrays)
        return Inputs(model, posterior.parts, draws, x, codes, expansion, bool(by_points))


def _stratified(draws: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return a standard normal number per draw, and its share in all of them."""
    normal = special.ndtri((rng.permutation(draws) + rng.random()) / draws)
    return normal[:, None], np.full((draws, 1), 1 / draws)


def _shifted_nodes(draws: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes for N(0, 1) per draw, shifted differently for each, and their shares."""
    shift = (rng.permutation(draws) + rng.random()) / draws - 0.5
    nodes = SPACING * (np.arange(NODES) - 0.5 * (NODES - 1) + shift[:, None])
    weight = np.exp(-0.5 * nodes**2)
    return nodes, weight / weight.sum(axis=1, keepdims=True) / draws


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
    inputs, _, which = inputs_once(posterior, request)
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
    inputs = Inputs.of(posterior, request.rows(0, n), averaged=False)
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

    def add(total: tuple, at: _Predictor) -> tuple[tuple, None]:
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
        return jax.lax.scan(add, total, _predictors(inputs, draw, effects))

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

    def add(total: tuple[Array, Array], draw: Draw) -> tuple[tuple[Array, Array], None]:
        location, variance, dispersion, _ = _predictor(inputs, draw, effects)
        below, up_to = response.around(y, location[which], variance[which], dispersion)
        return (total[0] + below, total[1] + up_to), None

    zero, number = jnp.zeros(len(y)), len(inputs.draws.theta)
    below, up_to = jax.lax.scan(add, (zero, zero), inputs.draws)[0]
    return below / number, up_to / number


@program
def _quantiles(inputs: Inputs, levels: Array, effects: bool) -> Float[Array, "l n"]:
    """Quantiles of each row's mixture, on the support of the response."""
    response = inputs.model.response_at(inputs.x)
    support = response.support
    parts = jax.lax.map(lambda draw: _predictor(inputs, draw, effects)[:3], inputs.draws)
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


class _Predictor(NamedTuple):
    """The predictor of every row given theta, at a node of the effects that are not integrated."""

    location: Float[Array, "*j n"]
    variance: Float[Array, "*j n"]
    """Variance over which the response integrates; 0 unless it is conjugate."""
    dispersion: Float[Array, "*j c"]
    share: Float[Array, "*j n"]
    """Probability of the node, and of the draw."""


def _predictor(inputs: Inputs, draw: Draw, effects: bool) -> _Predictor:
    """Return the predictor at the only node of a draw."""
    return jax.tree.map(lambda each: each[0], _predictors(inputs, draw, effects))


def _predictors(inputs: Inputs, draw: Draw, effects: bool) -> _Predictor:
    """Return the predictor at all nodes of a draw, on a leading axis."""
    model, of_groups = inputs.model, effects_of(inputs.model)
    params: MixedParams = params_at(model, inputs.parts[0], draw.theta)
    h = model.features(params, inputs.x)
    fixed, variance = h @ model.all_coef(params), jnp.zeros(len(h))
    at = model.design(h), inputs.codes, inputs.parts
    mean: Array | float = 0.0
    if not effects or model.num_effects == 0:
        pass
    elif inputs.expansion is not None:
        several = cast(SeveralFactors, model)
        mean, variance = inputs.expansion(params, several, inputs.parts[0])
        variance += of_groups.population_at(params, *at)
    elif inputs.by_points:
        variance = of_groups.population_at(params, *at)
    else:
        mean, variance = of_groups.predictor((draw.key, params, draw.sign), *at)
    if model.response.conjugate:
        location, left = (fixed + mean)[None], variance
    else:
        location, left = fixed + mean + draw.nodes[:, None] * jnp.sqrt(variance), jnp.zeros(len(h))
    share = jnp.broadcast_to(draw.share[:, None], location.shape)
    if inputs.by_points:
        known = inputs.codes < of_groups.num_known(inputs.parts)
        own, chance = of_groups.at_points(params, *at)
        number = max(len(own), len(location))
        more = ((0, number - len(own)), (0, 0)), ((0, number - len(location)), (0, 0))
        location = jnp.where(known, jnp.pad(fixed + own, more[0]), jnp.pad(location, more[1]))
        chance = chance / len(inputs.draws.theta)
        share = jnp.where(known, jnp.pad(chance, more[0]), jnp.pad(share, more[1]))
    left, dispersion = (
        jnp.broadcast_to(each, (len(location), len(each)))
        for each in (left, model.dispersion(params))
    )
    return _Predictor(location, left, dispersion, share)
