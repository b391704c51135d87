"""y = eta + noise, noise ~ N(0, v), observed only between known bounds.

A row at its lower bound says that the latent variable is there or below, and one at its upper bound
that it is there or above. Bounds may differ from row to row and may be infinite::

    log p(y) = log Phi((lower - eta) / sd),  log N(y; eta, v)  or  log Phi((eta - upper) / sd)
"""

import dataclasses
from typing import Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array

from nghvi._core.response import ResponseError, Support, offenders
from nghvi._special import log_ndtr
from nghvi._typing import Key
from nghvi.responses.gaussian import NoiseSd

FAR = 1e8
"""Distance from eta, in sds, beyond which a bound counts as infinite."""


class TobitResponse(NoiseSd):
    """Normal observations that are censored at the bounds of their rows, if there are any."""

    name: ClassVar[str] = "tobit"
    facts: ClassVar[tuple[str, ...]] = ("lower", "upper")
    facts_needed: ClassVar[bool] = True
    facts_like_response: ClassVar[bool] = True
    bounds: Any = None
    """Lower and upper bounds, one of each per row; None if there are none."""

    def given(self, facts: Any) -> Self:
        bounds = None if facts is None else (facts[..., 0], facts[..., 1])
        return dataclasses.replace(self, bounds=bounds)

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
                "use response='probit' for whether it is beyond the bound."
            )
        super().check(y, column)

    def has_density(self, y: np.ndarray) -> np.ndarray:
        return (y > self.ends[0]) & (y < self.ends[1])

    def _standard_ends(self, eta: Array, dispersion: Array) -> tuple[Array, Array]:
        sd, (lower, upper) = jnp.exp(0.5 * dispersion[0]), self.ends
        return jnp.clip((lower - eta) / sd, -FAR, FAR), jnp.clip((upper - eta) / sd, -FAR, FAR)

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

    def log_predictive(
        self, y: Array, location: Array, variance: Array, dispersion: Array
    ) -> Array:
        return self.log_prob(y, location, dispersion)

    def cdf(self, y: Array, location: Array, variance: Array, dispersion: Array) -> Array:
        inside = super().cdf(y, location, jnp.zeros_like(location), dispersion)
        return jnp.where(y < self.ends[0], 0.0, jnp.where(y >= self.ends[1], 1.0, inside))

    def below(self, y: Array, location: Array, variance: Array, dispersion: Array) -> Array:
        inside = super().cdf(y, location, jnp.zeros_like(location), dispersion)
        return jnp.where(y <= self.ends[0], 0.0, jnp.where(y > self.ends[1], 1.0, inside))
