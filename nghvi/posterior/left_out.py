"""Predictions of every row of the fit from all other rows.

The prediction of row i from all other rows is a weighted average over the draws, with weights
1 / p(y_i | draw), the largest of them smoothed (PSIS). k-hat is the Pareto shape of the weights:
where it is large, the row is so influential that the draws of the whole fit cannot tell what a fit
without it would say.

If y_i is Gaussian with noise variance v, its predictor given theta and all rows is N(m, s), with
the effects integrated out, and what the row itself said can be taken back exactly::

    eta_i | theta, y without y_i  ~  N((v m - s y_i) / (v - s),  v s / (v - s))

The average is then over theta only, with weights 1 / p(y_i | theta, y without y_i), which hardly
differ, even where a group has a single row. For other responses with one grouping factor,
quadrature does the same (:mod:`nghvi.posterior.at_nodes`). Effects are drawn only where there are
several factors, too many nodes, or rows on disk.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nghvi._programs import program
from nghvi._typing import Data, Key
from nghvi.data.working_copy import StreamedRows
from nghvi.models.mixed import MixedModel
from nghvi.posterior import at_nodes
from nghvi.posterior.effects import effects_of
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
    if not on_disk and at_nodes.are_few(model):
        numbers = len(observed.y) * at_nodes.num_points(model)
        draws = min(draws, max(FEWEST_AT_NODES, int(NUMBERS_AT_ALL // numbers)))
        theta = posterior.inference.pool.resample(draws, rng)
        yield from at_nodes.left_out(posterior, value, observed, theta, seed)
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
