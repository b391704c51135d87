"""Counts of events with mean mu, log mu = eta, plain or with extra zeros.

**Poisson.** log p(y) = y eta - mu - log y!

**Negative binomial**, with mean mu and size k, whose variance is mu + mu^2 / k. It is a Poisson
distribution whose rate varies by a Gamma(k, k) factor. The spread of that factor, s = 1 / sqrt(k),
is the parameter: at s = 0 the counts are Poisson. With a = 1 / k and r = y + k::

    log p(y) = log Gamma(r) - log Gamma(k) - y log k - log y! + y eta - r log(1 + a mu)

If k is large, each of the first three terms is large but their sum is not, so they are computed
together by Stirling's series, down to spreads of a millionth.

**Zero-inflated.** y = 0 with probability pi, otherwise Poisson or negative binomial. With p the
plain probabilities and w the probability that a zero is a plain one::

    p(0) -> pi + (1 - pi) p(0),     p(y) -> (1 - pi) p(y)  (y > 0),     w = (1 - pi) p(0) / that

At y = 0 the first derivative in eta is w times the plain one, d. The second is w times the plain
one plus w (1 - w) d^2, which may be positive. Without the last term it belongs to a concave
function that touches the log density from below.

pi ~ Uniform(0, 1). At pi = 0 the counts are plain, so theta holds the odds of pi in the coordinate
of :mod:`nghvi._core.near_zero`.
"""

import dataclasses
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc, gammaincc
from jaxtyping import Array

from nghvi._core import near_zero
from nghvi._core.response import ResponseError, Support, offenders
from nghvi._special import log_expit, log_gamma, log_rising
from nghvi._typing import Key, Scalar
from nghvi.priors import Priors
from nghvi.responses._shared import LEAST_UNIT, LogLink, Summed, WithSpread

LARGEST_COUNT = 1e9
"""Counts from here on are refused, as codes for missing values or as measurements."""


class Counts(Summed, LogLink):
    """Numbers of events."""

    remedy: ClassVar[str] = (
        "counts of events are not rates or averages: give the events themselves, with "
        "exposure='time' or '+ exposure(time)' in a formula, or use response='gaussian' for "
        "measurements."
    )

    @property
    def support(self) -> Support:
        return Support(0, discrete=True)

    def check(self, y: np.ndarray, column: str = "y") -> None:
        super().check(y, column)
        if not y.any():
            raise ResponseError(
                f"every count in {column} is 0: no positive rate describes that; give data in "
                "which the event happened."
            )
        if (large := y >= LARGEST_COUNT).any():
            raise ResponseError(
                f"{column} holds {offenders(y, large)}: if that stands for a missing count, drop "
                "these rows; counts that large are measurements: use response='gaussian' and their "
                "logarithm."
            )


class Poisson(Counts):
    """Numbers of events whose variance equals their mean."""

    name: ClassVar[str] = "poisson"

    def noise(self, mean: float, variance: float) -> float:
        return 1 / mean

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        return y * eta - self.rate(eta) - log_gamma(y + 1.0)

    def slopes(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array]:
        mean = self.rate(eta)
        return y - mean, -mean

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        return jax.random.poisson(key, self.rate(eta)).astype(eta.dtype)

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        mean = self.rate(location)
        return mean, mean

    def log_none(self, eta: Array, dispersion: Array) -> Array:
        return -self.rate(eta)

    def growth(self, y: Array, eta: Array, dispersion: Array) -> Array:
        return self.rate(eta) / (y + 1)

    def distant_cdf(self, y: Array, eta: Array, dispersion: Array) -> Array:
        return gammaincc(y + 1, self.rate(eta))


LARGEST_SIZE, LARGEST_OF_SUMS = 1e12, 1e8
"""Largest size that is used, beyond which counts are as good as Poisson; incomplete beta functions
lose their digits earlier, so they have a smaller bound."""


