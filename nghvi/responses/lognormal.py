"""log y = eta + noise, noise ~ N(0, v); the dispersion is log v.

    log p(y) = log N(log y; eta, v) - log y,     E[y] = exp(eta + v / 2)

Coefficients and ``noise_sd`` refer to log y; predictions, intervals and densities refer to y.
"""

import dataclasses
from typing import ClassVar, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nghvi._typing import Key, Scalar
from nghvi.responses._shared import LARGEST, Positive
from nghvi.responses.gaussian import NoiseSd

SMALLEST_UNIT = 2.0**-20
"""Lower bound on the unit of log y."""


class Lognormal(Positive, NoiseSd):
    """Positive numbers whose logarithm has normal noise."""

    name: ClassVar[str] = "lognormal"
    ratio: ClassVar[str | None] = "ratio of medians"
    unit: float = eqx.field(static=True, default=1.0, kw_only=True)
    """A power of two near the sd of log y, so that similar data share compiled programs."""

    def suited(self, y: np.ndarray, known: np.ndarray, *, intercept: bool) -> Self:
        left = np.log(y) - known
        level = round(float(np.mean(left))) if intercept else 0
        unit = float(2.0 ** np.round(np.log2(max(np.std(left), SMALLEST_UNIT))))
        return dataclasses.replace(self, level=level, unit=unit)

    def typical(self, y: np.ndarray) -> None:
        return None

    def noise(self, mean: float, variance: float) -> float:
        return self.unit**2

    def start(self, variance: Scalar) -> Array:
        return jnp.full(1, 2 * np.log(self.unit))

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        return super().log_prob(jnp.log(y), eta, dispersion) - jnp.log(y)

    def slopes(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array]:
        precision = jnp.exp(-dispersion[0])
        return precision * (jnp.log(y) - eta), jnp.full_like(eta, -precision)

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        return jnp.exp(jnp.clip(super().sample(key, eta, dispersion), -LARGEST, LARGEST))

    def mean(self, eta: Array, dispersion: Array) -> Array:
        return self.rate(eta + 0.5 * jnp.exp(dispersion[0]))

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        mean = self.mean(location, dispersion)
        return mean, mean**2 * jnp.expm1(jnp.exp(dispersion[0]))

    def cdf(self, y: Array, location: Array, variance: Array, dispersion: Array) -> Array:
        log_y = jnp.log(jnp.maximum(y, np.finfo(float).tiny))
        return super().cdf(log_y, location, variance, dispersion)
