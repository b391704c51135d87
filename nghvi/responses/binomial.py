"""y successes in n trials, each with probability 1 / (1 + exp(-eta)) or Phi(eta)."""

import abc
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.scipy.special import betainc, ndtr
from jaxtyping import Array
from scipy.special import ndtri

from nghvi._special import log_expit, log_ndtr
from nghvi._typing import Key
from nghvi.responses._shared import OfTrials
from nghvi.responses.binary import Logit


class _Binomial(OfTrials):
    """Successes in independent trials, with any symmetric link."""

    @abc.abstractmethod
    def log_share(self, eta: Array) -> Array:
        """Return the log probability of a success; that of a failure is its value at -eta."""

    @abc.abstractmethod
    def share(self, eta: Array) -> Array:
        """Return the probability of a success."""

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


class Binomial(_Binomial):
    """Successes in independent trials, with the logit link."""

    name: ClassVar[str] = "binomial"
    link: ClassVar[str] = "logit"
    ratio: ClassVar[str | None] = "odds ratio"
    attenuation: ClassVar[float] = Logit.attenuation

    def log_share(self, eta: Array) -> Array:
        return log_expit(eta)

    def share(self, eta: Array) -> Array:
        return jax.nn.sigmoid(eta)

    def slopes(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array]:
        success, failure = self.share(eta), self.share(-eta)
        n = self.num_trials
        return y * failure - (n - y) * success, -n * success * failure


class BinomialProbit(_Binomial):
    """Successes in independent trials, with the probit link."""

    name: ClassVar[str] = "binomial-probit"
    link: ClassVar[str] = "probit"
    attenuation: ClassVar[float] = 1.0

    def predictor_at(self, share: float) -> float:
        return float(ndtri(share))

    def log_share(self, eta: Array) -> Array:
        return log_ndtr(eta)

    def share(self, eta: Array) -> Array:
        return ndtr(eta)
