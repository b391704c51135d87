"""y = eta + sigma t_nu: a normal with noise variance sigma^2 / w, w ~ Gamma(nu / 2, nu / 2).

The degrees of freedom nu exceed 2, so that the noise has a variance. The dispersion is

    ( 2 log[sigma (nu + 1) / nu],   log[nu (nu - 2)] / 2 )

The first is orthogonal to nu: the Fisher information of (log sigma, nu) is proportional to
``[[nu (nu + 1), -1], [-1, ..]]``, so d log sigma / d nu = 1 / (nu (nu + 1)) along the curves
on which sigma (nu + 1) / nu is constant. If log sigma were used instead, the two would have a
correlation of about 0.6. The second is close to log(nu - 1), in which the likelihood is nearly
quadratic, but takes all real values; decision 9 has figures.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array

from nghvi._special import log, t_cdf
from nghvi._typing import Key, Scalar
from nghvi.latents import augment
from nghvi.latents.rows import RowProblem
from nghvi.priors import Priors
from nghvi.responses.gaussian import Continuous

START = 10.0
"""Degrees of freedom from which a fit starts: both heavy and light tails are near."""
FENCE = 3.0
"""Interquartile ranges beyond the quartiles at which standardisation clips y."""


class NoiseLaw(NamedTuple):
    """The noise in the usual terms, sigma^2 and nu."""

    variance: Scalar
    """sigma^2."""
    degrees: Scalar
    """nu."""

    @staticmethod
    def of(dispersion: Array) -> "NoiseLaw":
        """Return the noise given the dispersion, whose two entries are along the last axis."""
        degrees = 1 + jnp.sqrt(1 + jnp.exp(2 * dispersion[..., 1]))
        return NoiseLaw(jnp.exp(dispersion[..., 0]) * (degrees / (degrees + 1)) ** 2, degrees)

    def dispersion(self) -> Array:
        """Return the dispersion: the inverse of :meth:`of`."""
        nu = self.degrees
        scale = jnp.log(self.variance) + 2 * jnp.log1p(1 / nu)
        return jnp.stack([scale, 0.5 * jnp.log(nu * (nu - 2))], axis=-1)


class StudentT(Continuous):
    """Observations with outliers: the noise is t with unknown scale and degrees of freedom."""

    name: ClassVar[str] = "student-t"
    log_concave: ClassVar[bool] = False

    @property
    def dispersion_names(self) -> tuple[str, ...]:
        return ("log_core_var", "log_degrees")

    def typical(self, y: np.ndarray) -> np.ndarray:
        # Outliers would determine the unit, and priors on that scale would not suit the rest.
        low, high = np.quantile(y, [0.25, 0.75])
        reach = FENCE * (high - low)
        return np.clip(y, low - reach, high + reach) if reach > 0 else y

    def log_prior(self, dispersion: Array, priors: Priors) -> Scalar:
        variance, nu = NoiseLaw.of(dispersion)
        scale = priors.noise.log_density(jnp.log(variance))
        return scale + priors.degrees.log_density(nu - 2) + _log_slope(nu)

    def log_volume(self, dispersion: Array, priors: Priors) -> Scalar:
        variance, nu = NoiseLaw.of(dispersion)
        return priors.noise.log_volume(jnp.log(variance)) + _log_slope(nu)

    def sample_prior(self, rng: np.random.Generator, number: int, priors: Priors) -> np.ndarray:
        variance = jnp.asarray(np.exp(priors.noise.sample(rng, number)[:, 0]))
        degrees = jnp.asarray(2 + priors.degrees.sample(rng, number))
        return np.asarray(NoiseLaw(variance, degrees).dispersion())

    def stated_priors(self, priors: Priors) -> dict[str, str]:
        degrees = f"degrees - 2 ~ Gamma({priors.degrees.shape:.4g}, {priors.degrees.rate:.4g})"
        return {"noise_scale": priors.noise.stated(), "degrees": degrees}

    def start(self, variance: Scalar) -> Array:
        return NoiseLaw((1 - 2 / START) * variance, jnp.asarray(START)).dispersion()

    def log_prob(self, y: Array, eta: Array, dispersion: Array) -> Array:
        variance, nu = NoiseLaw.of(dispersion)
        constant = gammaln(0.5 * (nu + 1)) - gammaln(0.5 * nu)
        constant -= 0.5 * jnp.log(jnp.pi * nu * variance)
        return constant - 0.5 * (nu + 1) * log(1 + (y - eta) ** 2 / (nu * variance))

    def slopes(self, y: Array, eta: Array, dispersion: Array) -> tuple[Array, Array]:
        # Quadratics with curvature (nu + 1) / (nu sigma^2 + e^2) touch the log density from
        # below. (nu + 1) / (nu + 3) of that is the Fisher information on average and more than half
        # the curvature: steps are as long as they should be and still cannot lead downhill.
        variance, nu = NoiseLaw.of(dispersion)
        error = y - eta
        touching = (nu + 1) / (nu * variance + error**2)
        return touching * error, -(nu + 1) / (nu + 3) * touching

    def curvature(self, y: Array, eta: Array, dispersion: Array) -> Array:
        variance, nu = NoiseLaw.of(dispersion)
        square, core = (y - eta) ** 2, nu * variance
        return (nu + 1) * (core - square) / (core + square) ** 2

    def sample(self, key: Key, eta: Array, dispersion: Array) -> Array:
        variance, nu = NoiseLaw.of(dispersion)
        key_normal, key_precision = jax.random.split(key)
        precision = augment.sample_gamma(key_precision, 0.5 * nu, eta.shape) / (0.5 * nu)
        normal = jax.random.normal(key_normal, eta.shape)
        return eta + jnp.sqrt(variance / precision) * normal

    def mean(self, eta: Array, dispersion: Array) -> Array:
        return eta

    def moments(self, location: Array, variance: Array, dispersion: Array) -> tuple[Array, Array]:
        noise, nu = NoiseLaw.of(dispersion)
        return location, jnp.broadcast_to(noise * nu / (nu - 2), location.shape)

    def cdf(self, y: Array, location: Array, variance: Array, dispersion: Array) -> Array:
        noise, nu = NoiseLaw.of(dispersion)
        return t_cdf((y - location) / jnp.sqrt(noise), nu)

    def reported(self, dispersion: Array, scale: float, intercept: Any = 0.0) -> dict[str, Array]:
        variance, degrees = NoiseLaw.of(dispersion)
        return {"noise_scale": scale * jnp.sqrt(variance), "degrees": degrees}

    def gibbs(self, key: Key, problem: RowProblem, effects: Array, sweeps: int) -> Array:
        noise = NoiseLaw.of(problem.dispersion)
        return augment.sample_student_t(key, problem, effects, sweeps, *noise)


def _log_slope(nu: Scalar) -> Scalar:
    """Return log d nu / d dispersion[1]; that of log sigma^2 in dispersion[0] is 0."""
    return jnp.log(nu * (nu - 2) / (nu - 1))
