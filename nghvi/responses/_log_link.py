"""What responses with a log link share: E[y] = exp(eta), so coefficients are logs of ratios."""

import dataclasses
from typing import ClassVar, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nghvi._core.response import Response, ResponseError
from nghvi._core.support import Support, offenders
from nghvi.responses._summed import Summed

LARGEST = 700.0
"""Of eta: its exponential is finite."""
LARGEST_COUNT = 1e9


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


class Positive(LogLink):
    """Positive numbers of any size."""

    remedy: ClassVar[str] = (
        "leave rows with zeros out or model them apart, or use response='gaussian' for numbers of "
        "either sign."
    )

    @property
    def support(self) -> Support:
        return Support(0)

    def check(self, y: np.ndarray, column: str = "y") -> None:
        super().check(y, column)
        if (tiny := y < np.finfo(float).tiny).any():
            raise ResponseError(
                f"{column} holds {offenders(y, tiny)}, which arithmetic takes for 0: state "
                f"{column} in a smaller unit, or leave these rows out."
            )


class Counts(Summed, LogLink):
    """Numbers of events."""

    remedy: ClassVar[str] = (
        "counts of events are not rates or averages: give the events themselves, with "
        "exposure='time' or '+ exposure(time)' in a formula, or use response='gaussian' for "
        "measurements."
    )

    @property
    def support(self) -> Support:
        return Support(0, discrete=True)

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
