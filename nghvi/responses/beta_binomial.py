"""y successes in n trials whose probability varies as Beta(mu phi, (1 - mu) phi), logit mu = eta.

s = 1 / sqrt(phi) is the parameter; at s = 0 the trials are independent. With a = mu phi,
b = (1 - mu) phi, m = mu (1 - mu), R(y, a) = log Gamma(a + y) - log Gamma(a) - y log a and psi the
digamma function::

    log p(y) = log C(n, y) + R(y, a) + R(n - y, b) - R(n, phi) + y log mu + (n - y) log(1 - mu)
    d / d eta     = phi m (psi(a + y) - psi(a) - psi(b + n - y) + psi(b))
    d^2 / d eta^2 = (1 - 2 mu) d / d eta - Q
    Q = (phi m)^2 (psi'(a) - psi'(a + y) + psi'(b) - psi'(b + (n - y))) >= 0

The density is not log-concave if the share of successes is far from mu; Q then replaces the
curvature.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nghvi._special import digamma, log_expit, log_rising, trigamma
from nghvi._typing import Key
from nghvi.responses._shared import OfTrials
from nghvi.responses.beta import WithLogitMean

LARGEST_PRECISION = 1e8
"""Largest phi that is used: beyond it trials are as good as independent, and differences of
digammas lose their digits."""
FARTHEST = 300.0
"""Largest |eta| that is used, so that the parameters of the Beta stay away from 0."""


class BetaBinomial(WithLogitMean, OfTrials):
    """Successes in trials that vary more than independent ones."""

    name: ClassVar[str] = "beta-binomial"

    def information(self, y: np.ndarray) -> float:
        # The variance is roughly that of independent trials times 1 + (n - 1) s^2.
        number = np.broadcast_to(np.asarray(self.num_trials, float), y.shape)
        return float(np.sum((number - 1) ** 2)) / 2

    def _shapes(self, eta: Array, dispersion: Array) -> tuple[Array, Array, Array]:
        """Return phi, a and b."""
        phi = jnp.minimum(self.spread(dispersion) ** -2, LARGEST_PRECISION)
        eta = jnp.clip(eta, -FARTHEST, FARTHEST)
        # By way of logarithms, since the slope of a sigmoid near 1 loses its digits.
        return phi, phi * jnp.exp(log_expit(eta)), phi * jnp.exp(log_expit(-eta))

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        n, (phi, a, b) = self.num_trials, self._shapes(eta, dispersion)
        shares = y * log_expit(eta) + (n - y) * log_expit(-eta)
        varying = log_rising(y, a) + log_rising(n - y, b) - log_rising(jnp.asarray(n), phi)
        return self.log_choices(y) + varying + shares

    def derivatives(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array, Array]:
        n, (phi, a, b) = self.num_trials, self._shapes(eta, dispersion)
        inner = a * b / phi  # phi mu (1 - mu)
        # If a or b is tiny, its two terms are huge and must cancel each other first.
        first = (digamma(a + y) - digamma(a)) - (digamma(b + (n - y)) - digamma(b))
        falls = (trigamma(a) - trigamma(a + y)) + (trigamma(b) - trigamma(b + (n - y)))
        return inner * first, inner**2 * jnp.maximum(falls, 0.0), a / phi

    def log_none(self, eta: Array, dispersion: Array) -> Array:
        return self.log_prob(jnp.zeros_like(eta), eta, dispersion)

    def growth(self, y: Array, eta: Array, dispersion: Array) -> Array:
        n, (_, a, b) = self.num_trials, self._shapes(eta, dispersion)
        left = jnp.maximum(n - y, 0.0)
        return left / (y + 1) * (a + y) / jnp.maximum(b + left - 1, 1e-300)

    def distant_cdf(self, y: Array, eta: Array, dispersion: Array) -> Array:
        def add(state: tuple[Array, Array]) -> tuple[Array, Array]:
            at, total = state
            term = jnp.exp(self.log_prob(jnp.full_like(eta, at), eta, dispersion))
            return at + 1, total + jnp.where(at <= y, term, 0.0)

        begin = (jnp.zeros(()), jnp.zeros_like(eta))
        return jax.lax.while_loop(lambda state: state[0] <= jnp.max(y), add, begin)[1]

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        _, a, b = self._shapes(eta, dispersion)
        key_share, key_count = jax.random.split(key)
        share = jax.random.beta(key_share, a, b, eta.shape)
        return jax.random.binomial(key_count, self.num_trials, share, eta.shape).astype(eta.dtype)

    def mean(self, eta: Array, dispersion: Array) -> Array:
        return self.num_trials * jax.nn.sigmoid(eta)

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        n, (phi, _, _) = self.num_trials, self._shapes(location, dispersion)
        mean = self.mean(location, dispersion)
        return mean, mean * jax.nn.sigmoid(-location) * (1 + (n - 1) / (1 + phi))
