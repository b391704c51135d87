"""Predictions of every row of the fit from all other rows.

The prediction of row i from all other rows is a weighted average over the draws, with weights
1 / p(y_i | draw), the largest of them smoothed (PSIS). k-hat is the Pareto shape of the weights:
where it is large, the row is so influential that the draws of the whole fit cannot tell what a fit
without it would say.

If y_i is Gaussian with noise variance v, its predictor given theta and all rows is N(m, s), with
the effects integrated out, and what the row itself said can be taken back exactly::

    eta_i | theta, y without y_i  ~  N((v m - s y_i) / (v - s),  v s / (v - s))

The average is then over theta only, with weights 1 / p(y_i | theta, y without y_i), which hardly
differ, even where a group has a single row.

For other responses with one grouping factor, quadrature does the same. If c_j are the probabilities
of the nodes u_j of a group's effects given theta and all its rows, then::

    1 / p(y_i | theta, y without y_i)  =  sum_j c_j / p(y_i | u_j)

and c_j / p(y_i | u_j), normalised, are the nodes' probabilities without row i. The nodes lie where
all rows put the effects. That suits what the others say unless row i is far from them in a group of
few rows, which a finer rule shows, since it then disagrees. The few rows of this kind get nodes of
their own: their group is integrated with row i once more, of weight -1, and ::

    p(y_i | theta, y without y_i)  =  p(y_k | theta) / p(y_k without y_i | theta)

Effects are drawn only where there are several factors, too many nodes, or rows on disk.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float, Int

from nghvi._programs import program
from nghvi._typing import Data, Key
from nghvi.data import Rows
from nghvi.data.grouped import Observations
from nghvi.data.working_copy import StreamedRows
from nghvi.latents import integrate, rules
from nghvi.latents.rows import whiten_design
from nghvi.models.mixed import MixedModel
from nghvi.models.parameters import MixedParams
from nghvi.posterior.effects import EffectsAtRows, effects_of
from nghvi.posterior.mixed_posterior import MixedPosterior, params_at
from nghvi.posterior.pointwise import (
    NUMBERS_AT_ONCE,
    Densities,
    Given,
    Known,
    Observed,
    Value,
    by_rows,
    densities,
    on_raw_scale,
)
from nghvi.recipes.importance import pareto_smoothed

NUMBERS_AT_ALL, FEWEST, FEWEST_AT_NODES = 1e8, 400, 200
"""Numbers, draws times rows or effects, beyond which leaving rows out takes fewer draws, and how
many it takes at least, with effects that are drawn, or integrated by quadrature."""
NODES = 14
"""Number of nodes per dimension of the trapezoidal rule, which reaches 17 conditional sds."""
MOST_EFFECTS = 2
"""Number of effects up to which there are few enough nodes."""
FEW_POINTS, OF_PREDICTOR = 30, 7
"""Number of points up to which distribution functions are averaged over all of them. If there are
more, it is over a Gauss-Hermite rule with the predictor's mean and variance without the row."""
TRIED, AGREE = 6, 0.02
"""Number of draws at which a finer rule is tried, and by how many nats it may differ."""


