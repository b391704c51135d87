"""One parameter of a response's own: a spread s > 0, such as 1 / sqrt(size), near half-normal.

s = 0 is the edge at which the response is a simpler one, and data may not tell a small s from it.
Theta therefore holds u with ``log s = log c + u / 4 + log Phi(u)`` as for sds of effects
(:mod:`nghvi.models.scales`): to the right a logarithm, to the left a coordinate in which a density
that is flat in s is normal.
"""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nghvi._core.response import Response
from nghvi._special import inverse_mills, log_ndtr
from nghvi._typing import Scalar
from nghvi.priors import Priors

SLOPE = 0.25
UNIT = 0.1
"""c: spreads below hardly matter beside what else is unknown."""
FIRST = 1.0
"""u to begin with."""


class WithSpread(Response):
    """A response with a spread s ~ half-normal(``prior_scale``)."""

    prior_scale: float = eqx.field(static=True, default=1.0, kw_only=True)
    spread_name: ClassVar[str]
    """What s is, such as "1/sqrt(size)"."""

    @property
    def dispersion_names(self) -> tuple[str, ...]:
        return ("spread",)

    def spread(self, dispersion: Array) -> Array:
        """s; the last axis of ``dispersion`` holds its one entry."""
        u = dispersion[..., 0]
        return UNIT * jnp.exp(SLOPE * u + log_ndtr(u))

    def log_prior(self, dispersion: Array, priors: Priors) -> Scalar:
        z = self.spread(dispersion) / self.prior_scale
        constant = 0.5 * np.log(2 / np.pi) - np.log(self.prior_scale)
        return constant - 0.5 * z**2 + self.log_volume(dispersion, priors)

    def log_volume(self, dispersion: Array, priors: Priors) -> Scalar:
        (u,) = dispersion
        return jnp.log(self.spread(dispersion)) + jnp.log(SLOPE + inverse_mills(u))

    def sample_prior(self, rng: np.random.Generator, number: int, priors: Priors) -> np.ndarray:
        drawn = np.abs(self.prior_scale * rng.standard_normal(number))
        grid = np.linspace(-40, 40, 20_001)
        at = np.asarray(SLOPE * grid + log_ndtr(jnp.asarray(grid)))
        return np.interp(np.log(drawn / UNIT), at, grid)[:, None]

    def stated_priors(self, priors: Priors) -> dict[str, str]:
        return {self.spread_name: f"half-normal({self.prior_scale:.4g})"}

    def start(self, variance: Scalar) -> Array:
        return jnp.full(1, FIRST)

    def reported(self, dispersion: Array, scale: float) -> dict[str, Array]:
        return {self.spread_name: self.spread(dispersion)}
