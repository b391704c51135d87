"""P(y = 1) = Phi(eta)."""

from typing import ClassVar

import jax
from jax.scipy.special import ndtr
from jaxtyping import Array

from nghvi._special import log_ndtr
from nghvi._typing import Key
from nghvi.latents import albert_chib
from nghvi.latents.rows import RowProblem
from nghvi.responses._binary import Binary


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
        return albert_chib.sample(key, problem, effects, sweeps)
