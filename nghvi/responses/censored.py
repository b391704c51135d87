"""y = eta + noise, noise ~ N(0, v), where some rows are known only up to bounds of their own.

**Tobit.** y is observed only between two bounds, which may be infinite. A row at its lower bound
says that the latent variable is there or below, one at its upper bound that it is there or above::

    log p(y) = log Phi((lower - eta) / sd),  log N(y; eta, v)  or  log Phi((eta - upper) / sd)

**Interval.** Some rows only know an interval that contains the latent variable::

    log p(row) = log( Phi((upper - eta) / sd) - Phi((lower - eta) / sd) ),  lower < upper
               = log N(y; eta, v),                                          lower = upper

An infinite end means that a row is censored on one side. For an interval, y is any number in it,
such as its middle; the density does not depend on which. Predictions are of the latent variable.
"""

import dataclasses
from typing import Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array

from nghvi._core.response import ResponseError, Support, offenders
from nghvi._special import log_ndtr, log_ndtr_between, slopes_between
from nghvi._typing import Key
from nghvi.responses.gaussian import NoiseSd

FAR = 1e8
"""Distance from eta, in sds, beyond which a bound counts as infinite."""
NO_END = 1e49
"""Size from which the end of an interval stands for an infinite one."""


class Censored(NoiseSd):
    """Normal observations with a lower and an upper bound per row."""

    facts: ClassVar[tuple[str, ...]] = ("lower", "upper")
    facts_needed: ClassVar[bool] = True
    facts_like_response: ClassVar[bool] = True
    bounds: Any = None
    """Lower and upper bounds, one of each per row; None if there are none."""

    def given(self, facts: Any) -> Self:
        bounds = None if facts is None else (facts[..., 0], facts[..., 1])
        return dataclasses.replace(self, bounds=bounds)

    def standard(self, bound: Any, eta: Array, dispersion: Array) -> Array:
        """Return the distance of a bound from eta in sds."""
        return jnp.clip((bound - eta) / jnp.exp(0.5 * dispersion[0]), -FAR, FAR)

    def log_predictive(
        self, y: Array, location: Array, variance: Array, dispersion: Array
    ) -> Array:
        return self.log_prob(y, location, dispersion)


