"""P(y <= k) = 1 / (1 + exp(eta - t_k)): proportional odds."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy.special import logit

from nghvi._special import log_expit
from nghvi._typing import Key
from nghvi.responses._ordered import Ordered
from nghvi.responses.logit import Logit


class OrderedLogit(Ordered):
    """Ordered classes whose odds of being above a cutpoint are proportional."""

    name: ClassVar[str] = "ordered-logit"
    link: ClassVar[str] = "logit"
    ratio: ClassVar[str | None] = "odds ratio"
    attenuation: ClassVar[float] = Logit.attenuation

    def cumulative(self, x: Array) -> Array:
        return jax.nn.sigmoid(x)

    def quantile(self, p: np.ndarray) -> np.ndarray:
        return logit(p)

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        # F(b) - F(a) = F(b) F(-a) (1 - exp(a - b)).
        low, high = self._ends(y, eta, dispersion)
        return log_expit(high) + log_expit(-low) + jnp.log(-jnp.expm1(low - high))

    def slopes(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array]:
        low, high = self._ends(y, eta, dispersion)
        below, above = jax.nn.sigmoid(low), jax.nn.sigmoid(-high)
        return below - above, -below * jax.nn.sigmoid(-low) - above * jax.nn.sigmoid(high)

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        return self.classify(eta + jax.random.logistic(key, eta.shape), dispersion)
