"""Ordered classes: y = 0, 1, ... says where a logistic or normal latent variable falls.

    P(y <= k) = F(t_k - eta),    0 = t_0 < t_1 < ... < t_{J-2}

The intercept b of eta is minus the first cutpoint, so that J = 2 is the binary response with this
link; cutpoints are c_k = t_k - b. The dispersion holds the logarithms of the gaps between them.

The prior is N(0, s^2), independently for every cutpoint but restricted to their order, with the s
of the intercept. With m = J - 1 cutpoints::

    b | t ~ N(mean(t), s^2 / m),    p(t) = m! (2 pi s^2)^{-(m-1)/2} m^{-1/2} exp(-V / (2 s^2)),
    V = sum (t_k - mean(t))^2
"""

import dataclasses
import math
from typing import Any, ClassVar, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nghvi._core.response import ResponseError, Support
from nghvi._special import log_expit, log_ndtr_between, slopes_between
from nghvi._typing import Key, Scalar
from nghvi.priors import Priors
from nghvi.responses._shared import LogitLink, ProbitLink, SymmetricLink, WithLevel

FAR = 1e5
"""A threshold that no latent variable reaches."""
LEAST_GAP = 0.25
"""Least gap between the thresholds from which a fit starts; all gaps are rounded to multiples."""


