"""Successes in trials and shares: binomial, beta and beta-binomial.

**Binomial.** y successes in n trials, each with probability 1 / (1 + exp(-eta)) or Phi(eta).

In the other two, shares vary as Beta(a, b), logit mu = eta. With a = mu phi and b = (1 - mu) phi,
the parameter is s = 1 / sqrt(phi).

**Beta.** y ~ Beta(a, b) in (0, 1), whose variance is mu (1 - mu) / (1 + phi). With t = logit y and
m = mu (1 - mu)::

    log p(y) = log Gamma(phi) - log Gamma(a) - log Gamma(b) + (a - 1) log y + (b - 1) log(1 - y)
    d / d eta     = phi m (t - psi(a) + psi(b))
    d^2 / d eta^2 = (1 - 2 mu) d / d eta - I,     I = (phi m)^2 (psi'(a) + psi'(b))

I is the Fisher information. The density is not log-concave if y is far from mu.

**Beta-binomial.** y successes in n trials whose probability varies as Beta(a, b); at s = 0 the
trials are independent. With R(y, a) = log Gamma(a + y) - log Gamma(a) - y log a and psi the digamma
function::

    log p(y) = log C(n, y) + R(y, a) + R(n - y, b) - R(n, phi) + y log mu + (n - y) log(1 - mu)
    d / d eta     = phi m (psi(a + y) - psi(a) - psi(b + n - y) + psi(b))
    d^2 / d eta^2 = (1 - 2 mu) d / d eta - Q
    Q = (phi m)^2 (psi'(a) - psi'(a + y) + psi'(b) - psi'(b + (n - y))) >= 0

The density is not log-concave if the share of successes is far from mu; Q then replaces the
curvature.
"""

import abc
import dataclasses
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc
from jaxtyping import Array
from scipy.special import logit

from nghvi._core.errors import row_name
from nghvi._core.response import ResponseError, Support, offenders
from nghvi._special import digamma, log_expit, log_gamma, log_rising, trigamma
from nghvi._typing import Key
from nghvi.responses._shared import (
    LogitLink,
    ProbitLink,
    Summed,
    SymmetricLink,
    WithLevel,
    WithSpread,
    check_range,
)


class OfTrials(SymmetricLink, WithLevel, Summed):
    """Numbers of successes; every row has one trial unless the facts say otherwise."""

    facts: ClassVar[tuple[str, ...]] = ("trials",)
    trials: Any = None
    usual_trials: float = eqx.field(static=True, default=1.0, kw_only=True)
    """A power of two near the mean number of trials."""
    remedy: ClassVar[str] = (
        "y counts the successes of the trials: give trials='n', the column of their number, or "
        "write 'cbind(successes, failures) ~ ...' or 'successes | trials(n) ~ ...' in a formula; "
        "shares are response='beta'."
    )

    def given(self, facts: Any) -> Self:
        return dataclasses.replace(self, trials=None if facts is None else facts[..., 0])

    @property
    def num_trials(self) -> Any:
        """Number of trials of every row."""
        return 1.0 if self.trials is None else self.trials

    @property
    def support(self) -> Support:
        return Support(0, np.inf if self.trials is None else self.trials, discrete=True)

    def suited(self, y: np.ndarray, known: np.ndarray, *, intercept: bool) -> Self:
        number = np.broadcast_to(np.asarray(self.num_trials, float), y.shape)
        share = (np.sum(y) + 0.5) / (np.sum(number) + 1)
        level = round(float(self.quantile(share) - np.mean(known))) if intercept else 0
        usual = float(2.0 ** np.round(np.log2(np.mean(number))))
        found = super().suited(y, known, intercept=intercept)
        return dataclasses.replace(found, level=level, usual_trials=usual)

    def noise(self, mean: float, variance: float) -> float:
        share = np.clip(mean / self.usual_trials, 0.01, 0.99)
        return float(1 / (self.usual_trials * share * (1 - share)))

    def check_facts(self, names: tuple[str, ...]) -> None:
        number = np.asarray(self.num_trials, float)
        odd = ~(np.isfinite(number) & (number >= 1) & (number == np.round(number)))
        if odd.any():
            raise ResponseError(
                f"{names[0]} holds {offenders(number, odd)}: every row needs a whole number of "
                "trials, at least one; leave rows without trials out."
            )

    def check(self, y: np.ndarray, column: str = "y") -> None:
        number = np.broadcast_to(np.asarray(self.num_trials, float), y.shape)
        above = y > number
        if above.any():
            row, others = int(np.flatnonzero(above)[0]), int(above.sum()) - 1
            more = f" ({others:,} more of that kind)" if others else ""
            remedy = (
                f"give the number of trials of each row; {self.remedy}"
                if self.trials is None
                else f"correct {column} or the number of trials there."
            )
            raise ResponseError(
                f"{column} holds {y[row]:g} successes of {number[row]:g} trials in {row_name(row)}"
                f"{more}: {remedy}"
            )
        super().check(y, column)
        if not y.any() or (y == number).all():
            every = "failed" if not y.any() else "succeeded"
            raise ResponseError(
                f"every trial of {column} {every}: no finite odds describe that; give data in "
                "which both outcomes happened."
            )

    def log_choices(self, y: Array) -> Array:
        """Return the log of the binomial coefficient, n over y."""
        n = self.num_trials
        return log_gamma(n + 1.0) - log_gamma(y + 1.0) - log_gamma(n - y + 1.0)


