"""What a posterior says about each observed row.

Log likelihoods, replicates and distribution functions are given joint draws (theta_s, effects_s):
log p(y_i | eta_si) with eta_si = h_i'beta_s + z_i'alpha_sk, for instance.

The prediction of row i from all other rows is a weighted average over the draws, with weights
1 / p(y_i | draw), the largest of them smoothed (PSIS). k-hat is the Pareto shape of the weights:
where it is large, the row is so influential that the draws of the whole fit cannot tell what a fit
without it would say.
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
from nghvi.models.mixed import MixedModel
from nghvi.posterior.effects import effects_of
from nghvi.posterior.mixed_posterior import MixedPosterior, params_at
from nghvi.recipes.importance import pareto_smoothed

NUMBERS_AT_ONCE = 2e7
"""How many numbers, draws times rows, are in memory at a time."""


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


Value = Callable[[Response, Key, Array, Array, Array], Any]
"""A function of (response, key, y, eta, dispersion) that computes something for every row."""


class Given(NamedTuple):
    """What the model says about a response given one draw of parameters and effects."""

    log_density: Any
    mean: Any
    variance: Any
    below: Any
    """P(Y < y)."""
    up_to: Any
    """P(Y <= y)."""


def log_likelihood(response: Response, key: Key, y: Array, eta: Array, dispersion: Array) -> Array:
    """Return the log density of y."""
    return response.log_prob(y, eta, dispersion)


def judged(response: Response, key: Key, y: Array, eta: Array, dispersion: Array) -> Given:
    """Return log density, moments and distribution function at y."""
    known = (eta, jnp.zeros_like(eta), dispersion)
    around = response.around(y, *known)
    return Given(response.log_prob(y, eta, dispersion), *response.moments(*known), *around)


def replicate(response: Response, key: Key, y: Array, eta: Array, dispersion: Array) -> Array:
    """Draw another response in place of y."""
    return response.sample(key, eta, dispersion)


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
    units = posterior.log_units(observed.x, observed.y)
    for piece in by_rows(posterior, log_likelihood, theta, effects, observed, seed):
        yield piece - units[: piece.shape[1]]
        units = units[piece.shape[1] :]


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
        return value(model.response_at(rows.x), draw[0], rows.y, eta, model.dispersion(params))

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