class NegativeBinomial(WithSpread, Counts):
    """Numbers of events whose variance exceeds their mean."""

    name: ClassVar[str] = "negative-binomial"
    spread_name: ClassVar[str] = "1/sqrt(size)"

    def noise(self, mean: float, variance: float) -> float:
        return max(variance, mean) / mean**2

    def information(self, y: np.ndarray) -> float:
        # The sum of mu^2 / 2; for Poisson counts the expectation of y (y - 1) is mu^2.
        return float(np.sum(y * (y - 1))) / 2

    def size(self, dispersion: Array) -> Array:
        """Return the size k."""
        return 1 / jnp.maximum(self.spread(dispersion) ** 2, 1 / LARGEST_SIZE)

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        size = self.size(dispersion)
        against = (y + size) * jax.nn.softplus(eta - jnp.log(size))
        return log_rising(y, size) - log_gamma(y + 1.0) + y * eta - against

    def slopes(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array]:
        size = self.size(dispersion)
        share = jax.nn.sigmoid(eta - jnp.log(size))
        return y - (y + size) * share, -(y + size) * share * (1 - share)

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        size = self.size(dispersion)
        key_rate, key_count = jax.random.split(key)
        factor = jax.random.gamma(key_rate, size, eta.shape) / size
        rate = self.rate(eta) * factor
        return jax.random.poisson(key_count, rate).astype(eta.dtype)

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        mean = self.rate(location)
        return mean, mean + mean**2 / self.size(dispersion)

    def log_none(self, eta: Array, dispersion: Array) -> Array:
        size = self.size(dispersion)
        return -size * jax.nn.softplus(eta - jnp.log(size))

    def growth(self, y: Array, eta: Array, dispersion: Array) -> Array:
        size = self.size(dispersion)
        return (y + size) / (y + 1) * jax.nn.sigmoid(eta - jnp.log(size))

    def distant_cdf(self, y: Array, eta: Array, dispersion: Array) -> Array:
        size = jnp.minimum(self.size(dispersion), LARGEST_OF_SUMS)
        return betainc(size, y + 1, jax.nn.sigmoid(jnp.log(size) - eta))


FIRST_ODDS = 0.25
"""Odds of an extra zero from which a fit starts."""


