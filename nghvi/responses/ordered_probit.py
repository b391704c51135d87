"""P(y <= k) = Phi(t_k - eta).

With a < b the ends of the class and D = Phi(b) - Phi(a)::

    d / d eta log D = (phi(a) - phi(b)) / D,   d^2 / d eta^2 = (a phi(a) - b phi(b)) / D - that^2
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array
from scipy.special import ndtri

from nghvi._special import log_ndtr
from nghvi._typing import Key
from nghvi.responses._ordered import Ordered


class OrderedProbit(Ordered):
    """Ordered classes of a latent normal variable."""

    name: ClassVar[str] = "ordered-probit"
    link: ClassVar[str] = "probit"
    attenuation: ClassVar[float] = 1.0

    def cumulative(self, x: Array) -> Array:
        return ndtr(x)

    def quantile(self, p: np.ndarray) -> np.ndarray:
        return ndtri(p)

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        return log_ndtr_between(*self._ends(y, eta, dispersion))

    def slopes(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array]:
        low, high = self._ends(y, eta, dispersion)
        log_mass = log_ndtr_between(low, high)
        at_low, at_high = (
            jnp.exp(-0.5 * (end**2 + np.log(2 * np.pi)) - log_mass) for end in (low, high)
        )
        first = at_low - at_high
        return first, jnp.minimum(low * at_low - high * at_high - first**2, 0.0)

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        return self.classify(eta + jax.random.normal(key, eta.shape), dispersion)


def log_ndtr_between(low: Array, high: Array) -> Array:
    """log(Phi(high) - Phi(low)), in the tail that has the digits."""
    flip = low + high > 0
    low, high = jnp.where(flip, -high, low), jnp.where(flip, -low, high)
    upper = log_ndtr(high)
    return upper + jnp.log(-jnp.expm1(log_ndtr(low) - upper))
