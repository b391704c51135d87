"""P(y = 1) = Phi(eta)."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array

from nghvi._core.response import Response, ResponseError
from nghvi._special import log_ndtr
from nghvi._typing import Key, Scalar
from nghvi.priors import Priors


class Probit(Response):
    """Bernoulli observations coded 0 and 1 with the probit link."""

    name: ClassVar[str] = "probit"
    binary: ClassVar[bool] = True

    def check(self, y: np.ndarray) -> None:
        values = np.unique(y)
        if not np.isin(values, [0, 1]).all():
            raise ResponseError(f"a binary response takes the values 0 and 1, not {values[:5]}.")
        if values.size == 1:
            raise ResponseError(f"the response has one class only ({values[0]:g}).")

    def log_prior(self, dispersion: Array, priors: Priors) -> Scalar:
        return jnp.zeros(())

    def start(self, y: Array) -> Array:
        return jnp.zeros(0)

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        return log_ndtr((2 * y - 1) * eta)

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        return (jax.random.normal(key, eta.shape) < eta).astype(eta.dtype)

    def mean(self, eta: Array, dispersion: Array) -> Array:
        return ndtr(eta)
