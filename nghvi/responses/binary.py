"""Two classes: P(y = 1) is Phi(eta) (probit) or 1 / (1 + exp(-eta)) (logit)."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array

from nghvi._core.response import Response, ResponseError, Support
from nghvi._special import log_expit, log_ndtr
from nghvi._typing import Key
from nghvi.latents import augment
from nghvi.latents.rows import RowProblem


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
            raise ResponseError(f"the response has only one class ({values[0]:g}).")

    def noise(self, mean: float, variance: float) -> float:
        # The noise of the latent normal or logistic variable, least for equally frequent classes.
        return (np.pi / 2 / self.attenuation) * 0.25 / variance

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        probability = self.mean(location, dispersion)
        return probability, probability * (1 - probability)

    def cdf(self, y: Array, location: Array, variance: Array, dispersion: Array) -> Array:
        zero = 1 - self.mean(location, dispersion)
        return jnp.where(y < 0, 0.0, jnp.where(y < 1, zero, 1.0))


class Probit(Binary):
    """Bernoulli observations coded 0 and 1 with the probit link."""

    name: ClassVar[str] = "probit"
    link: ClassVar[str] = "probit"
    attenuation: ClassVar[float] = 1.0

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        return log_ndtr((2 * y - 1) * eta)

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        return (jax.random.normal(key, eta.shape) < eta).astype(eta.dtype)

    def mean(self, eta: Array, dispersion: Array) -> Array:
        return ndtr(eta)

    def gibbs(self, key: Key, problem: RowProblem, effects: Array, sweeps: int) -> Array:
        return augment.sample_probit(key, problem, effects, sweeps)


class Logit(Binary):
    """Bernoulli observations coded 0 and 1 with the logit link."""

    name: ClassVar[str] = "logit"
    link: ClassVar[str] = "logit"
    ratio: ClassVar[str | None] = "odds ratio"
    attenuation: ClassVar[float] = (16 * 3**0.5 / (15 * np.pi)) ** 2

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        return log_expit((2 * y - 1) * eta)

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        return (jax.random.logistic(key, eta.shape) < eta).astype(eta.dtype)

    def mean(self, eta: Array, dispersion: Array) -> Array:
        return jax.nn.sigmoid(eta)

    def gibbs(self, key: Key, problem: RowProblem, effects: Array, sweeps: int) -> Array:
        return augment.sample_logit(key, problem, effects, sweeps)