def left_out(
    posterior: MixedPosterior, value: Value, observed: Observed, draws: int, seed: int
) -> Iterator[Any]:
    """Yield ``value`` of every draw and row, one piece of rows at a time.

    Effects are integrated out if they are normal given theta or few enough for quadrature, and
    drawn otherwise. Large tables get fewer draws, at least ``FEWEST``. Rows of the same group have
    to be neighbours.
    """
    effects, parts, model = effects_of(posterior.model), posterior.parts, posterior.model
    on_disk, rng = isinstance(posterior.data, StreamedRows), np.random.default_rng(seed)
    if not on_disk and _nodes_are_few(model):
        numbers = len(observed.y) * rules.num_points(NODES, model.num_effects)
        draws = min(draws, max(FEWEST_AT_NODES, int(NUMBERS_AT_ALL // numbers)))
        theta = posterior.inference.pool.resample(draws, rng)
        yield from at_nodes(posterior, value, observed, theta, seed)
        return
    in_tables = int(np.multiply(effects.num_known(parts), effects.sizes).sum())
    draws = min(draws, max(FEWEST, int(NUMBERS_AT_ALL // max(len(observed.y), in_tables, 1))))
    if on_disk or not (posterior.model.num_effects and effects.are_integrated(parts[0])):
        yield from by_rows(posterior, value, *posterior.joint(draws, seed), observed)
        return
    theta = posterior.inference.pool.resample(draws, rng)
    size = max(1, int(NUMBERS_AT_ONCE // draws))
    fixed = value, posterior.model, posterior.parts, jax.random.key(seed), jnp.asarray(theta)
    for piece, number in observed.pieces(size):
        found = _left_out(*fixed, Observed(*map(jnp.asarray, piece)))
        yield jax.tree.map(lambda each, number=number: np.asarray(each)[:, :number], found)


@program
def _left_out(
    value: Value,
    model: MixedModel,
    parts: tuple[Data, ...],
    key: Key,
    theta: Float[Array, "s m"],
    rows: Observed,
) -> Any:
    effects, response = effects_of(model), model.response_at(rows.x)

    def one(theta: Array) -> Any:
        params = params_at(model, parts[0], theta)
        h, dispersion = model.features(params, rows.x), model.dispersion(params)
        draw = key, params, jnp.zeros(())
        mean, variance = effects.predictor(draw, model.design(h), rows.codes, parts)
        location = h @ model.all_coef(params) + mean
        noise = response.moments(location, jnp.zeros_like(location), dispersion)[1]
        known = Known.normal(rows.y, location, variance, noise)
        return value(response, key, rows.y, known, dispersion)

    return jax.lax.map(one, theta)


def raw_densities(
    posterior: MixedPosterior, observed: Observed, draws: int, seed: int
) -> Iterator[Densities]:
    """Yield what leave-one-out needs of every draw and row, raw scale, a piece at a time."""
    pieces = left_out(posterior, densities, observed, draws, seed)
    return on_raw_scale(posterior, observed, pieces)


class LeftOut(NamedTuple):
    """Predictions of every row from all other rows, on the fitted scale."""

    mean: Float[np.ndarray, " n"]
    sd: Float[np.ndarray, " n"]
    below: Float[np.ndarray, " n"]
    """P(Y < y)."""
    up_to: Float[np.ndarray, " n"]
    """P(Y <= y)."""
    k_hat: Float[np.ndarray, " n"]


def leave_out(pieces: Iterable[Given]) -> LeftOut:
    """Average moments and distribution function of every row with its leave-one-out weights."""
    found = []
    for piece in pieces:
        log_weight, k_hat = pareto_smoothed(-piece.log_density.T)
        weight = np.exp(log_weight.T)
        mean, below, up_to = (
            np.sum(weight * each, axis=0) for each in (piece.mean, piece.below, piece.up_to)
        )
        square = np.sum(weight * (piece.variance + (piece.mean - mean) ** 2), axis=0)
        found.append((mean, np.sqrt(square), below, up_to, k_hat))
    return LeftOut(*(np.concatenate(part) for part in zip(*found, strict=True)))


def _nodes_are_few(model: MixedModel) -> bool:
    """Return whether there are few enough nodes to leave rows out this way."""
    one_factor = type(effects_of(model)) is EffectsAtRows
    return one_factor and not model.in_closed_form and model.num_effects <= MOST_EFFECTS


def at_nodes(
    posterior: MixedPosterior,
    value: Value,
    observed: Observed,
    theta: Float[Array | np.ndarray, "s m"],
    seed: int,
) -> Iterator[Any]:
    """Yield ``value`` of every draw and row without itself, for some groups at a time.

    Rows of the same group have to be neighbours.
    """
    model, groups, theta = posterior.model, _Groups(posterior), jnp.asarray(theta)
    for chosen in _whole_groups(observed.codes, int(NUMBERS_AT_ONCE // len(theta))):
        rows = Observed(*(part[chosen] for part in observed))
        codes, index = np.unique(rows.codes, return_inverse=True)
        fixed = model, posterior.data, jax.random.key(seed)
        at = groups.rows(codes), Observed(*map(jnp.asarray, rows._replace(codes=index)))
        tried = [
            np.asarray(_at_shared_nodes(densities, *fixed, theta[:TRIED], *at, nodes).without)
            for nodes in (NODES, rules.finer(NODES, model.num_effects))
        ]
        found = jax.tree.map(np.array, _at_shared_nodes(value, *fixed, theta, *at, NODES))
        far = np.flatnonzero(~(np.abs(tried[0] - tried[1]) < AGREE).all(axis=0))
        for some in _split(far, groups.sizes[rows.codes], len(rows.y)):
            hard = Observed(*(part[some] for part in rows))
            better, sure = _with_own_nodes(
                *(value, *fixed, theta, groups.without(hard)),
                Observed(*map(jnp.asarray, hard)),
                jax.tree.map(lambda each, some=some: jnp.asarray(each[:, some]), found),
            )
            for mine, new in zip(found, better, strict=True):
                mine[:, some] = np.where(sure, new, mine[:, some])
        yield found


def _whole_groups(codes: Int[np.ndarray, " n"], size: int) -> Iterator[slice]:
    """Yield slices of about ``size`` rows that hold whole groups."""
    ends = np.append(np.flatnonzero(np.diff(codes)) + 1, len(codes))
    start = 0
    while start < len(codes):
        within = ends[(ends > start) & (ends <= start + size)]
        stop = int(within[-1]) if len(within) else int(ends[ends > start][0])
        yield slice(start, stop)
        start = stop


def _split(
    chosen: Int[np.ndarray, " c"], sizes: Int[np.ndarray, " n"], at_once: int
) -> list[np.ndarray]:
    """Return rows in parts whose groups have about so many rows in all."""
    if not len(chosen):
        return []
    part = np.cumsum(sizes[chosen]) // max(at_once, 1)
    return np.split(chosen, np.flatnonzero(np.diff(part)) + 1)


class _Groups:
    """The rows of all groups of a posterior, sorted by their code, on the host."""

    def __init__(self, posterior: MixedPosterior) -> None:
        parts, first = [], 0
        for part in posterior.parts:
            found = part.observations()
            code = np.argsort(np.asarray(part.original_order))  # codes in memory order
            parts.append(found._replace(group=first + code[found.group]))
            first += part.num_groups
        rows = Observations(*map(np.concatenate, zip(*parts, strict=True)))
        order = np.argsort(rows.group, kind="stable")
        self._rows = Observations(*(each[order] for each in rows))
        self._starts = np.searchsorted(self._rows.group, np.arange(first + 1))
        self.sizes = np.diff(self._starts)
        """Number of rows of every group."""

    def _of(self, codes: Int[np.ndarray, " g"]) -> Observations:
        """Return the rows of these groups, which are numbered in this order and may repeat."""
        where = [np.arange(self._starts[code], self._starts[code + 1]) for code in codes]
        found = Observations(*(each[np.concatenate(where)] for each in self._rows))
        return found._replace(group=np.repeat(np.arange(len(codes)), self.sizes[codes]))

    def rows(self, codes: Int[np.ndarray, " g"]) -> Rows:
        """Return the rows of these groups."""
        x, y, group, weight = self._of(codes)
        return Rows.from_arrays(x, y, group, len(codes), weight)

    def without(self, rows: Observed) -> Rows:
        """Return each row's group without the row, and after these the same groups whole."""
        both, own = self._of(np.concatenate([rows.codes, rows.codes])), len(rows.y)
        joined = Observations(
            np.concatenate([both.x, rows.x]),
            np.concatenate([both.y, rows.y]),
            np.concatenate([both.group, np.arange(own)]),
            np.concatenate([both.weight, np.full(own, -1.0)]),
        )
        return Rows.from_arrays(joined.x, joined.y, joined.group, 2 * own, joined.weight)


@program
def _at_shared_nodes(
    value: Value,
    model: MixedModel,
    data: Data,
    key: Key,
    theta: Float[Array, "s m"],
    groups: Rows,
    rows: Observed,
    num_nodes: int,
) -> Any:
    """Return the value of every draw and row, whose nodes are those of its group."""

    def one(theta: Array) -> Any:
        params = params_at(model, data, theta)
        found = integrate.weighed_nodes(model.row_problem(params, groups), num_nodes)
        of_row = groups.original_order[rows.codes]
        eta = _predictors(model, params, rows, found.nodes[..., of_row])
        given_all, response = found.log_share[:, of_row], model.response_at(rows.x)
        dispersion = model.dispersion(params)
        fit = jax.vmap(lambda eta: response.log_prob(rows.y, eta, dispersion))(eta)
        without = jax.nn.log_softmax(given_all - fit, axis=0)
        each = jax.vmap(lambda eta: value(response, key, rows.y, Known.points(eta), dispersion))
        if value is densities or len(eta) <= FEW_POINTS:
            return each(eta).over_nodes(given_all, without)
        fewer, share = _fewer(eta, without)
        density = logsumexp(without + fit, axis=0)
        return each(fewer).over_nodes(share, share)._replace(log_density=density)

    return jax.lax.map(one, theta)


@program
def _with_own_nodes(
    value: Value,
    model: MixedModel,
    data: Data,
    key: Key,
    theta: Float[Array, "s m"],
    groups: Rows,
    rows: Observed,
    found: Any,
) -> tuple[Any, Bool[Array, "s n"]]:
    """Return values of rows with nodes of their own, and where these could be placed.

    ``groups`` are those of :meth:`_Groups.without`; ``found`` are the values with shared nodes.
    """
    num_nodes = rules.finer(NODES, model.num_effects)

    def one(draw: tuple[Array, Any]) -> tuple[Any, Array]:
        params = params_at(model, data, draw[0])
        weighed = integrate.weighed_nodes(model.row_problem(params, groups), num_nodes)
        rest, whole = jnp.split(groups.original_order, 2)
        eta = _predictors(model, params, rows, weighed.nodes[..., rest])
        share, response = weighed.log_share[:, rest], model.response_at(rows.x)
        dispersion = model.dispersion(params)
        each = jax.vmap(lambda eta: value(response, key, rows.y, Known.points(eta), dispersion))
        if value is not densities and len(eta) > FEW_POINTS:
            eta, share = _fewer(eta, share)
        density = weighed.log_mass[whole] - weighed.log_mass[rest]
        better = draw[1].corrected(each(eta).over_nodes(share, share), density)
        return better, jnp.isfinite(density)

    return jax.lax.map(one, (theta, found))


def _predictors(
    model: MixedModel, params: MixedParams, rows: Observed, nodes: Float[Array, "j r n"]
) -> Float[Array, "j n"]:
    h = model.features(params, rows.x)
    white = whiten_design(model.design(h), model.precision_factor(params))
    return h @ model.all_coef(params) + jnp.sum(white.T * nodes, axis=1)


def _fewer(
    eta: Float[Array, "j n"], log_share: Float[Array, "j n"]
) -> tuple[Float[Array, "h n"], Float[Array, "h n"]]:
    """Return a few predictors of every row with the same mean and variance, and their shares."""
    share = jnp.exp(log_share)
    mean = jnp.sum(share * eta, axis=0)
    sd = jnp.sqrt(jnp.sum(share * (eta - mean) ** 2, axis=0))
    nodes, logs = rules.rule(OF_PREDICTOR, 1)
    return mean + nodes[:, 0] * sd, jnp.broadcast_to(logs, (len(nodes), len(mean)))
