"""What a response distribution is: all that is known about y, in one place.

A response states its support and what is wrong with observations outside it; its link; its own
parameters with their prior and start; density, distribution function, moments and sampler given
eta. No other code asks which response there is. A response is written for vectors of observations
and knows nothing about inference. ``eta`` is the linear predictor (fixed plus random part);
``dispersion`` holds the response's own unconstrained parameters, an array of shape
(num_dispersion,).
"""

import abc
import dataclasses
import math
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nghvi._core.errors import InputError, row_name
from nghvi._typing import Key, Scalar

MOST_SHOWN = 3
"""Number of offending values, with their rows, that an error message lists."""


@dataclasses.dataclass(frozen=True)
class Support:
    """The values that an observation can take: the numbers from ``low`` to ``high``.

    All of them belong to the support, or only the whole numbers if it is ``discrete``. Finite ends
    of a discrete support belong to it; those of an interval do only if it is ``closed``. The ends
    may be arrays with one number per row.
    """

    low: Any = -math.inf
    high: Any = math.inf
    discrete: bool = False
    closed: bool = False

    @property
    def two_valued(self) -> bool:
        """Whether an observation is one of two values."""
        return self.discrete and np.ndim(self.high) == 0 and self.high - self.low == 1

    def holds(self, y: np.ndarray) -> np.ndarray:
        """Return whether each value belongs to the support; NaN does not."""
        y = np.asarray(y, float)
        if self.discrete:
            return np.isfinite(y) & (y >= self.low) & (y <= self.high) & (y == np.round(y))
        if self.closed:
            return np.isfinite(y) & (y >= self.low) & (y <= self.high)
        return np.isfinite(y) & (y > self.low) & (y < self.high)

    def before(self, y: Any) -> Any:
        """Return the largest value below y, or y itself on an interval (P(Y < y) = P(Y <= y))."""
        return y - 1 if self.discrete else y

    def __str__(self) -> str:
        kind = "whole numbers" if self.discrete else "numbers"
        if np.ndim(self.low) or np.ndim(self.high):
            return f"{kind} between the ends that its row has"
        if math.isinf(self.low) and math.isinf(self.high):
            return f"finite {kind}"
        if math.isinf(self.high):
            return f"{kind} {'from' if self.discrete else 'above'} {self.low:g}"
        return f"{kind} {'from' if self.discrete else 'between'} {self.low:g} " + (
            f"to {self.high:g}" if self.discrete else f"and {self.high:g}"
        )


def offenders(y: np.ndarray, outside: np.ndarray) -> str:
    """Return the first values that are ``outside``, with their rows, as text for a message."""
    where = np.flatnonzero(outside)
    shown = ", ".join(f"{y[i]:g} in {row_name(i)}" for i in where[:MOST_SHOWN])
    more = len(where) - MOST_SHOWN
    return f"{shown} and {more:,} more" if more > 0 else shown


class ResponseError(InputError):
    """Raised if the observations do not fit the response."""


