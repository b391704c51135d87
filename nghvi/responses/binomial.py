"""y successes in n trials, each with probability 1 / (1 + exp(-eta)) or Phi(eta)."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.scipy.special import betainc
from jaxtyping import Array

from nghvi._typing import Key
from nghvi.responses._shared import LogitLink, OfTrials, ProbitLink


class _Binomial(OfTrials):
    """Successes in independent trials, with any symmetric link."""

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        failures = (self.num_trials - y) * self.log_share(-eta)
        return self.log_choices(y) + y * self.log_share(eta) + failures

    def log_none(self, eta: Array, dispersion: Array) -> Array:
        return self.num_trials * self.log_share(-eta)

    def growth(self, y: Array, eta: Array, dispersion: Array) -> Array:
        odds = jnp.exp(self.log_share(eta) - self.log_share(-eta))
        return jnp.maximum(self.num_trials - y, 0.0) / (y + 1) * odds

    def distant_cdf(self, y: Array, eta: Array, dispersion: Array) -> Array:
        left = self.num_trials - y
        inside = betainc(jnp.maximum(left, 1.0), y + 1, self.share(-eta))
        return jnp.where(left < 1, 1.0, inside)

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        drawn = jax.random.binomial(key, self.num_trials, self.share(eta), eta.shape)
        return drawn.astype(eta.dtype)

    def mean(self, eta: Array, dispersion: Array) -> Array:
        return self.num_trials * self.share(eta)

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        mean = self.mean(location, dispersion)
        return mean, mean * self.share(-location)


class Binomial(LogitLink, _Binomial):
    """Successes in independent trials, with the logit link."""

    name: ClassVar[str] = "binomial"

    def slopes(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array]:
        success, failure = self.share(eta), self.share(-eta)
        n = self.num_trials
        return y * failure - (n - y) * success, -n * success * failure


class BinomialProbit(ProbitLink, _Binomial):
    """Successes in independent trials, with the probit link."""

    name: ClassVar[str] = "binomial-probit"
