"""y ~ Gamma with mean mu and shape k, log mu = eta; the sd of y is mu / sqrt(k).

The coefficient of variation s = 1 / sqrt(k) is the parameter::

    log p(y) = k (log k + log y - eta - y / mu) - log y - log Gamma(k)
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammainc, gammaln
from jaxtyping import Array

from nghvi._typing import Key
from nghvi.responses._shared import LARGEST, Positive, WithSpread, check_range


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
