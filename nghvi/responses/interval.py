"""x = eta + noise, noise ~ N(0, v), where some rows only know an interval that contains x::

    log p(row) = log( Phi((upper - eta) / sd) - Phi((lower - eta) / sd) ),  lower < upper
               = log N(y; eta, v),                                          lower = upper

An infinite end means that a row is censored on one side. For an interval, y is any number in it,
such as its middle; the density does not depend on which. Predictions are of x.
"""

import dataclasses
from typing import Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array

from nghvi._core.response import ResponseError, offenders
from nghvi._special import log_ndtr_between, slopes_between
from nghvi.responses.gaussian import NoiseSd

FAR = 1e8
"""Distance from eta, in sds, beyond which an end counts as infinite."""
NO_END = 1e49
"""Size from which an end stands for an infinite one."""


class Interval(NoiseSd):
    """Normal observations, each known exactly or only to be in an interval."""

    name: ClassVar[str] = "interval"
    facts: ClassVar[tuple[str, ...]] = ("lower", "upper")
    facts_needed: ClassVar[bool] = True
    facts_like_response: ClassVar[bool] = True
    ends: Any = None
    """Lower and upper ends, one of each per row; None if all rows are known exactly."""

    def given(self, facts: Any) -> Self:
        ends = None if facts is None else (facts[..., 0], facts[..., 1])
        return dataclasses.replace(self, ends=ends)

    def check_facts(self, names: tuple[str, ...]) -> None:
        lower, upper = (np.asarray(end, float) for end in self.ends)
        if (crossed := ~(lower <= upper)).any():
            raise ResponseError(
                f"{names[0]} holds {offenders(lower, crossed)}, above {names[1]}: state the "
                "smaller number first, and the same number twice where it is known exactly."
            )

    def check(self, y: np.ndarray, column: str = "y") -> None:
        lower, upper = (y, y) if self.ends is None else self.ends
        if (outside := (y < lower) | (y > upper)).any():
            raise ResponseError(
                f"{column} holds {offenders(y, outside)}, outside its interval: give any number in "
                "it, such as its middle, or correct the interval."
            )
        ends = np.array([lower, upper], float)
        known = np.abs(ends) < NO_END
        if not known.all(axis=0).any() and len(np.unique(ends[known])) < 2:
            raise ResponseError(
                f"no row of {column} is known exactly or between two finite ends, and no two rows "
                "have different ones: nothing tells how much it varies; give the ends that are "
                "known, or response='probit' for whether it is beyond one and the same."
            )
        super().check(y, column)

    def has_density(self, y: np.ndarray) -> np.ndarray:
        lower, upper = (y, y) if self.ends is None else self.ends
        return np.asarray(lower == upper)

    def _standard_ends(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array, Array]:
        """Return whether each row is an interval, and its ends (arbitrary for other rows)."""
        lower, upper = (y, y) if self.ends is None else self.ends
        sd = jnp.exp(0.5 * dispersion[0])
        inside = (lower < upper) & (lower <= y) & (y <= upper)
        low = jnp.where(inside, jnp.clip((lower - eta) / sd, -FAR, FAR), -1.0)
        high = jnp.where(inside, jnp.clip((upper - eta) / sd, -FAR, FAR), 1.0)
        return inside, low, high

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        inside, low, high = self._standard_ends(y, eta, dispersion)
        exactly = super().log_prob(y, eta, dispersion)
        return jnp.where(inside, log_ndtr_between(low, high), exactly)

    def slopes(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array]:
        inside, low, high = self._standard_ends(y, eta, dispersion)
        first, second = slopes_between(low, high)
        sd = jnp.exp(0.5 * dispersion[0])
        z = (y - eta) / sd
        return jnp.where(inside, first, z) / sd, jnp.where(inside, second, -1.0) / sd**2

    def log_predictive(
        self, y: Array, location: Array, variance: Array, dispersion: Array
    ) -> Array:
        return self.log_prob(y, location, dispersion)

    def around(
        self, y: Array, location: Array, variance: Array, dispersion: Array
    ) -> tuple[Array, Array]:
        inside, low, high = self._standard_ends(y, location, dispersion)
        exactly = self.cdf(y, location, variance, dispersion)
        return jnp.where(inside, ndtr(low), exactly), jnp.where(inside, ndtr(high), exactly)
