"""Whole numbers from 0 whose distribution function is a sum of probabilities.

Each comes from the one before, where numbers and means are moderate: a fiftieth of the time of the
incomplete functions, or less.
"""

import abc

import jax
import jax.numpy as jnp
from jaxtyping import Array

from nghvi._core.response import Response

MODERATE_COUNT, SMALLEST_FIRST = 2000, 1e-290
"""Up to that count, and with no smaller P(Y = 0), probabilities are summed."""


class Summed(Response):
    """What y = 0, 1, 2, ... needs for its distribution function."""

    @abc.abstractmethod
    def log_none(self, eta: Array, dispersion: Array) -> Array:
        """log p(0)."""

    @abc.abstractmethod
    def growth(self, y: Array, eta: Array, dispersion: Array) -> Array:
        """p(y + 1) / p(y)."""

    @abc.abstractmethod
    def distant_cdf(self, y: Array, eta: Array, dispersion: Array) -> Array:
        """P(Y <= y) for whole numbers y >= 0 of any size."""

    def cdf(self, y: Array, location: Array, variance: Array, dispersion: Array) -> Array:
        last, eta = jnp.broadcast_arrays(jnp.floor(y), location)
        most = jnp.max(last, initial=0.0)
        first = jnp.exp(self.log_none(eta, dispersion))

        def add(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            at, term, total = state
            term = term * self.growth(at, eta, dispersion)
            return at + 1, term, total + jnp.where(at + 1 <= last, term, 0.0)

        def by_sum() -> Array:
            begin = (jnp.zeros(()), first, first)
            return jax.lax.while_loop(lambda state: state[0] < most, add, begin)[2]

        near = (most <= MODERATE_COUNT) & jnp.all(first > SMALLEST_FIRST)
        whole = jnp.maximum(last, 0.0)
        up_to = jax.lax.cond(near, by_sum, lambda: self.distant_cdf(whole, eta, dispersion))
        return jnp.where(last < 0, 0.0, jnp.minimum(up_to, 1.0))
