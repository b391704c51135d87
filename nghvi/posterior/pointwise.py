"""What a posterior says about each observed row.

Log likelihoods, replicates and distribution functions are given joint draws (theta_s, effects_s):
log p(y_i | eta_si) with eta_si = h_i'beta_s + z_i'alpha_sk, for instance. The same values without
the row itself are in :mod:`nghvi.posterior.left_out`.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from nghvi._core.response import Response
from nghvi._programs import program
from nghvi._typing import Data, Key
from nghvi.data.blocks import padded
from nghvi.models.mixed import MixedModel
from nghvi.posterior.effects import effects_of
from nghvi.posterior.mixed_posterior import MixedPosterior, params_at

NUMBERS_AT_ONCE = 2e7
"""How many numbers, draws times rows, are in memory at a time."""


class Observed(NamedTuple):
    """Rows of known groups with their responses, on the fitted scale."""

    x: Any
    codes: Any
    y: Any

    def by_group(self) -> tuple["Observed", np.ndarray]:
        """Return the rows group by group, and where each row then is."""
        order = np.argsort(self.codes.reshape(len(self.y), -1)[:, 0], kind="stable")
        return Observed(*(part[order] for part in self)), np.argsort(order)

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

    def over_nodes(self, given_all: Array, without: Array) -> "Densities":
        """Average over nodes, the leading axis, with log probabilities given all and without."""
        return Densities(
            logsumexp(given_all + self.given_all, axis=0), logsumexp(without + self.without, axis=0)
        )

    def corrected(self, rest: "Densities", without: Array) -> "Densities":
        """Take what refers to the other rows from a better computation."""
        return self._replace(without=without)


class Given(NamedTuple):
    """What the model says about a response given one draw and, if possible, without the row."""

    log_density: Any
    mean: Any
    variance: Any
    below: Any
    """P(Y < y)."""
    up_to: Any
    """P(Y <= y)."""

    def over_nodes(self, given_all: Array, without: Array) -> "Given":
        """Average over nodes, the leading axis, with log probabilities without the row."""
        share = jnp.exp(without)

        def average(values: Array) -> Array:
            return jnp.sum(share * values, axis=0)

        mean = average(self.mean)
        spread = average(self.variance + (self.mean - mean) ** 2)
        density = logsumexp(without + self.log_density, axis=0)
        return Given(density, mean, spread, average(self.below), average(self.up_to))

    def corrected(self, rest: "Given", without: Array) -> "Given":
        """Take what refers to the other rows from a better computation."""
        return rest._replace(log_density=without)


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
    return on_raw_scale(posterior, observed, pieces)


def on_raw_scale(
    posterior: MixedPosterior, observed: Observed, pieces: Iterator[Any]
) -> Iterator[Any]:
    """Yield log densities by row in the units of the data."""
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
