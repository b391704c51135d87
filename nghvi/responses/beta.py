"""y ~ Beta(a, b) in (0, 1), a = mu phi, b = (1 - mu) phi, logit mu = eta.

The variance is mu (1 - mu) / (1 + phi); s = 1 / sqrt(phi) is the parameter.
With t = logit y and m = mu (1 - mu)::

    log p(y) = log Gamma(phi) - log Gamma(a) - log Gamma(b) + (a - 1) log y + (b - 1) log(1 - y)
    d / d eta     = phi m (t - psi(a) + psi(b))
    d^2 / d eta^2 = (1 - 2 mu) d / d eta - I,     I = (phi m)^2 (psi'(a) + psi'(b))

I is the Fisher information. The density is not log-concave if y is far from mu.
"""

import abc
import dataclasses
from typing import ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc
from jaxtyping import Array
from scipy.special import logit

from nghvi._core.response import Support
from nghvi._special import digamma, log_gamma, trigamma
from nghvi._typing import Key
from nghvi.responses._shared import WithSpread, check_range

FARTHEST = 300.0
"""Largest |eta| that is used, so that the parameters of the Beta stay away from 0 and infinity."""


class WithLogitMean(WithSpread):
    """A response with mean mu = 1 / (1 + exp(-eta)) and a spread, which is not log-concave.

    The second derivative in eta is (1 - 2 mu) times the first, minus a number that is not negative.
    """

    link: ClassVar[str] = "logit"
    ratio: ClassVar[str | None] = "odds ratio"
    log_concave: ClassVar[bool] = False
    spread_name: ClassVar[str] = "1/sqrt(phi)"

    @abc.abstractmethod
    def derivatives(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array, Array]:
        """Return the first derivative in eta, the number that is not negative, and mu."""

    def slopes(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array]:
        first, safe, _ = self.derivatives(y, eta, dispersion)
        return first, -safe

    def curvature(self, y: Array, eta: Array, dispersion: Array) -> Array:
        first, safe, mu = self.derivatives(y, eta, dispersion)
        return safe - (1 - 2 * mu) * first


class Beta(WithLogitMean):
    """Shares strictly between 0 and 1."""

    name: ClassVar[str] = "beta"
    remedy: ClassVar[str] = (
        "shares of exactly 0 or 1 need another model: if they are rounded, move them inside, as "
        "(y * (n - 1) + 0.5) / n does; for successes in trials use response='binomial'; divide "
        "percentages by 100."
    )
    level: int = eqx.field(static=True, default=0, kw_only=True)
    """A typical eta, as a whole number, so that similar data share compiled programs."""

    @property
    def support(self) -> Support:
        return Support(0, 1)

    def check(self, y: np.ndarray, column: str = "y") -> None:
        super().check(y, column)
        check_range(logit(y), column)

    @property
    def typical_predictor(self) -> float:
        return float(self.level)

    def suited(self, y: np.ndarray, known: np.ndarray, *, intercept: bool) -> Self:
        mean = np.mean(y)
        level = round(float(np.log(mean / (1 - mean)) - np.mean(known))) if intercept else 0
        found = super().suited(y, known, intercept=intercept)
        return dataclasses.replace(found, level=level)

    def noise(self, mean: float, variance: float) -> float:
        return float(np.clip(variance / (mean * (1 - mean)) ** 2, 1e-4, 1e4))

    def _shapes(self, eta: Array, dispersion: Array) -> tuple[Array, Array, Array]:
        """Return phi, a and b."""
        phi = self.spread(dispersion) ** -2
        eta = jnp.clip(eta, -FARTHEST, FARTHEST)
        return phi, phi * jax.nn.sigmoid(eta), phi * jax.nn.sigmoid(-eta)

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        phi, a, b = self._shapes(eta, dispersion)
        # One call for both, since most of the time goes into compiling it.
        of_a, of_b = log_gamma(jnp.stack([a, b]))
        constant = log_gamma(phi) - of_a - of_b
        return constant + (a - 1) * jnp.log(y) + (b - 1) * jnp.log1p(-y)

    def derivatives(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array, Array]:
        phi, a, b = self._shapes(eta, dispersion)
        inner = a * b / phi  # phi mu (1 - mu)
        logit = jnp.log(y) - jnp.log1p(-y)
        both = jnp.stack([a, b])
        at, change = digamma(both), trigamma(both)
        return inner * (logit - at[0] + at[1]), inner**2 * (change[0] + change[1]), a / phi

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        _, a, b = self._shapes(eta, dispersion)
        drawn = jax.random.beta(key, a, b, eta.shape)
        # Draws closer to an end than floating point can tell must stay inside.
        return jnp.clip(drawn, np.finfo(float).tiny, 1 - np.finfo(float).epsneg)

    def mean(self, eta: Array, dispersion: Array) -> Array:
        return jax.nn.sigmoid(eta)

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        phi, a, b = self._shapes(location, dispersion)
        return self.mean(location, dispersion), a * b / phi**2 / (1 + phi)

    def cdf(self, y: Array, location: Array, variance: Array, dispersion: Array) -> Array:
        _, a, b = self._shapes(location, dispersion)
        return betainc(a, b, jnp.clip(y, 0.0, 1.0))
