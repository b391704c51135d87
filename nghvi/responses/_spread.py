"""One parameter of a response's own: a spread s > 0, such as 1 / sqrt(size), near half-normal.

s = 0 is the edge at which the response is a simpler one, and data may not tell a small s from it.
Theta therefore holds the coordinate of :mod:`nghvi._core.near_zero`, as for sds of effects.
"""

import dataclasses
from typing import Any, ClassVar, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nghvi._core import near_zero
from nghvi._core.response import Response
from nghvi._typing import Scalar
from nghvi.priors import Priors

FIRST = 0.3
"""s to begin with."""
LEAST_UNIT = 2.0**-20


class WithSpread(Response):
    """A response with a spread s ~ half-normal(``prior_scale``)."""

    prior_scale: float = eqx.field(static=True, default=1.0, kw_only=True)
    unit: float = eqx.field(static=True, default=0.125, kw_only=True)
    """c: spreads that data begin to tell from zero."""
    spread_name: ClassVar[str]
    """What s is, such as "1/sqrt(size)"."""

    @property
    def dispersion_names(self) -> tuple[str, ...]:
        return ("spread",)

    def information(self, y: np.ndarray) -> float:
        """That of y on s^2 at s = 0; infinite where s = 0 would leave no noise at all."""
        return np.inf

    def suited(self, y: np.ndarray, known: np.ndarray, *, intercept: bool) -> Self:
        told = max(self.information(y), 1.0) ** -0.25
        # A power of two, so that similar data share compiled programs.
        unit = max(2.0 ** np.round(np.log2(max(told, LEAST_UNIT))), LEAST_UNIT)
        found = super().suited(y, known, intercept=intercept)
        return dataclasses.replace(found, unit=float(unit))

    def spread(self, dispersion: Array) -> Array:
        """s; the last axis of ``dispersion`` begins with its coordinate."""
        return self.unit * jnp.exp(near_zero.log_in_units(dispersion[..., 0]))

    def log_prior(self, dispersion: Array, priors: Priors) -> Scalar:
        z = self.spread(dispersion) / self.prior_scale
        constant = 0.5 * np.log(2 / np.pi) - np.log(self.prior_scale)
        return constant - 0.5 * z**2 + WithSpread.log_volume(self, dispersion, priors)

    def log_volume(self, dispersion: Array, priors: Priors) -> Scalar:
        return jnp.log(self.spread(dispersion)) + jnp.log(near_zero.slope(dispersion[0]))

    def sample_prior(self, rng: np.random.Generator, number: int, priors: Priors) -> np.ndarray:
        drawn = np.abs(self.prior_scale * rng.standard_normal(number))
        return np.asarray(near_zero.coordinate(jnp.log(drawn / self.unit)))[:, None]

    def stated_priors(self, priors: Priors) -> dict[str, str]:
        return {self.spread_name: f"half-normal({self.prior_scale:.4g})"}

    def start(self, variance: Scalar) -> Array:
        return near_zero.coordinate(jnp.full(1, np.log(FIRST / self.unit)))

    def reported(self, dispersion: Array, scale: float, intercept: Any = 0.0) -> dict[str, Array]:
        return {self.spread_name: self.spread(dispersion)}
