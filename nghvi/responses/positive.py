"""Positive numbers: gamma and lognormal.

**Gamma.** y ~ Gamma with mean mu and shape k, log mu = eta; the sd of y is mu / sqrt(k).

The coefficient of variation s = 1 / sqrt(k) is the parameter::

    log p(y) = k (log k + log y - eta - y / mu) - log y - log Gamma(k)

**Lognormal.** log y = eta + noise, noise ~ N(0, v); the dispersion is log v.

    log p(y) = log N(log y; eta, v) - log y,     E[y] = exp(eta + v / 2)

Coefficients and ``noise_sd`` refer to log y; predictions, intervals and densities refer to y.
"""

import dataclasses
from typing import ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammainc, gammaln
from jaxtyping import Array

from nghvi._core.response import ResponseError, Support, offenders
from nghvi._typing import Key, Scalar
from nghvi.responses._shared import LARGEST, LogLink, WithSpread, check_range
from nghvi.responses.gaussian import NoiseSd


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


class GammaResponse(WithSpread, Positive):
    """Positive numbers whose sd is proportional to their mean."""

    name: ClassVar[str] = "gamma"
    ratio: ClassVar[str | None] = "ratio of means"
    spread_name: ClassVar[str] = "cv"

    def check(self, y: np.ndarray, column: str = "y") -> None:
        super().check(y, column)
        check_range(np.log(y), column)

    def noise(self, mean: float, variance: float) -> float:
        return float(np.clip(variance / mean**2, 1e-4, 1e4))

    def shape(self, dispersion: Array) -> Array:
        """Return the shape k."""
        return self.spread(dispersion) ** -2

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        shape, ratio = self.shape(dispersion), self._ratio(y, eta)
        return shape * (jnp.log(shape * ratio) - ratio) - gammaln(shape) - jnp.log(y)

    def slopes(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array]:
        shape, ratio = self.shape(dispersion), self._ratio(y, eta)
        return shape * (ratio - 1), -shape * ratio

    def _ratio(self, y: Array, eta: Array) -> Array:
        """Return y / mu."""
        return y * jnp.exp(jnp.minimum(-eta, LARGEST))

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        shape = self.shape(dispersion)
        log_factor = jax.random.loggamma(key, shape, eta.shape) - jnp.log(shape)
        return jnp.exp(jnp.clip(eta + log_factor, -LARGEST, LARGEST))

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        mean = self.mean(location, dispersion)
        return mean, mean**2 / self.shape(dispersion)

    def cdf(self, y: Array, location: Array, variance: Array, dispersion: Array) -> Array:
        shape = self.shape(dispersion)
        return gammainc(shape, shape * self._ratio(jnp.maximum(y, 0.0), location))


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
