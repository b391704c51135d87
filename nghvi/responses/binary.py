"""Two classes: P(y = 1) is Phi(eta) (probit) or 1 / (1 + exp(-eta)) (logit)."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nghvi._core.response import ResponseError, Support
from nghvi._typing import Key
from nghvi.latents import augment
from nghvi.latents.rows import RowProblem
from nghvi.responses._shared import LogitLink, ProbitLink, SymmetricLink


class Binary(SymmetricLink):
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

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        return self.log_share((2 * y - 1) * eta)

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        return (self.latent_noise(key, eta.shape) < eta).astype(eta.dtype)

    def mean(self, eta: Array, dispersion: Array) -> Array:
        return self.share(eta)

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        probability = self.share(location)
        return probability, probability * (1 - probability)

    def cdf(self, y: Array, location: Array, variance: Array, dispersion: Array) -> Array:
        return jnp.where(y < 0, 0.0, jnp.where(y < 1, 1 - self.share(location), 1.0))


class Probit(ProbitLink, Binary):
    """Bernoulli observations coded 0 and 1 with the probit link."""

    name: ClassVar[str] = "probit"

    def gibbs(self, key: Key, problem: RowProblem, effects: Array, sweeps: int) -> Array:
        return augment.sample_probit(key, problem, effects, sweeps)


class Logit(LogitLink, Binary):
    """Bernoulli observations coded 0 and 1 with the logit link."""

    name: ClassVar[str] = "logit"

    def gibbs(self, key: Key, problem: RowProblem, effects: Array, sweeps: int) -> Array:
        return augment.sample_logit(key, problem, effects, sweeps)
