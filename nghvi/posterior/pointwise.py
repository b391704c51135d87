"""What a posterior says about each observed row.

Log likelihoods, replicates and distribution functions are given joint draws (theta_s, effects_s):
log p(y_i | eta_si) with eta_si = h_i'beta_s + z_i'alpha_sk, for instance.

The prediction of row i from all other rows is a weighted average over the draws, with weights
1 / p(y_i | draw), the largest of them smoothed (PSIS). k-hat is the Pareto shape of the weights:
where it is large, the row is so influential that the draws of the whole fit cannot tell what a fit
without it would say.

If y_i is Gaussian with noise variance v, its predictor given theta and all rows is N(m, s), with
the effects integrated out, and what the row itself said can be taken back exactly::

    eta_i | theta, y without y_i  ~  N((v m - s y_i) / (v - s),  v s / (v - s))

The average is then over theta only, with weights 1 / p(y_i | theta, y without y_i), which hardly
differ, even where a group has a single row.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nghvi._core.response import Response
from nghvi._programs import program
from nghvi._typing import Data, Key
from nghvi.data.blocks import padded
from nghvi.data.working_copy import StreamedRows
from nghvi.models.mixed import MixedModel
from nghvi.posterior.effects import effects_of
from nghvi.posterior.mixed_posterior import MixedPosterior, params_at
from nghvi.recipes.importance import pareto_smoothed

NUMBERS_AT_ONCE = 2e7
"""How many numbers, draws times rows, are in memory at a time."""
NUMBERS_AT_ALL, FEWEST = 1e8, 400
"""Numbers, draws times rows or effects, beyond which leaving rows out takes fewer draws, and how
many it takes at least."""


class Observed(NamedTuple):
    """Rows of known groups with their responses, on the fitted scale."""

    x: Any
    codes: Any
    y: Any

    def pieces(self, size: int) -> Iterator[tuple["Observed", int]]:
        """Yield pieces of equal length, the last one padded, each with its number of real rows."""
        size = min(size, padded(len(self.y)))
        for start in range(0, len(self.y), size):
            index = np.arange(start, start + size)
            kept = np.minimum(index, len(self.y) - 1)
            yield Observed(*(part[kept] for part in self)), min(size, len(self.y) - start)


class Known(NamedTuple):
    """What one draw tells of the predictors: normal distributions given all rows, and without
    each row itself. If effects were drawn, both are points."""

    location: Any
    variance: Any
    location_without: Any
    variance_without: Any

    @staticmethod
    def points(eta: Array) -> "Known":
        """Return the same for predictors that were drawn."""
        return Known(eta, jnp.zeros_like(eta), eta, jnp.zeros_like(eta))

    @staticmethod
    def normal(y: Array, location: Array, variance: Array, noise: Array) -> "Known":
        """Take back what every row said about its own predictor, with noise of this variance."""
        left = noise - variance
        without = (noise * location - variance * y) / left, noise * variance / left
        return Known(location, variance, *without)


Value = Callable[[Response, Key, Array, Known, Array], Any]
"""A function of (response, key, y, predictors, dispersion) that computes something by row."""


class Densities(NamedTuple):
    """Log densities of the responses given one draw and all rows, and without each row itself."""

    given_all: Any
    without: Any


class Given(NamedTuple):
    """What the model says about a response given one draw and, if possible, without the row."""

    log_density: Any
    mean: Any
    variance: Any
    below: Any
    """P(Y < y)."""
    up_to: Any
    """P(Y <= y)."""


def log_likelihood(
    response: Response, key: Key, y: Array, known: Known, dispersion: Array
) -> Array:
    """Return the log density of y at drawn predictors."""
    return response.log_prob(y, known.location, dispersion)


def densities(response: Response, key: Key, y: Array, known: Known, dispersion: Array) -> Densities:
    """Return the log density of y, given all rows and without each row itself."""
    location, variance, at, spread = known
    return Densities(
        response.log_predictive(y, location, variance, dispersion),
        response.log_predictive(y, at, spread, dispersion),
    )


def judged(response: Response, key: Key, y: Array, known: Known, dispersion: Array) -> Given:
    """Return log density, moments and distribution function at y, without each row itself."""
    *_, location, variance = known
    around = response.around(y, location, variance, dispersion)
    density = response.log_predictive(y, location, variance, dispersion)
    return Given(density, *response.moments(location, variance, dispersion), *around)


def replicate(response: Response, key: Key, y: Array, known: Known, dispersion: Array) -> Array:
    """Draw another response in place of y."""
    return response.sample(key, known.location, dispersion)


def left_out(
    posterior: MixedPosterior, value: Value, observed: Observed, draws: int, seed: int
) -> Iterator[Any]:
    """Yield ``value`` of every draw and row, one piece of rows at a time.

    Effects are integrated out if they are normal given theta, and drawn otherwise. Large tables get
    fewer draws, at least ``FEWEST``.
    """
    effects, parts = effects_of(posterior.model), posterior.parts
    in_tables = int(np.multiply(effects.num_known(parts), effects.sizes).sum())
    draws = min(draws, max(FEWEST, int(NUMBERS_AT_ALL // max(len(observed.y), in_tables, 1))))
    on_disk = isinstance(posterior.data, StreamedRows)
    if on_disk or not (posterior.model.num_effects and effects.are_integrated(parts[0])):
        yield from by_rows(posterior, value, *posterior.joint(draws, seed), observed)
        return
    theta = posterior.inference.pool.resample(draws, np.random.default_rng(seed))
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


def by_rows(
    posterior: MixedPosterior,
    value: Value,
    theta: Float[np.ndarray, "s m"],
    effects: tuple[np.ndarray, ...],
    observed: Observed,
    seed: int = 0,
) -> Iterator[Any]:
    """Yield ``value`` of every draw and row, shape (draws, rows), one piece of rows at a time."""
    size = max(1, int(NUMBERS_AT_ONCE // len(theta)))
    draws = jnp.asarray(theta), jax.tree.map(jnp.asarray, effects)
    for i, (piece, number) in enumerate(observed.pieces(size)):
        key = jax.random.fold_in(jax.random.key(seed), i)
        rows = Observed(*map(jnp.asarray, piece))
        found = _by_rows(value, posterior.model, posterior.data, key, draws, rows)
        yield jax.tree.map(lambda each, number=number: np.asarray(each)[:, :number], found)


def raw_log_likelihood(
    posterior: MixedPosterior,
    theta: Float[np.ndarray, "s m"],
    effects: tuple[np.ndarray, ...],
    observed: Observed,
    seed: int = 0,
) -> Iterator[np.ndarray]:
    """Yield the log likelihood of every draw and row, raw scale, one piece of rows at a time."""
    pieces = by_rows(posterior, log_likelihood, theta, effects, observed, seed)
    return _on_raw_scale(posterior, observed, pieces)


def raw_densities(
    posterior: MixedPosterior, observed: Observed, draws: int, seed: int
) -> Iterator[Densities]:
    """Yield what leave-one-out needs of every draw and row, raw scale, a piece at a time."""
    pieces = left_out(posterior, densities, observed, draws, seed)
    return _on_raw_scale(posterior, observed, pieces)


def _on_raw_scale(
    posterior: MixedPosterior, observed: Observed, pieces: Iterator[Any]
) -> Iterator[Any]:
    units, start = posterior.log_units(observed.x, observed.y), 0
    for piece in pieces:
        stop = start + jax.tree.leaves(piece)[0].shape[1]
        own = units[start:stop]
        yield jax.tree.map(lambda each, own=own: each - own, piece)
        start = stop


@program
def _by_rows(
    value: Value,
    model: MixedModel,
    data: Data,
    key: Key,
    draws: tuple[Array, Any],
    rows: Observed,
) -> Any:
    def one(draw: tuple[Key, Array, Any]) -> Any:
        params = params_at(model, data, draw[1])
        h = model.features(params, rows.x)
        eta = h @ model.all_coef(params)
        if model.num_effects:
            eta = eta + effects_of(model).at_rows(model.design(h), draw[2], rows.codes)
        response, known = model.response_at(rows.x), Known.points(eta)
        return value(response, draw[0], rows.y, known, model.dispersion(params))

    return jax.lax.map(one, (jax.random.split(key, len(draws[0])), *draws))


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
