"""y ~ NegativeBinomial(mean mu, size k), log mu = eta: variance mu + mu^2 / k.

A Poisson whose rate varies by a Gamma(k, k) factor. The spread of that factor, s = 1 / sqrt(k),
is the parameter: at s = 0 the counts are Poisson. With a = 1 / k and r = y + k::

    log p(y) = log Gamma(r) - log Gamma(k) - log y! + y (eta + log a) - r log(1 + a mu)
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.scipy.special import betainc, gammaln
from jaxtyping import Array

from nghvi._typing import Key
from nghvi.responses._log_link import Counts
from nghvi.responses._spread import WithSpread

LARGEST_SIZE = 1e6
"""Beyond, counts are as good as Poisson, and differences of log gammas lose their digits."""


class NegativeBinomial(WithSpread, Counts):
    """Numbers of events that vary more than their mean."""

    name: ClassVar[str] = "negative-binomial"
    spread_name: ClassVar[str] = "1/sqrt(size)"

    def noise(self, mean: float, variance: float) -> float:
        return max(variance, mean) / mean**2

    def size(self, dispersion: Array) -> Array:
        """k."""
        return 1 / jnp.maximum(self.spread(dispersion) ** 2, 1 / LARGEST_SIZE)

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        size = self.size(dispersion)
        log_odds = eta - jnp.log(size)
        constant = gammaln(y + size) - gammaln(size) - gammaln(y + 1)
        return constant + y * log_odds - (y + size) * jax.nn.softplus(log_odds)

    def slopes(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array]:
        size = self.size(dispersion)
        share = jax.nn.sigmoid(eta - jnp.log(size))
        return y - (y + size) * share, -(y + size) * share * (1 - share)

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        size = self.size(dispersion)
        key_rate, key_count = jax.random.split(key)
        factor = jax.random.gamma(key_rate, size, eta.shape) / size
        rate = self.mean(eta, dispersion) * factor
        return jax.random.poisson(key_count, rate).astype(eta.dtype)

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        mean = self.mean(location, dispersion)
        return mean, mean + mean**2 / self.size(dispersion)

    def growth(self, y: Array, eta: Array, dispersion: Array) -> Array:
        size = self.size(dispersion)
        return (y + size) / (y + 1) * jax.nn.sigmoid(eta - jnp.log(size))

    def distant_cdf(self, y: Array, eta: Array, dispersion: Array) -> Array:
        size = self.size(dispersion)
        return betainc(size, y + 1, jax.nn.sigmoid(jnp.log(size) - eta))
