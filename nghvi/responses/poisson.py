"""y ~ Poisson(mu), log mu = eta: log p(y) = y eta - mu - log y!"""

from typing import ClassVar

import jax
from jax.scipy.special import gammaincc
from jaxtyping import Array

from nghvi._special import log_gamma
from nghvi._typing import Key
from nghvi.responses._shared import Counts


class Poisson(Counts):
    """Numbers of events whose variance equals their mean."""

    name: ClassVar[str] = "poisson"

    def noise(self, mean: float, variance: float) -> float:
        return 1 / mean

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        return y * eta - self.rate(eta) - log_gamma(y + 1.0)

    def slopes(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array]:
        mean = self.rate(eta)
        return y - mean, -mean

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        return jax.random.poisson(key, self.rate(eta)).astype(eta.dtype)

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        mean = self.rate(location)
        return mean, mean

    def log_none(self, eta: Array, dispersion: Array) -> Array:
        return -self.rate(eta)

    def growth(self, y: Array, eta: Array, dispersion: Array) -> Array:
        return self.rate(eta) / (y + 1)

    def distant_cdf(self, y: Array, eta: Array, dispersion: Array) -> Array:
        return gammaincc(y + 1, self.rate(eta))
