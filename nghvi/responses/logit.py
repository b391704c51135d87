"""P(y = 1) = 1 / (1 + exp(-eta))."""

from typing import ClassVar

import jax
import numpy as np
from jaxtyping import Array

from nghvi._special import log_expit
from nghvi._typing import Key
from nghvi.latents import polya_gamma
from nghvi.latents.rows import RowProblem
from nghvi.responses._binary import Binary


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
        return polya_gamma.sample(key, problem, effects, sweeps)