class ZeroInflated(Counts):
    """Counts with extra zeros; the next class in the order of inheritance has the plain counts.

    The last entry of the dispersion belongs to pi, the others to the plain counts.
    """

    log_concave: ClassVar[bool] = False
    zero_unit: float = eqx.field(static=True, default=0.0625, kw_only=True)
    """The unit of the odds: smaller ones are hardly distinguishable from zero."""

    @property
    def dispersion_names(self) -> tuple[str, ...]:
        return (*super().dispersion_names, "zero_odds")

    def suited(self, y: np.ndarray, known: np.ndarray, *, intercept: bool) -> Self:
        # At pi = 0 the information of one row on pi is (1 - p) / p, p the share of plain zeros.
        zeros = np.clip(np.mean(y == 0), 1 / (len(y) + 1), 1 - 1 / (len(y) + 1))
        told = np.sqrt(zeros / (1 - zeros) / len(y))
        unit = float(np.clip(2.0 ** np.round(np.log2(told)), LEAST_UNIT, 1.0))
        found = super().suited(y, known, intercept=intercept)
        return dataclasses.replace(found, zero_unit=unit)

    def _log_odds(self, dispersion: Array) -> Array:
        return np.log(self.zero_unit) + near_zero.log_in_units(dispersion[..., -1])

    def _log_shares(self, dispersion: Array) -> tuple[Array, Array]:
        """Return log pi and log(1 - pi)."""
        log_odds = self._log_odds(dispersion)
        return log_expit(log_odds), log_expit(-log_odds)

    def log_prior(self, dispersion: Array, priors: Priors) -> Scalar:
        return super().log_prior(dispersion[:-1], priors) + self._log_volume_of_share(dispersion)

    def log_volume(self, dispersion: Array, priors: Priors) -> Scalar:
        return super().log_volume(dispersion[:-1], priors) + self._log_volume_of_share(dispersion)

    def _log_volume_of_share(self, dispersion: Array) -> Scalar:
        extra, plain = self._log_shares(dispersion)
        return extra + plain + jnp.log(near_zero.slope(dispersion[-1]))

    def sample_prior(self, rng: np.random.Generator, number: int, priors: Priors) -> np.ndarray:
        share = rng.random(number)
        log_ratio = jnp.asarray(np.log(share / (1 - share) / self.zero_unit))
        plain = super().sample_prior(rng, number, priors)[:, : self.num_dispersion - 1]
        return np.column_stack([plain, near_zero.coordinate(log_ratio)])

    def stated_priors(self, priors: Priors) -> dict[str, str]:
        return {**super().stated_priors(priors), "zi_prob": "Uniform(0, 1)"}

    def start(self, variance: Scalar) -> Array:
        first = near_zero.coordinate(jnp.full(1, np.log(FIRST_ODDS / self.zero_unit)))
        plain = super().start(variance)[: self.num_dispersion - 1]
        return jnp.concatenate([plain, first])

    def reported(self, dispersion: Array, scale: float, intercept: Any = 0.0) -> dict[str, Array]:
        plain = super().reported(dispersion[..., :-1], scale, intercept)
        return {**plain, "zi_prob": jnp.exp(self._log_shares(dispersion)[0])}

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        extra, plain = self._log_shares(dispersion)
        plain = plain + self._plain.log_prob(y, eta, dispersion[:-1])
        return jnp.where(y == 0, jnp.logaddexp(extra, plain), plain)

    @property
    def _plain(self) -> Any:
        """The plain counts: ``super()``, whose methods a type checker takes to be abstract."""
        return super()

    def _plain_share(self, y: Array, eta: Array, dispersion: Array) -> Array:
        """Return w where y = 0, and 1 elsewhere."""
        odds = self.log_none(eta, dispersion[:-1]) - self._log_odds(dispersion)
        return jnp.where(y == 0, jax.nn.sigmoid(odds), 1.0)

    def slopes(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array]:
        share = self._plain_share(y, eta, dispersion)
        first, second = super().slopes(y, eta, dispersion[:-1])
        return share * first, share * second

    def curvature(self, y: Array, eta: Array, dispersion: Array) -> Array:
        share = self._plain_share(y, eta, dispersion)
        first, second = super().slopes(y, eta, dispersion[:-1])
        return -share * (second + (1 - share) * first**2)

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        key_zero, key_count = jax.random.split(key)
        extra = jax.random.logistic(key_zero, eta.shape) < self._log_odds(dispersion)
        return jnp.where(extra, 0.0, self._plain.sample(key_count, eta, dispersion[:-1]))

    def mean(self, eta: Array, dispersion: Array) -> Array:
        return jnp.exp(self._log_shares(dispersion)[1]) * self.rate(eta)

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        extra, plain = (jnp.exp(share) for share in self._log_shares(dispersion))
        mean, spread = self._plain.moments(location, variance, dispersion[:-1])
        return plain * mean, plain * (spread + extra * mean**2)

    def cdf(self, y: Array, location: Array, variance: Array, dispersion: Array) -> Array:
        extra, plain = (jnp.exp(share) for share in self._log_shares(dispersion))
        up_to = super().cdf(y, location, variance, dispersion[:-1])
        return jnp.where(y < 0, 0.0, extra + plain * up_to)


class ZeroInflatedPoisson(ZeroInflated, Poisson):
    """Numbers of events with more zeros than a Poisson distribution has."""

    name: ClassVar[str] = "zero-inflated-poisson"


class ZeroInflatedNegativeBinomial(ZeroInflated, NegativeBinomial):
    """Numbers of events whose variance exceeds their mean, with extra zeros."""

    name: ClassVar[str] = "zero-inflated-negative-binomial"
