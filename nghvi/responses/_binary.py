"""What responses of two classes share whatever their link: the support, and no dispersion."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nghvi._core.response import Response, ResponseError
from nghvi._typing import Scalar
from nghvi.priors import Priors


class Binary(Response):
    """Bernoulli observations coded 0 and 1."""

    binary: ClassVar[bool] = True

    def check(self, y: np.ndarray) -> None:
        values = np.unique(y)
        if not np.isin(values, [0, 1]).all():
            raise ResponseError(f"a binary response takes the values 0 and 1, not {values[:5]}.")
        if values.size == 1:
            raise ResponseError(f"the response has one class only ({values[0]:g}).")

    def log_prior(self, dispersion: Array, priors: Priors) -> Scalar:
        return jnp.zeros(())

    def start(self, variance: Scalar) -> Array:
        return jnp.zeros(0)

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        probability = self.mean(location, dispersion)
        return probability, probability * (1 - probability)

    def cdf(self, y: Array, location: Array, variance: Array, dispersion: Array) -> Array:
        zero = 1 - self.mean(location, dispersion)
        return jnp.where(y < 0, 0.0, jnp.where(y < 1, zero, 1.0))