class TobitResponse(Censored):
    """Normal observations that are censored at the bounds of their rows, if there are any."""

    name: ClassVar[str] = "tobit"

    @property
    def ends(self) -> tuple[Any, Any]:
        """The lower and upper bounds, infinite if there are none."""
        return (-np.inf, np.inf) if self.bounds is None else self.bounds

    @property
    def support(self) -> Support:
        return Support(*self.ends, closed=True)

    def check_facts(self, names: tuple[str, ...]) -> None:
        lower, upper = (np.asarray(end, float) for end in self.ends)
        if (crossed := ~(lower < upper)).any():
            raise ResponseError(
                f"{names[0]} holds {offenders(lower, crossed)}, which is not below {names[1]}: "
                "give -inf and inf where there is no bound."
            )

    def check(self, y: np.ndarray, column: str = "y") -> None:
        lower, upper = (np.broadcast_to(np.asarray(end, float), y.shape) for end in self.ends)
        if (outside := ~self.support.holds(y)).any():
            raise ResponseError(
                f"{column} holds {offenders(y, outside)}, beyond its bounds: a censored row is "
                "recorded at its bound; move it there (y.clip(lower, upper)), or correct the bound."
            )
        if ((y <= lower) | (y >= upper)).all():
            raise ResponseError(
                f"every row of {column} is censored, so the data do not say how much it varies; "
                "use response='probit' to model whether it is beyond the bound."
            )
        super().check(y, column)

    def has_density(self, y: np.ndarray) -> np.ndarray:
        return (y > self.ends[0]) & (y < self.ends[1])

    def _standard_ends(self, eta: Array, dispersion: Array) -> tuple[Array, Array]:
        lower, upper = self.ends
        return self.standard(lower, eta, dispersion), self.standard(upper, eta, dispersion)

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        lower, upper = self._standard_ends(eta, dispersion)
        seen = super().log_prob(y, eta, dispersion)
        at_upper = jnp.where(y >= self.ends[1], log_ndtr(-upper), seen)
        return jnp.where(y <= self.ends[0], log_ndtr(lower), at_upper)

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        return jnp.clip(super().sample(key, eta, dispersion), *self.ends)

    def mean(self, eta: Array, dispersion: Array) -> Array:
        return self.moments(eta, jnp.zeros_like(eta), dispersion)[0]

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        # For z = noise / sd clipped to [a, b]: E z = a A + b B + phi(a) - phi(b), with A and B the
        # probabilities beyond; E z^2 = a^2 A + b^2 B + 1 - A - B + a phi(a) - b phi(b).
        a, b = self._standard_ends(location, dispersion)
        below, above = ndtr(a), ndtr(-b)
        at_a, at_b = (jnp.exp(-0.5 * end**2) / np.sqrt(2 * np.pi) for end in (a, b))
        first = a * below + b * above + at_a - at_b
        second = a**2 * below + b**2 * above + 1 - below - above + a * at_a - b * at_b
        sd = jnp.exp(0.5 * dispersion[0])
        return location + sd * first, sd**2 * jnp.maximum(second - first**2, 0.0)

    def cdf(self, y: Array, location: Array, variance: Array, dispersion: Array) -> Array:
        inside = super().cdf(y, location, jnp.zeros_like(location), dispersion)
        return jnp.where(y < self.ends[0], 0.0, jnp.where(y >= self.ends[1], 1.0, inside))

    def below(self, y: Array, location: Array, variance: Array, dispersion: Array) -> Array:
        inside = super().cdf(y, location, jnp.zeros_like(location), dispersion)
        return jnp.where(y <= self.ends[0], 0.0, jnp.where(y > self.ends[1], 1.0, inside))


class Interval(Censored):
    """Normal observations, each known exactly or only to be in an interval."""

    name: ClassVar[str] = "interval"

    def ends(self, y: Any) -> tuple[Any, Any]:
        """Return the ends of every row's interval, which are y itself where it is known exactly."""
        return (y, y) if self.bounds is None else self.bounds

    def check_facts(self, names: tuple[str, ...]) -> None:
        lower, upper = (np.asarray(end, float) for end in self.ends(None))
        if (crossed := ~(lower <= upper)).any():
            raise ResponseError(
                f"{names[0]} holds {offenders(lower, crossed)}, above {names[1]}: state the "
                "smaller number first, and the same number twice where it is known exactly."
            )

    def check(self, y: np.ndarray, column: str = "y") -> None:
        lower, upper = self.ends(y)
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
                "have different ones, so the data do not say how much it varies; give the ends "
                "that are known, or use response='probit' to model whether it is beyond a common "
                "bound."
            )
        super().check(y, column)

    def has_density(self, y: np.ndarray) -> np.ndarray:
        lower, upper = self.ends(y)
        return np.asarray(lower == upper)

    def _standard_ends(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array, Array]:
        """Return whether each row is an interval, and its ends (arbitrary for other rows)."""
        lower, upper = self.ends(y)
        inside = (lower < upper) & (lower <= y) & (y <= upper)
        low = jnp.where(inside, self.standard(lower, eta, dispersion), -1.0)
        high = jnp.where(inside, self.standard(upper, eta, dispersion), 1.0)
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

    def around(
        self, y: Array, location: Array, variance: Array, dispersion: Array
    ) -> tuple[Array, Array]:
        inside, low, high = self._standard_ends(y, location, dispersion)
        exactly = self.cdf(y, location, variance, dispersion)
        return jnp.where(inside, ndtr(low), exactly), jnp.where(inside, ndtr(high), exactly)
