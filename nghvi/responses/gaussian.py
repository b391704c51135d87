"""y = eta + noise, noise ~ N(0, v); the dispersion is log v."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array

from nghvi._core.response import Response
from nghvi._typing import Key, Scalar
from nghvi.priors import Priors


class Continuous(Response):
    """Finite numbers that may be standardised."""

    def typical(self, y: np.ndarray) -> np.ndarray | None:
        return y


class Gaussian(Continuous):
    """Normal observations with one unknown noise variance."""

    name: ClassVar[str] = "gaussian"
    conjugate: ClassVar[bool] = True

    @property
    def dispersion_names(self) -> tuple[str, ...]:
        return ("log_noise_var",)

    def log_prior(self, dispersion: Array, priors: Priors) -> Scalar:
        return priors.noise.log_density(dispersion)

    def log_volume(self, dispersion: Array, priors: Priors) -> Scalar:
        return priors.noise.log_volume(dispersion)

    def sample_prior(self, rng: np.random.Generator, number: int, priors: Priors) -> np.ndarray:
        return priors.noise.sample(rng, number)

    def stated_priors(self, priors: Priors) -> dict[str, str]:
        return {"noise_var": priors.noise.stated()}

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

    def reported(self, dispersion: Array, scale: float, intercept: Any = 0.0) -> dict[str, Array]:
        return {"noise_var": scale**2 * jnp.exp(dispersion[..., 0])}


class NoiseSd(Gaussian):
    """Normal noise behind observations that are not Gaussian with one variance.

    Effects do not integrate out in closed form. The sd of the noise is reported, not its variance.
    """

    conjugate: ClassVar[bool] = False

    def stated_priors(self, priors: Priors) -> dict[str, str]:
        return {"noise_sd": priors.noise.stated()}

    def reported(self, dispersion: Array, scale: float, intercept: Any = 0.0) -> dict[str, Array]:
        return {"noise_sd": scale * jnp.exp(0.5 * dispersion[..., 0])}
