"""y = eta + noise, noise ~ N(0, v); the dispersion is log v."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array

from nghvi._core.response import Response, ResponseError
from nghvi._typing import Key, Scalar
from nghvi.priors import Priors


class Gaussian(Response):
    """Normal observations with one unknown noise variance."""

    name: ClassVar[str] = "gaussian"
    num_dispersion: ClassVar[int] = 1
    dispersion_names: ClassVar[tuple[str, ...]] = ("log_noise_var",)
    conjugate: ClassVar[bool] = True

    def check(self, y: np.ndarray) -> None:
        if not np.isfinite(y).all():
            raise ResponseError("a continuous response takes finite numbers only.")
        if np.ptp(y) == 0:
            raise ResponseError(
                f"the response is constant (every value is {y[0]:g}): there is nothing to explain."
            )

    def log_prior(self, dispersion: Array, priors: Priors) -> Scalar:
        return priors.noise.log_density(dispersion)

    def start(self, variance: Scalar) -> Array:
        return jnp.log(variance)[None]

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        (log_variance,) = dispersion
        square = (y - eta) ** 2 * jnp.exp(-log_variance)
        return -0.5 * (jnp.log(2 * jnp.pi) + log_variance + square)

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        return eta + jnp.exp(0.5 * dispersion[0]) * jax.random.normal(key, eta.shape)

    def mean(self, eta: Array, dispersion: Array) -> Array:
        return eta

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        return location, variance + jnp.exp(dispersion[0])

    def log_predictive(
        self, y: Array, location: Array, variance: Array, dispersion: Array
    ) -> Array:
        total = jnp.log(variance + jnp.exp(dispersion[0]))
        return self.log_prob(y, location, total[None])

    def cdf(self, y: Array, location: Array, variance: Array, dispersion: Array) -> Array:
        return ndtr((y - location) / jnp.sqrt(variance + jnp.exp(dispersion[0])))
