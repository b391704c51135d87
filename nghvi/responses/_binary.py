"""What responses of two classes share whatever their link: the support, and no dispersion."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nghvi._core.response import Response, ResponseError
from nghvi._core.support import Support


class Binary(Response):
    """Bernoulli observations coded 0 and 1."""

    classes: ClassVar[bool] = True

    @property
    def support(self) -> Support:
        return Support(0, 1, discrete=True)

    def check(self, y: np.ndarray, column: str = "y") -> None:
        values = np.unique(y)
        if not np.isin(values, [0, 1]).all():
            raise ResponseError(f"a binary response takes the values 0 and 1, not {values[:5]}.")
        if values.size == 1:
            raise ResponseError(f"the response has one class only ({values[0]:g}).")

    def noise(self, mean: float, variance: float) -> float:
        # Of y given its latent normal or logistic variable, least where both classes are equal.
        return (np.pi / 2 / self.attenuation) * 0.25 / variance

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        probability = self.mean(location, dispersion)
        return probability, probability * (1 - probability)

    def cdf(self, y: Array, location: Array, variance: Array, dispersion: Array) -> Array:
        zero = 1 - self.mean(location, dispersion)
        return jnp.where(y < 0, 0.0, jnp.where(y < 1, zero, 1.0))
