"""y ~ NegativeBinomial(mean mu, size k), log mu = eta: variance mu + mu^2 / k.

It is a Poisson distribution whose rate varies by a Gamma(k, k) factor. The spread of that factor,
s = 1 / sqrt(k), is the parameter: at s = 0 the counts are Poisson. With a = 1 / k and r = y + k::

    log p(y) = log Gamma(r) - log Gamma(k) - y log k - log y! + y eta - r log(1 + a mu)

If k is large, each of the first three terms is large but their sum is not, so they are computed
together by Stirling's series, down to spreads of a millionth.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc
from jaxtyping import Array

from nghvi._special import log_gamma, log_rising
from nghvi._typing import Key
from nghvi.responses._shared import Counts, WithSpread

LARGEST_SIZE, LARGEST_OF_SUMS = 1e12, 1e8
"""Largest size that is used, beyond which counts are as good as Poisson; incomplete beta functions
lose their digits earlier, so they have a smaller bound."""


class NegativeBinomial(WithSpread, Counts):
    """Numbers of events whose variance exceeds their mean."""

    name: ClassVar[str] = "negative-binomial"
    spread_name: ClassVar[str] = "1/sqrt(size)"

    def noise(self, mean: float, variance: float) -> float:
        return max(variance, mean) / mean**2

    def information(self, y: np.ndarray) -> float:
        # The sum of mu^2 / 2; for Poisson counts the expectation of y (y - 1) is mu^2.
        return float(np.sum(y * (y - 1))) / 2

    def size(self, dispersion: Array) -> Array:
        """Return the size k."""
        return 1 / jnp.maximum(self.spread(dispersion) ** 2, 1 / LARGEST_SIZE)

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        size = self.size(dispersion)
        against = (y + size) * jax.nn.softplus(eta - jnp.log(size))
        return log_rising(y, size) - log_gamma(y + 1.0) + y * eta - against

    def slopes(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array]:
        size = self.size(dispersion)
        share = jax.nn.sigmoid(eta - jnp.log(size))
        return y - (y + size) * share, -(y + size) * share * (1 - share)

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        size = self.size(dispersion)
        key_rate, key_count = jax.random.split(key)
        factor = jax.random.gamma(key_rate, size, eta.shape) / size
        rate = self.rate(eta) * factor
        return jax.random.poisson(key_count, rate).astype(eta.dtype)

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        mean = self.rate(location)
        return mean, mean + mean**2 / self.size(dispersion)

    def log_none(self, eta: Array, dispersion: Array) -> Array:
        size = self.size(dispersion)
        return -size * jax.nn.softplus(eta - jnp.log(size))

    def growth(self, y: Array, eta: Array, dispersion: Array) -> Array:
        size = self.size(dispersion)
        return (y + size) / (y + 1) * jax.nn.sigmoid(eta - jnp.log(size))

    def distant_cdf(self, y: Array, eta: Array, dispersion: Array) -> Array:
        size = jnp.minimum(self.size(dispersion), LARGEST_OF_SUMS)
        return betainc(size, y + 1, jax.nn.sigmoid(jnp.log(size) - eta))
