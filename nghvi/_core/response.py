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

from nghvi._core.errors import InputError
from nghvi._typing import Key, Scalar

MOST_SHOWN = 3
"""Offending values that an error message shows, with their rows."""


@dataclasses.dataclass(frozen=True)
class Support:
    """The numbers from ``low`` to ``high``: all of them, or the whole ones if ``discrete``.

    Finite ends of a discrete support belong to it, those of an interval only if it is ``closed``.
    Ends may be arrays with one number per row.
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
        """Whether each value belongs to the support; one that is not a number does not."""
        y = np.asarray(y, float)
        if self.discrete:
            return np.isfinite(y) & (y >= self.low) & (y <= self.high) & (y == np.round(y))
        if self.closed:
            return np.isfinite(y) & (y >= self.low) & (y <= self.high)
        return np.isfinite(y) & (y > self.low) & (y < self.high)

    def before(self, y: Any) -> Any:
        """The largest value below y; y itself on an interval, where P(Y < y) = P(Y <= y)."""
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
    """The first values that are outside, with their rows, in words."""
    where = np.flatnonzero(outside)
    shown = ", ".join(f"{y[i]:g} in row {i}" for i in where[:MOST_SHOWN])
    more = len(where) - MOST_SHOWN
    return f"{shown} and {more:,} more" if more > 0 else shown


class ResponseError(InputError):
    """The observations do not fit the response."""


class Response(eqx.Module):
    """The distribution of one observation given its linear predictor."""

    name: ClassVar[str]
    link: ClassVar[str] = "identity"
    """How the mean depends on eta: "identity", "log", "logit" or "probit"."""
    ratio: ClassVar[str | None] = None
    """What the exponential of a coefficient is called, such as "odds ratio"; None: nothing."""
    classes: ClassVar[bool] = False
    """True if y names classes: the response of a classifier."""
    conjugate: ClassVar[bool] = False
    """True if Gaussian effects are conjugate to it, so that they integrate out exactly."""
    log_concave: ClassVar[bool] = True
    """True if the second of :meth:`slopes` is the second derivative everywhere."""
    attenuation: ClassVar[float] = 0.0
    """a, if effects of variance v shrink coefficients by sqrt(1 + a v) on average over groups."""
    facts: ClassVar[tuple[str, ...]] = ()
    """What it knows about every row beside y, such as the number of trials."""
    facts_needed: ClassVar[bool] = False
    """True if it means nothing without them."""
    facts_like_response: ClassVar[bool] = False
    """True if they are numbers on the scale of y, such as bounds."""
    takes_intercept: ClassVar[bool] = False
    """True if the first coefficient must be an intercept, which :meth:`reported` reports."""
    remedy: ClassVar[str] = "choose another response, or correct these rows."
    """What to do about observations outside the support."""

    @property
    def support(self) -> Support:
        """The values that y can take."""
        return Support()

    def of_classes(self, labels: tuple[str, ...]) -> Self:
        """The response of classes with these names, in their order."""
        return self

    def given(self, facts: Any) -> Self:
        """The response of rows with these facts, an array with a column for each; None: of none.

        Only the members that are asked about rows need them: check, suited, support, densities,
        moments, draws.
        """
        return self

    @property
    def dispersion_names(self) -> tuple[str, ...]:
        """Names of its own parameters, unconstrained as they are."""
        return ()

    @property
    def num_dispersion(self) -> int:
        """How many parameters it has of its own."""
        return len(self.dispersion_names)

    @property
    def typical_predictor(self) -> float:
        """About where eta is: what the intercept starts at, and its prior must reach."""
        return 0.0

    def suited(self, y: np.ndarray, known: np.ndarray, *, intercept: bool) -> Self:
        """The response as these observations need it: with as many classes as they have, say.

        ``known``: the part of eta that is not estimated, such as an offset; ``intercept``: whether
        the first coefficient is one.
        """
        return self

    def check(self, y: np.ndarray, column: str = "y") -> None:
        """Raise :class:`ResponseError` if y, the column of that name, is outside the support.

        So it does where measurements are all the same.
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
        """Raise :class:`ResponseError` if facts of rows are not what they can be, whatever y is.

        ``names``: what each of :attr:`facts` is called, such as "trials(n)".
        """
        return

    def outside_support(self, column: str, shown: str) -> ResponseError:
        """The complaint about the values of a column that are ``shown``."""
        return ResponseError(
            f"{column} holds {shown}: the {self.name} response takes {self.support}; {self.remedy}"
        )

    def has_density(self, y: np.ndarray) -> np.ndarray:
        """Whether each observation has a density, whose unit is one over that of y.

        One that is only known to be in an interval, or beyond a bound, has a probability.
        """
        return np.ones(np.shape(y), bool)

    def typical(self, y: np.ndarray) -> np.ndarray | None:
        """y as standardisation should measure it; None where y is not to be standardised."""
        return None

    def noise(self, mean: float, variance: float) -> float | None:
        """Variance of one observation as a measurement of eta, where y has these moments.

        One over its Fisher information, roughly. None: it is measured within groups.
        """
        return None

    def log_prior(self, dispersion: Float[Array, " c"], priors: Any) -> Scalar:
        """Log prior of the dispersion, Jacobian included; 0 where there is none.

        ``priors`` are the model's, which hold those of a noise variance and of degrees of freedom;
        a prior of another parameter is a field of the response.
        """
        return jnp.zeros(())

    def log_volume(self, dispersion: Float[Array, " c"], priors: Any) -> Scalar:
        """The Jacobian in :meth:`log_prior`: without it, the density of what the prior is stated
        for (an sd, a number of degrees). It may lack a constant.
        """
        return jnp.zeros(())

    def intercept_prior(
        self, dispersion: Float[Array, "*s c"], priors: Any
    ) -> tuple[Array, float] | None:
        """Mean and sd of the intercept given the dispersion; None where they are independent."""
        return None

    def sample_prior(
        self, rng: np.random.Generator, number: int, priors: Any
    ) -> Float[np.ndarray, "number c"]:
        """Draws of the dispersion from its prior; nan where a response does not know how."""
        return np.full((number, self.num_dispersion), np.nan)

    def stated_priors(self, priors: Any) -> dict[str, str]:
        """The prior of each number that :meth:`reported` names, in words."""
        return {}

    def start(self, variance: Scalar) -> Float[Array, " c"]:
        """A starting dispersion for responses of this variance."""
        return jnp.zeros(self.num_dispersion)

    @abc.abstractmethod
    def log_prob(
        self, y: Float[Array, "..."], eta: Float[Array, "..."], dispersion: Float[Array, " c"]
    ) -> Float[Array, "..."]:
        """Log density of each observation."""

    def slopes(
        self, y: Float[Array, "..."], eta: Float[Array, "..."], dispersion: Float[Array, " c"]
    ) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """First and second derivative of :meth:`log_prob` in eta.

        Steps and grids rest on the second, so it must not be positive. Where the density is not
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
        """Minus the second derivative of :meth:`log_prob` in eta, negative where it is."""
        return -self.slopes(y, eta, dispersion)[1]

    @abc.abstractmethod
    def sample(
        self, key: Key, eta: Float[Array, "..."], dispersion: Float[Array, " c"]
    ) -> Float[Array, "..."]:
        """Draw observations."""

    @abc.abstractmethod
    def mean(self, eta: Float[Array, "..."], dispersion: Float[Array, " c"]) -> Float[Array, "..."]:
        """E[y | eta]."""

    @abc.abstractmethod
    def moments(
        self, location: Float[Array, "..."], variance: Float[Array, "..."], dispersion: Array
    ) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """Mean and variance of y if eta ~ N(location, variance).

        ``variance`` is 0 unless the response is conjugate; so in the next two.
        """

    def log_predictive(
        self, y: Array, location: Array, variance: Array, dispersion: Array
    ) -> Float[Array, "..."]:
        """Log density of y if eta ~ N(location, variance)."""
        return self.log_prob(y, location, dispersion)

    @abc.abstractmethod
    def cdf(
        self, y: Array, location: Array, variance: Array, dispersion: Array
    ) -> Float[Array, "..."]:
        """P(Y <= y) if eta ~ N(location, variance)."""

    def below(self, y: Array, location: Array, variance: Array, dispersion: Array) -> Array:
        """P(Y < y) if eta ~ N(location, variance)."""
        return self.cdf(self.support.before(y), location, variance, dispersion)

    def around(
        self, y: Array, location: Array, variance: Array, dispersion: Array
    ) -> tuple[Array, Array]:
        """P(Y < y) and P(Y <= y) of observations, which may be coarser than what is predicted."""
        known = (location, variance, dispersion)
        return self.below(y, *known), self.cdf(y, *known)

    def reported(
        self, dispersion: Float[Array, "*s c"], scale: float, intercept: Any = 0.0
    ) -> dict[str, Array]:
        """What people read of the dispersion, by name, if the unit of y is ``scale`` of theirs.

        ``intercept``: the first coefficient of each, on their scale.
        """
        return {}

    def gibbs(
        self, key: Key, problem: Any, effects: Float[Array, "r k"], sweeps: int
    ) -> Float[Array, "r k"]:
        """Gibbs sweeps over the whitened effects of a ``RowProblem``, where they are known."""
        raise NotImplementedError(
            f"the {self.name} response has no Gibbs sampler of its effects: give the model "
            "gibbs=None (method='auto' of the estimators), which draws them by Metropolis."
        )