class _Binomial(OfTrials):
    """Successes in independent trials, with any symmetric link."""

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        failures = (self.num_trials - y) * self.log_share(-eta)
        return self.log_choices(y) + y * self.log_share(eta) + failures

    def log_none(self, eta: Array, dispersion: Array) -> Array:
        return self.num_trials * self.log_share(-eta)

    def growth(self, y: Array, eta: Array, dispersion: Array) -> Array:
        odds = jnp.exp(self.log_share(eta) - self.log_share(-eta))
        return jnp.maximum(self.num_trials - y, 0.0) / (y + 1) * odds

    def distant_cdf(self, y: Array, eta: Array, dispersion: Array) -> Array:
        left = self.num_trials - y
        inside = betainc(jnp.maximum(left, 1.0), y + 1, self.share(-eta))
        return jnp.where(left < 1, 1.0, inside)

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        drawn = jax.random.binomial(key, self.num_trials, self.share(eta), eta.shape)
        return drawn.astype(eta.dtype)

    def mean(self, eta: Array, dispersion: Array) -> Array:
        return self.num_trials * self.share(eta)

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        mean = self.mean(location, dispersion)
        return mean, mean * self.share(-location)


class Binomial(LogitLink, _Binomial):
    """Successes in independent trials, with the logit link."""

    name: ClassVar[str] = "binomial"

    def slopes(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array]:
        success, failure = self.share(eta), self.share(-eta)
        n = self.num_trials
        return y * failure - (n - y) * success, -n * success * failure


class BinomialProbit(ProbitLink, _Binomial):
    """Successes in independent trials, with the probit link."""

    name: ClassVar[str] = "binomial-probit"


FARTHEST = 300.0
"""Largest |eta| that is used, so that the parameters of the Beta stay away from 0 and infinity."""
LARGEST_PRECISION = 1e8
"""Largest phi of trials that is used: beyond it they are as good as independent, and differences of
digammas lose their digits."""


class WithLogitMean(LogitLink, WithSpread):
    """A response with mean mu = 1 / (1 + exp(-eta)) and a spread, which is not log-concave.

    The second derivative in eta is (1 - 2 mu) times the first, minus a number that is not negative.
    """

    attenuation: ClassVar[float] = 0.0
    log_concave: ClassVar[bool] = False
    spread_name: ClassVar[str] = "1/sqrt(phi)"

    @abc.abstractmethod
    def derivatives(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array, Array]:
        """Return the first derivative in eta, the number that is not negative, and mu."""

    def slopes(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array]:
        first, safe, _ = self.derivatives(y, eta, dispersion)
        return first, -safe

    def curvature(self, y: Array, eta: Array, dispersion: Array) -> Array:
        first, safe, mu = self.derivatives(y, eta, dispersion)
        return safe - (1 - 2 * mu) * first


class Beta(WithLogitMean, WithLevel):
    """Shares strictly between 0 and 1."""

    name: ClassVar[str] = "beta"
    remedy: ClassVar[str] = (
        "shares of exactly 0 or 1 need another model: if they are rounded, move them inside, as "
        "(y * (n - 1) + 0.5) / n does; for successes in trials use response='binomial'; divide "
        "percentages by 100."
    )

    @property
    def support(self) -> Support:
        return Support(0, 1)

    def check(self, y: np.ndarray, column: str = "y") -> None:
        super().check(y, column)
        check_range(logit(y), column)

    def suited(self, y: np.ndarray, known: np.ndarray, *, intercept: bool) -> Self:
        mean = np.mean(y)
        level = round(float(np.log(mean / (1 - mean)) - np.mean(known))) if intercept else 0
        found = super().suited(y, known, intercept=intercept)
        return dataclasses.replace(found, level=level)

    def noise(self, mean: float, variance: float) -> float:
        return float(np.clip(variance / (mean * (1 - mean)) ** 2, 1e-4, 1e4))

    def _shapes(self, eta: Array, dispersion: Array) -> tuple[Array, Array, Array]:
        """Return phi, a and b."""
        phi = self.spread(dispersion) ** -2
        eta = jnp.clip(eta, -FARTHEST, FARTHEST)
        return phi, phi * jax.nn.sigmoid(eta), phi * jax.nn.sigmoid(-eta)

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        phi, a, b = self._shapes(eta, dispersion)
        # One call for both, since most of the time goes into compiling it.
        of_a, of_b = log_gamma(jnp.stack([a, b]))
        constant = log_gamma(phi) - of_a - of_b
        return constant + (a - 1) * jnp.log(y) + (b - 1) * jnp.log1p(-y)

    def derivatives(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array, Array]:
        phi, a, b = self._shapes(eta, dispersion)
        inner = a * b / phi  # phi mu (1 - mu)
        logit = jnp.log(y) - jnp.log1p(-y)
        both = jnp.stack([a, b])
        at, change = digamma(both), trigamma(both)
        return inner * (logit - at[0] + at[1]), inner**2 * (change[0] + change[1]), a / phi

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        _, a, b = self._shapes(eta, dispersion)
        drawn = jax.random.beta(key, a, b, eta.shape)
        # Draws closer to an end than floating point can tell must stay inside.
        return jnp.clip(drawn, np.finfo(float).tiny, 1 - np.finfo(float).epsneg)

    def mean(self, eta: Array, dispersion: Array) -> Array:
        return jax.nn.sigmoid(eta)

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        phi, a, b = self._shapes(location, dispersion)
        return self.mean(location, dispersion), a * b / phi**2 / (1 + phi)

    def cdf(self, y: Array, location: Array, variance: Array, dispersion: Array) -> Array:
        _, a, b = self._shapes(location, dispersion)
        return betainc(a, b, jnp.clip(y, 0.0, 1.0))


