"""y = eta + noise, noise ~ N(0, v); the dispersion is log v.

With weights, noise ~ N(0, v / w) with a known w > 0 for every row: means of w numbers are such.
The dispersion is then log v for a row of the usual weight; the reported noise is that of weight 1.
"""

import dataclasses
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array

from nghvi._core.response import Response, ResponseError, offenders
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


class WeightedGaussian(NoiseSd):
    """Normal observations of unequal precision, given by the weights of the rows."""

    name: ClassVar[str] = "weighted-gaussian"
    facts: ClassVar[tuple[str, ...]] = ("weights",)
    facts_needed: ClassVar[bool] = True
    weight: Any = None
    usual_weight: float = eqx.field(static=True, default=1.0, kw_only=True)
    """A power of two near the mean weight."""

    def given(self, facts: Any) -> Self:
        return dataclasses.replace(self, weight=None if facts is None else facts[..., 0])

    def check_facts(self, names: tuple[str, ...]) -> None:
        weight = np.asarray(self._weights, float)
        if (odd := ~(np.isfinite(weight) & (weight > 0))).any():
            raise ResponseError(
                f"{names[0]} holds {offenders(weight, odd)}: a weight is a precision above 0; "
                "leave out rows that carry no information."
            )

    def suited(self, y: np.ndarray, known: np.ndarray, *, intercept: bool) -> Self:
        usual = float(2.0 ** np.round(np.log2(np.mean(self._weights))))
        return dataclasses.replace(self, usual_weight=usual)

    @property
    def _weights(self) -> Any:
        return self.usual_weight if self.weight is None else self.weight

    def _by_row(self, dispersion: Array) -> Array:
        """Return the log variance of every row, in the form of a Gaussian's dispersion."""
        return (dispersion[0] - jnp.log(self._weights / self.usual_weight))[None]

    def reported(self, dispersion: Array, scale: float, intercept: Any = 0.0) -> dict[str, Array]:
        return super().reported(dispersion, scale * self.usual_weight**0.5, intercept)

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        return super().log_prob(y, eta, self._by_row(dispersion))

    def log_predictive(
        self, y: Array, location: Array, variance: Array, dispersion: Array
    ) -> Array:
        return self.log_prob(y, location, dispersion)

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        return super().sample(key, eta, self._by_row(dispersion))

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        mean, spread = super().moments(location, variance, self._by_row(dispersion))
        return mean, jnp.broadcast_to(spread, mean.shape)

    def cdf(self, y: Array, location: Array, variance: Array, dispersion: Array) -> Array:
        return super().cdf(y, location, variance, self._by_row(dispersion))
