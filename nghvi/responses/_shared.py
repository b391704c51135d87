"""What several kinds of responses share: sums of probabilities, a spread, links.

**Sums.** The distribution function of whole numbers from 0 is a sum of probabilities. If numbers
and means are moderate, each is computed from the one before, which takes a fiftieth or less of the
time of the incomplete gamma and beta functions.

**Spread.** A parameter s > 0 of the response, such as 1 / sqrt(size), with a half-normal prior. At
s = 0 the response becomes a simpler one, and data may not distinguish a small s from 0. Theta
therefore holds the coordinate of :mod:`nghvi._core.near_zero`, as it does for sds of effects.

**Log link.** E[y] = exp(eta), so coefficients are logarithms of ratios.

**Symmetric links.** A probability is F(eta), with F the distribution function of a logistic or
normal variable.
"""

import abc
import dataclasses
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array
from scipy.special import logit, ndtri

from nghvi._core import near_zero
from nghvi._core.response import Response, ResponseError
from nghvi._special import log_expit, log_ndtr
from nghvi._typing import Key, Scalar
from nghvi.priors import Priors

MODERATE_COUNT, SMALLEST_FIRST = 2000, 1e-290
"""Largest count, and smallest P(Y = 0), for which probabilities are summed."""


class Summed(Response):
    """A response y = 0, 1, 2, ... whose distribution function is a sum of probabilities."""

    @abc.abstractmethod
    def log_none(self, eta: Array, dispersion: Array) -> Array:
        """Return log p(0)."""

    @abc.abstractmethod
    def growth(self, y: Array, eta: Array, dispersion: Array) -> Array:
        """Return p(y + 1) / p(y)."""

    @abc.abstractmethod
    def distant_cdf(self, y: Array, eta: Array, dispersion: Array) -> Array:
        """Return P(Y <= y) for whole numbers y >= 0 of any size."""

    def cdf(self, y: Array, location: Array, variance: Array, dispersion: Array) -> Array:
        last, eta = jnp.broadcast_arrays(jnp.floor(y), location)
        most = jnp.max(last, initial=0.0)
        first = jnp.exp(self.log_none(eta, dispersion))

        def add(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            at, term, total = state
            term = term * self.growth(at, eta, dispersion)
            return at + 1, term, total + jnp.where(at + 1 <= last, term, 0.0)

        def by_sum() -> Array:
            begin = (jnp.zeros(()), first, first)
            return jax.lax.while_loop(lambda state: state[0] < most, add, begin)[2]

        near = (most <= MODERATE_COUNT) & jnp.all(first > SMALLEST_FIRST)
        whole = jnp.maximum(last, 0.0)
        up_to = jax.lax.cond(near, by_sum, lambda: self.distant_cdf(whole, eta, dispersion))
        return jnp.where(last < 0, 0.0, jnp.minimum(up_to, 1.0))


FIRST = 0.3
"""The spread from which a fit starts."""
LEAST_UNIT = 2.0**-20
"""Lower bound on the unit of a spread."""


class WithSpread(Response):
    """A response with a spread s ~ half-normal(``prior_scale``)."""

    prior_scale: float = eqx.field(static=True, default=1.0, kw_only=True)
    unit: float = eqx.field(static=True, default=0.125, kw_only=True)
    """The unit c of s: spreads below it are hardly distinguishable from zero."""
    spread_name: ClassVar[str]
    """The name under which s is reported, such as "1/sqrt(size)"."""

    @property
    def dispersion_names(self) -> tuple[str, ...]:
        return ("spread",)

    def information(self, y: np.ndarray) -> float:
        """Return the information in y on s^2 at s = 0; infinite if s = 0 would mean no noise."""
        return np.inf

    def suited(self, y: np.ndarray, known: np.ndarray, *, intercept: bool) -> Self:
        told = max(self.information(y), 1.0) ** -0.25
        # A power of two, so that similar data share compiled programs.
        unit = max(2.0 ** np.round(np.log2(max(told, LEAST_UNIT))), LEAST_UNIT)
        found = super().suited(y, known, intercept=intercept)
        return dataclasses.replace(found, unit=float(unit))

    def spread(self, dispersion: Array) -> Array:
        """Return s, whose coordinate is the first entry of the last axis of ``dispersion``."""
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


LEAST_RANGE = 1e-5
"""On the scale of eta; where rows differ by less, log densities have no digits left."""


def check_range(eta: np.ndarray, column: str) -> None:
    """Refuse observations, on the scale of eta, that differ in their last digits only."""
    if (range_ := float(np.ptp(eta))) < LEAST_RANGE:
        raise ResponseError(
            f"the values of {column} differ by {range_:.1g} of their size at most, as if they were "
            "one number and rounded: check the column; if such differences matter, subtract what "
            "all rows share and use response='gaussian'."
        )


LARGEST = 700.0
"""Largest eta that is exponentiated as it is, so that the result stays finite."""


class WithLevel(Response):
    """A response that remembers about how large eta is in its data."""

    level: int = eqx.field(static=True, default=0, kw_only=True)
    """A typical eta, as a whole number, so that similar data share compiled programs."""

    @property
    def typical_predictor(self) -> float:
        return float(self.level)


class SymmetricLink(Response):
    """A response whose probabilities are F(eta), F(-x) = 1 - F(x)."""

    @abc.abstractmethod
    def share(self, eta: Array) -> Array:
        """Return F(eta)."""

    @abc.abstractmethod
    def log_share(self, eta: Array) -> Array:
        """Return log F(eta)."""

    @abc.abstractmethod
    def quantile(self, p: np.ndarray) -> np.ndarray:
        """Return the inverse of F at p."""

    @abc.abstractmethod
    def latent_noise(self, key: Key, shape: tuple[int, ...]) -> Array:
        """Draw variables whose distribution function is F."""


class LogitLink(SymmetricLink):
    """F(x) = 1 / (1 + exp(-x))."""

    link: ClassVar[str] = "logit"
    ratio: ClassVar[str | None] = "odds ratio"
    attenuation: ClassVar[float] = (16 * 3**0.5 / (15 * np.pi)) ** 2

    def share(self, eta: Array) -> Array:
        return jax.nn.sigmoid(eta)

    def log_share(self, eta: Array) -> Array:
        return log_expit(eta)

    def quantile(self, p: np.ndarray) -> np.ndarray:
        return logit(p)

    def latent_noise(self, key: Key, shape: tuple[int, ...]) -> Array:
        return jax.random.logistic(key, shape)


class ProbitLink(SymmetricLink):
    """F(x) = Phi(x)."""

    link: ClassVar[str] = "probit"
    attenuation: ClassVar[float] = 1.0

    def share(self, eta: Array) -> Array:
        return ndtr(eta)

    def log_share(self, eta: Array) -> Array:
        return log_ndtr(eta)

    def quantile(self, p: np.ndarray) -> np.ndarray:
        return ndtri(p)

    def latent_noise(self, key: Key, shape: tuple[int, ...]) -> Array:
        return jax.random.normal(key, shape)


class LogLink(WithLevel):
    """Observations whose mean is exp(eta)."""

    link: ClassVar[str] = "log"
    ratio: ClassVar[str | None] = "rate ratio"

    def suited(self, y: np.ndarray, known: np.ndarray, *, intercept: bool) -> Self:
        level = round(float(np.log(np.mean(y)) - np.mean(known))) if intercept else 0
        return dataclasses.replace(self, level=level)

    def rate(self, eta: Array) -> Array:
        """Return exp(eta), kept finite."""
        return jnp.exp(jnp.minimum(eta, LARGEST))

    def mean(self, eta: Array, dispersion: Array) -> Array:
        return self.rate(eta)
