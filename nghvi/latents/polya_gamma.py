"""Logit: Gibbs sampling of the effects through Polya-Gamma variables omega.

    omega_i | alpha ~ PG(1, eta_i),     u_k | omega ~ N(Q_k^-1 b_k, Q_k^-1)
    Q_k = I + Z_k' diag(omega) Z_k,     b_k = Z_k' (y - 1/2 - omega offset)

With g_j independent standard exponentials, and a = c / 2 pi::

    PG(1, c) = sum_j g_j / (2 pi^2 ((j - 1/2)^2 + a^2))

The first ``TERMS`` terms are drawn as they stand; the remainder, a sum of many small ones, is
drawn from the log-normal distribution with its mean and variance, which changes the Laplace
transform of the whole by less than 3e-5. As for probit only the effects are kept.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import zeta

from nghvi._typing import Key
from nghvi.latents.rows import RowProblem, draw_given_precision

TERMS = 5
SERIES_LENGTH = 10
"""Powers of (a / 5.5)^2 in the remainder's moments: enough for twelve digits where a <= 1."""
LARGEST_TILT = 1e50
"""Beyond it squares would leave the range of numbers; the draw is 1 / (2 |c|) long before."""

_HALVES = np.arange(TERMS) + 0.5
_POWERS = np.arange(SERIES_LENGTH)
_MEAN_SERIES = (-1.0) ** _POWERS * zeta(2.0 * _POWERS + 2, TERMS + 0.5)
_VARIANCE_SERIES = (-1.0) ** _POWERS * (_POWERS + 1) * zeta(2.0 * _POWERS + 4, TERMS + 0.5)


def sample_polya_gamma(key: Key, tilt: Float[Array, "..."]) -> Float[Array, "..."]:
    """A draw of PG(1, c) for each tilt c."""
    key_terms, key_remainder = jax.random.split(key)
    tilt = jnp.minimum(jnp.abs(tilt), LARGEST_TILT)
    scales = _scales(tilt)
    terms = jnp.sum(scales * jax.random.exponential(key_terms, scales.shape), axis=0)
    mean, variance = _remainder_moments(tilt)
    log_variance = jnp.log1p(variance / mean**2)
    normal = jax.random.normal(key_remainder, tilt.shape)
    return terms + mean * jnp.exp(jnp.sqrt(log_variance) * normal - 0.5 * log_variance)


def _scales(tilt: Float[Array, "..."]) -> Float[Array, "t ..."]:
    """Means of the leading terms."""
    halves = jnp.asarray(_HALVES.reshape(-1, *(1,) * tilt.ndim))
    return 0.5 / ((np.pi * halves) ** 2 + 0.25 * tilt**2)


def _remainder_moments(
    tilt: Float[Array, "..."],
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Mean and variance of the terms that are left out.

    Far from 0 they are those of the whole sum less those of the leading terms. Near 0 that would
    cancel, so there the remainder's own power series in a^2 takes its place.
    """
    far = jnp.maximum(tilt, 2 * np.pi)
    scales = _scales(far)
    whole_mean = 0.5 * jnp.tanh(0.5 * far) / far
    whole_variance = (whole_mean - jax.nn.sigmoid(far) * jax.nn.sigmoid(-far)) / far**2
    far_mean = whole_mean - jnp.sum(scales, axis=0)
    far_variance = whole_variance - jnp.sum(scales**2, axis=0)

    square = (jnp.minimum(tilt, 2 * np.pi) / (2 * np.pi)) ** 2
    near_mean = jnp.polyval(_MEAN_SERIES[::-1], square) / (2 * np.pi**2)
    near_variance = jnp.polyval(_VARIANCE_SERIES[::-1], square) / (4 * np.pi**4)
    near = tilt < 2 * np.pi
    return jnp.where(near, near_mean, far_mean), jnp.where(near, near_variance, far_variance)


def sample(
    key: Key, problem: RowProblem, effects: Float[Array, "r k"], sweeps: int
) -> Float[Array, "r k"]:
    """``sweeps`` passes from these whitened effects."""

    def sweep(i: Array, effects: Array) -> Array:
        key_omega, key_effects = jax.random.split(jax.random.fold_in(key, i))
        omega = sample_polya_gamma(key_omega, problem.predictor(effects))
        right = problem.data.y - 0.5 - omega * problem.offset
        return draw_given_precision(key_effects, problem, omega, right)

    return jax.lax.fori_loop(0, sweeps, sweep, effects)