class Response(eqx.Module):
    """The distribution of one observation given its linear predictor."""

    name: ClassVar[str]
    link: ClassVar[str] = "identity"
    """How the mean depends on eta: "identity", "log", "logit" or "probit"."""
    ratio: ClassVar[str | None] = None
    """The name of an exponentiated coefficient, such as "odds ratio"; None if it has none."""
    classes: ClassVar[bool] = False
    """True if y names classes, so that this is the response of a classifier."""
    conjugate: ClassVar[bool] = False
    """True if Gaussian effects are conjugate to the response and integrate out exactly."""
    log_concave: ClassVar[bool] = True
    """True if the second of :meth:`slopes` is everywhere the true second derivative."""
    attenuation: ClassVar[float] = 0.0
    """The number a if, averaged over groups, effects of variance v shrink coefficients by
    sqrt(1 + a v)."""
    facts: ClassVar[tuple[str, ...]] = ()
    """Names of what the response is told about every row besides y, such as its trials."""
    facts_needed: ClassVar[bool] = False
    """True if the response is meaningless without its :attr:`facts`."""
    facts_like_response: ClassVar[bool] = False
    """True if the :attr:`facts` are numbers on the scale of y, such as bounds."""
    takes_intercept: ClassVar[bool] = False
    """True if the first coefficient must be an intercept, which :meth:`reported` then reports."""
    remedy: ClassVar[str] = "choose another response, or correct these rows."
    """Advice for observations outside the support, appended to the error message."""

    @property
    def support(self) -> Support:
        """The values that y can take."""
        return Support()

    def of_classes(self, labels: tuple[str, ...]) -> Self:
        """Return the response for classes with these names, in this order."""
        return self

    def given(self, facts: Any) -> Self:
        """Return the response for rows with these facts, an array with one column per fact.

        None stands for no facts. Only the members that are asked about rows need them: checks,
        ``suited``, ``support``, densities, moments and draws.
        """
        return self

    @property
    def dispersion_names(self) -> tuple[str, ...]:
        """Names of the response's own parameters, which are unconstrained."""
        return ()

    @property
    def num_dispersion(self) -> int:
        """Number of the response's own parameters."""
        return len(self.dispersion_names)

    @property
    def typical_predictor(self) -> float:
        """A typical value of eta, where the intercept starts and which its prior must reach."""
        return 0.0

    def suited(self, y: np.ndarray, known: np.ndarray, *, intercept: bool) -> Self:
        """Return the response adapted to these observations, for example to their classes.

        ``known``: the part of eta that is not estimated, such as an offset; ``intercept``: whether
        the first coefficient is an intercept.
        """
        return self

    def check(self, y: np.ndarray, column: str = "y") -> None:
        """Raise :class:`ResponseError` if y is outside the support, or is a constant measurement.

        ``column``: the name of y in the message.
        """
        outside = ~self.support.holds(y)
        if outside.any():
            raise self.outside_support(column, offenders(y, outside))
        if not self.support.discrete and np.ptp(y) == 0:
            raise ResponseError(
                f"the response {column} is constant (every value is {y[0]:g}): there is nothing to "
                "explain."
            )

    def check_facts(self, names: tuple[str, ...]) -> None:
        """Raise :class:`ResponseError` if the facts of the rows are impossible, whatever y is.

        ``names``: what each of :attr:`facts` is called, such as "trials(n)".
        """
        return

    def outside_support(self, column: str, shown: str) -> ResponseError:
        """Return the error for the values of a column that are listed in ``shown``."""
        return ResponseError(
            f"{column} holds {shown}: the {self.name} response takes {self.support}; {self.remedy}"
        )

    def has_density(self, y: np.ndarray) -> np.ndarray:
        """Return whether each observation has a density, in units of one over those of y.

        An observation only known to be in an interval, or beyond a bound, has a probability.
        """
        return np.ones(np.shape(y), bool)

    def typical(self, y: np.ndarray) -> np.ndarray | None:
        """Return y as standardisation should measure it; None if y is not to be standardised."""
        return None

    def noise(self, mean: float, variance: float) -> float | None:
        """Return the variance of one observation as a measurement of eta, given moments of y.

        It is roughly one over the Fisher information. None asks for the variance of y within
        groups instead.
        """
        return None

    def log_prior(self, dispersion: Float[Array, " c"], priors: Any) -> Scalar:
        """Return the log prior of the dispersion, Jacobian included; 0 if it has no parameters.

        ``priors`` are the model's, which include those of a noise variance and of degrees of
        freedom; the prior of any other parameter is a field of the response.
        """
        return jnp.zeros(())

    def log_volume(self, dispersion: Float[Array, " c"], priors: Any) -> Scalar:
        """Return the log Jacobian in :meth:`log_prior`, up to a constant.

        Subtracting it leaves the density of the quantity that the prior is stated for, such as an
        sd or the degrees of freedom.
        """
        return jnp.zeros(())

    def intercept_prior(
        self, dispersion: Float[Array, "*s c"], priors: Any
    ) -> tuple[Array, float] | None:
        """Return mean and sd of the intercept given the dispersion; None if independent of it."""
        return None

    def sample_prior(
        self, rng: np.random.Generator, number: int, priors: Any
    ) -> Float[np.ndarray, "number c"]:
        """Return draws of the dispersion from its prior; NaN if the response cannot draw them."""
        return np.full((number, self.num_dispersion), np.nan)

    def stated_priors(self, priors: Any) -> dict[str, str]:
        """Return the prior, in words, of each number that :meth:`reported` names."""
        return {}

    def start(self, variance: Scalar) -> Float[Array, " c"]:
        """Return the dispersion from which a fit starts, for responses of this variance."""
        return jnp.zeros(self.num_dispersion)

    @abc.abstractmethod
    def log_prob(
        self, y: Float[Array, "..."], eta: Float[Array, "..."], dispersion: Float[Array, " c"]
    ) -> Float[Array, "..."]:
        """Return the log density of each observation."""

    def slopes(
        self, y: Float[Array, "..."], eta: Float[Array, "..."], dispersion: Float[Array, " c"]
    ) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """Return the first and second derivatives of :meth:`log_prob` in eta.

        Steps and grids rely on the second, so it must not be positive. Where the density is not
        log-concave another number takes its place, of the size of the information in y and more
        than half the curvature of a quadratic that touches the log density in eta from below.
        """
        one = jnp.ones_like(eta)

        def slope(eta: Array) -> Array:
            return jax.jvp(lambda e: self.log_prob(y, e, dispersion), (eta,), (one,))[1]

        return jax.jvp(slope, (eta,), (one,))

    def curvature(
        self, y: Float[Array, "..."], eta: Float[Array, "..."], dispersion: Float[Array, " c"]
    ) -> Float[Array, "..."]:
        """Return minus the true second derivative of :meth:`log_prob` in eta, of either sign."""
        return -self.slopes(y, eta, dispersion)[1]

    @abc.abstractmethod
    def sample(
        self, key: Key, eta: Float[Array, "..."], dispersion: Float[Array, " c"]
    ) -> Float[Array, "..."]:
        """Draw one observation for each eta."""

    @abc.abstractmethod
    def mean(self, eta: Float[Array, "..."], dispersion: Float[Array, " c"]) -> Float[Array, "..."]:
        """Return E[y | eta]."""

    @abc.abstractmethod
    def moments(
        self, location: Float[Array, "..."], variance: Float[Array, "..."], dispersion: Array
    ) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """Return the mean and variance of y if eta ~ N(location, variance).

        ``variance`` is 0 unless the response is conjugate, here and in the methods below.
        """

    def log_predictive(
        self, y: Array, location: Array, variance: Array, dispersion: Array
    ) -> Float[Array, "..."]:
        """Return the log density of y if eta ~ N(location, variance)."""
        return self.log_prob(y, location, dispersion)

    @abc.abstractmethod
    def cdf(
        self, y: Array, location: Array, variance: Array, dispersion: Array
    ) -> Float[Array, "..."]:
        """Return P(Y <= y) if eta ~ N(location, variance)."""

    def below(self, y: Array, location: Array, variance: Array, dispersion: Array) -> Array:
        """Return P(Y < y) if eta ~ N(location, variance)."""
        return self.cdf(self.support.before(y), location, variance, dispersion)

    def around(
        self, y: Array, location: Array, variance: Array, dispersion: Array
    ) -> tuple[Array, Array]:
        """Return P(Y < y) and P(Y <= y) of observations, which may be coarser than predictions."""
        known = (location, variance, dispersion)
        return self.below(y, *known), self.cdf(y, *known)

    def reported(
        self, dispersion: Float[Array, "*s c"], scale: float, intercept: Any = 0.0
    ) -> dict[str, Array]:
        """Return the quantities, by name, by which the dispersion is reported to users.

        ``scale``: the unit of the fitted y in the units of the data; ``intercept``: the first
        coefficient that goes with each dispersion, in the units of the data.
        """
        return {}

    def gibbs(
        self, key: Key, problem: Any, effects: Float[Array, "r k"], sweeps: int
    ) -> Float[Array, "r k"]:
        """Return whitened effects of a ``RowProblem`` after Gibbs sweeps, if the response has any.

        ``effects``: where the sweeps start; ``sweeps``: their number.
        """
        raise NotImplementedError(
            f"the {self.name} response has no Gibbs sampler of its effects: give the model "
            "gibbs=None (method='auto' of the estimators), which draws them by Metropolis."
        )
