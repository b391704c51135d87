"""What responses with a log link share: E[y] = exp(eta), so coefficients are logs of ratios."""

import abc
import dataclasses
from typing import ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nghvi._core.response import Response, ResponseError
from nghvi._core.support import Support, offenders

LARGEST = 700.0
"""Of eta: its exponential is finite."""
LARGEST_COUNT = 1e9
MODERATE_COUNT, SMALLEST_FIRST = 2000, 1e-290
"""Up to that count, and with no smaller P(Y = 0), probabilities are summed."""


class LogLink(Response):
    """Observations whose mean is exp(eta)."""

    link: ClassVar[str] = "log"
    ratio: ClassVar[str | None] = "rate ratio"
    level: int = eqx.field(static=True, default=0)
    """About where eta is; a whole number, so that similar data share compiled programs."""

    @property
    def typical_predictor(self) -> float:
        return float(self.level)

    def suited(self, y: np.ndarray, known: np.ndarray, *, intercept: bool) -> Self:
        level = round(float(np.log(np.mean(y)) - np.mean(known))) if intercept else 0
        return dataclasses.replace(self, level=level)

    def rate(self, eta: Array) -> Array:
        """exp(eta), kept finite."""
        return jnp.exp(jnp.minimum(eta, LARGEST))

    def mean(self, eta: Array, dispersion: Array) -> Array:
        return self.rate(eta)


class Counts(LogLink):
    """Numbers of events.

    Their distribution function is a sum of probabilities, each from the one before, where counts
    and means are moderate: a fiftieth of the time of the incomplete functions, or less.
    """

    remedy: ClassVar[str] = (
        "counts of events are not rates or averages: give the events themselves, with the exposure "
        "as offset(log(exposure)) in a formula, or use response='gaussian' for measurements."
    )

    @property
    def support(self) -> Support:
        return Support(0, discrete=True)

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

    def check(self, y: np.ndarray, column: str = "y") -> None:
        super().check(y, column)
        if not y.any():
            raise ResponseError(
                f"every count in {column} is 0: no rate is small enough for them; give data in "
                "which the event happened."
            )
        if (large := y >= LARGEST_COUNT).any():
            raise ResponseError(
                f"{column} holds {offenders(y, large)}: if that stands for a missing count, drop "
                "these rows; counts that large are measurements, response='gaussian' of their log."
            )