class Ordered(SymmetricLink, WithLevel):
    """Classes numbered 0, 1, ... in their order."""

    classes: ClassVar[bool] = True
    takes_intercept: ClassVar[bool] = True
    num_classes: int = eqx.field(static=True, default=3)
    labels: tuple[str, ...] = eqx.field(static=True, default=())
    """Names of the classes; if there are none they are numbered from 1."""
    first: Any = None
    """Gaps from which a fit starts; None stands for 1. They are an array, so that data with other
    shares of the classes use the same compiled programs."""
    remedy: ClassVar[str] = "number the classes 0, 1, 2, ... in their order."

    def of_classes(self, labels: tuple[str, ...]) -> Self:
        return dataclasses.replace(self, num_classes=len(labels), labels=labels)

    @property
    def support(self) -> Support:
        return Support(0, self.num_classes - 1, discrete=True)

    @property
    def dispersion_names(self) -> tuple[str, ...]:
        return tuple(f"log_gap_{k}" for k in range(1, self.num_classes - 1))

    def suited(self, y: np.ndarray, known: np.ndarray, *, intercept: bool) -> Self:
        up_to = np.cumsum(np.bincount(y.astype(int), minlength=self.num_classes))[:-1] / len(y)
        thresholds = self.quantile(up_to)
        gaps = np.maximum(np.round(np.diff(thresholds) / LEAST_GAP), 1) * LEAST_GAP
        level = round(float(-thresholds[0] - np.mean(known)))
        return dataclasses.replace(self, level=level, first=jnp.asarray(gaps))

    def check(self, y: np.ndarray, column: str = "y") -> None:
        super().check(y, column)
        counts = np.bincount(y.astype(int), minlength=self.num_classes)
        if (counts == 0).any():
            absent = ", ".join(self._names()[k] for k in np.flatnonzero(counts == 0))
            raise ResponseError(
                f"{column} has no row of class {absent}, so its cutpoints cannot be estimated: "
                "leave it out of the classes, or merge it with a neighbour."
            )

    def _names(self) -> tuple[str, ...]:
        return self.labels or tuple(str(k + 1) for k in range(self.num_classes))

    def noise(self, mean: float, variance: float) -> float:
        # The noise of the latent variable, a little more since only its class is observed.
        return 1.2 / self.attenuation

    def _thresholds(self, dispersion: Float[Array, "*s c"]) -> Float[Array, "*s m"]:
        """Return the thresholds t."""
        none = jnp.zeros((*dispersion.shape[:-1], 1))
        return jnp.cumsum(jnp.concatenate([none, jnp.exp(dispersion)], axis=-1), axis=-1)

    def _ends(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array]:
        """Return the bounds between which the latent noise lies."""
        cuts = self._thresholds(dispersion)
        ends = jnp.concatenate([jnp.full(1, -FAR), cuts, jnp.full(1, FAR)])
        code = jnp.clip(y, -1, self.num_classes - 1).astype(int)
        return ends[jnp.maximum(code, 0)] - eta, ends[code + 1] - eta

    def _prior_sd(self, priors: Priors) -> float:
        return float(np.ravel(np.asarray(priors.coef_sd))[0])

    def log_prior(self, dispersion: Array, priors: Priors) -> Scalar:
        sd, m, t = self._prior_sd(priors), self.num_classes - 1, self._thresholds(dispersion)
        constant = math.lgamma(m + 1) - (m - 1) * np.log(sd * np.sqrt(2 * np.pi)) - np.log(m) / 2
        square = jnp.sum((t - jnp.mean(t)) ** 2)
        return constant - 0.5 * square / sd**2 + self.log_volume(dispersion, priors)

    def log_volume(self, dispersion: Array, priors: Priors) -> Scalar:
        return jnp.sum(dispersion)

    def intercept_prior(self, dispersion: Array, priors: Priors) -> tuple[Array, float]:
        centre = jnp.mean(self._thresholds(dispersion), axis=-1)
        return centre, self._prior_sd(priors) / np.sqrt(self.num_classes - 1)

    def sample_prior(self, rng: np.random.Generator, number: int, priors: Priors) -> np.ndarray:
        cuts = np.sort(rng.standard_normal((number, self.num_classes - 1)), axis=1)
        return np.log(self._prior_sd(priors) * np.diff(cuts, axis=1))

    def stated_priors(self, priors: Priors) -> dict[str, str]:
        said = f"N(0, {self._prior_sd(priors):.4g}^2) in order"
        return dict.fromkeys(self.reported(jnp.zeros(self.num_dispersion), 1.0), said)

    def start(self, variance: Scalar) -> Array:
        return jnp.log(jnp.ones(self.num_dispersion) if self.first is None else self.first)

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        above = [1 - self.share(t - location) for t in self._thresholds(dispersion)]
        mean = sum(above, jnp.zeros_like(location))
        square = sum(((2 * k + 1) * p for k, p in enumerate(above)), jnp.zeros_like(location))
        return mean, square - mean**2

    def mean(self, eta: Array, dispersion: Array) -> Array:
        return self.moments(eta, jnp.zeros_like(eta), dispersion)[0]

    def cdf(self, y: Array, location: Array, variance: Array, dispersion: Array) -> Array:
        upper = self._ends(jnp.floor(y), location, dispersion)[1]
        return jnp.where(y < 0, 0.0, self.share(upper))

    def reported(self, dispersion: Array, scale: float, intercept: Any = 0.0) -> dict[str, Array]:
        cuts = self._thresholds(dispersion) - jnp.asarray(intercept)[..., None]
        names = self._names()
        return {f"cut[{names[k]}|{names[k + 1]}]": cuts[..., k] for k in range(len(names) - 1)}

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        latent = eta + self.latent_noise(key, eta.shape)
        above = latent[..., None] > self._thresholds(dispersion)
        return jnp.sum(above, axis=-1).astype(latent.dtype)


class OrderedLogit(LogitLink, Ordered):
    """Ordered classes with proportional odds of being above a cutpoint."""

    name: ClassVar[str] = "ordered-logit"

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        # F(b) - F(a) = F(b) F(-a) (1 - exp(a - b)).
        low, high = self._ends(y, eta, dispersion)
        return log_expit(high) + log_expit(-low) + jnp.log(-jnp.expm1(low - high))

    def slopes(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array]:
        low, high = self._ends(y, eta, dispersion)
        below, above = self.share(low), self.share(-high)
        return below - above, -below * self.share(-low) - above * self.share(high)


class OrderedProbit(ProbitLink, Ordered):
    """Ordered classes of a latent variable with normal noise."""

    name: ClassVar[str] = "ordered-probit"

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        return log_ndtr_between(*self._ends(y, eta, dispersion))

    def slopes(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array]:
        return slopes_between(*self._ends(y, eta, dispersion))