class BetaBinomial(WithLogitMean, OfTrials):
    """Successes in trials that vary more than independent ones."""

    name: ClassVar[str] = "beta-binomial"

    def information(self, y: np.ndarray) -> float:
        # The variance is roughly that of independent trials times 1 + (n - 1) s^2.
        number = np.broadcast_to(np.asarray(self.num_trials, float), y.shape)
        return float(np.sum((number - 1) ** 2)) / 2

    def _shapes(self, eta: Array, dispersion: Array) -> tuple[Array, Array, Array]:
        """Return phi, a and b."""
        phi = jnp.minimum(self.spread(dispersion) ** -2, LARGEST_PRECISION)
        eta = jnp.clip(eta, -FARTHEST, FARTHEST)
        # By way of logarithms, since the slope of a sigmoid near 1 loses its digits.
        return phi, phi * jnp.exp(log_expit(eta)), phi * jnp.exp(log_expit(-eta))

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        n, (phi, a, b) = self.num_trials, self._shapes(eta, dispersion)
        shares = y * log_expit(eta) + (n - y) * log_expit(-eta)
        varying = log_rising(y, a) + log_rising(n - y, b) - log_rising(jnp.asarray(n), phi)
        return self.log_choices(y) + varying + shares

    def derivatives(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array, Array]:
        n, (phi, a, b) = self.num_trials, self._shapes(eta, dispersion)
        inner = a * b / phi  # phi mu (1 - mu)
        # If a or b is tiny, its two terms are huge and must cancel each other first.
        first = (digamma(a + y) - digamma(a)) - (digamma(b + (n - y)) - digamma(b))
        falls = (trigamma(a) - trigamma(a + y)) + (trigamma(b) - trigamma(b + (n - y)))
        return inner * first, inner**2 * jnp.maximum(falls, 0.0), a / phi

    def log_none(self, eta: Array, dispersion: Array) -> Array:
        return self.log_prob(jnp.zeros_like(eta), eta, dispersion)

    def growth(self, y: Array, eta: Array, dispersion: Array) -> Array:
        n, (_, a, b) = self.num_trials, self._shapes(eta, dispersion)
        left = jnp.maximum(n - y, 0.0)
        return left / (y + 1) * (a + y) / jnp.maximum(b + left - 1, 1e-300)

    def distant_cdf(self, y: Array, eta: Array, dispersion: Array) -> Array:
        def add(state: tuple[Array, Array]) -> tuple[Array, Array]:
            at, total = state
            term = jnp.exp(self.log_prob(jnp.full_like(eta, at), eta, dispersion))
            return at + 1, total + jnp.where(at <= y, term, 0.0)

        begin = (jnp.zeros(()), jnp.zeros_like(eta))
        return jax.lax.while_loop(lambda state: state[0] <= jnp.max(y), add, begin)[1]

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        _, a, b = self._shapes(eta, dispersion)
        key_share, key_count = jax.random.split(key)
        share = jax.random.beta(key_share, a, b, eta.shape)
        return jax.random.binomial(key_count, self.num_trials, share, eta.shape).astype(eta.dtype)

    def mean(self, eta: Array, dispersion: Array) -> Array:
        return self.num_trials * jax.nn.sigmoid(eta)

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        n, (phi, _, _) = self.num_trials, self._shapes(location, dispersion)
        mean = self.mean(location, dispersion)
        return mean, mean * jax.nn.sigmoid(-location) * (1 + (n - 1) / (1 + phi))
