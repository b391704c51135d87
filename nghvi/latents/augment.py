"""Gibbs sampling of the effects through auxiliary variables, given which they are Gaussian.

Only the effects are kept: the gradient uses ``log p(y | alpha, theta)``, with the auxiliary
variables integrated out, which has less noise than the augmented form and is exact as well.

Probit, through the latent utilities y* (Albert and Chib)::

    y*_i | alpha ~ N(eta_i, 1) truncated to the side of y_i,     alpha | y* conjugate Gaussian

Logit, through Polya-Gamma variables omega::

    omega_i | alpha ~ PG(1, eta_i),     u_k | omega ~ N(Q_k^-1 b_k, Q_k^-1)
    Q_k = I + Z_k' diag(omega) Z_k,     b_k = Z_k' (y - 1/2 - omega offset)

With g_j independent standard exponentials, and a = c / 2 pi::

    PG(1, c) = sum_j g_j / (2 pi^2 ((j - 1/2)^2 + a^2))

The first ``TERMS`` terms are drawn as they stand; the remainder, a sum of many small ones, is
drawn from the log-normal distribution with its mean and variance, which changes the Laplace
transform of the whole by less than 3e-5.

Student-t, through the precisions of a scale mixture. With noise variance v and nu degrees of
freedom a row's precision is tau_i = w_i / v::

    tau_i | alpha ~ Gamma((nu + 1) / 2, rate (nu v + (y_i - eta_i)^2) / 2)
    u_k | tau     ~ N(Q_k^-1 b_k, Q_k^-1),   Q_k = I + Z_k' diag(tau) Z_k,
                                             b_k = Z_k' diag(tau) (y - offset)
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import zeta

from nghvi._linalg import small
from nghvi._linalg.tree import materialise
from nghvi._special import positive_normal
from nghvi._typing import Key, Scalar
from nghvi.latents.rows import RowProblem, draw_gaussian, draw_given_precision

TERMS = 5
"""Terms of a Polya-Gamma sum that are drawn one by one."""
SERIES_LENGTH = 10
"""Powers of (a / 5.5)^2 in the moments of the remainder, enough for twelve digits if a <= 1."""
LARGEST_TILT = 1e50
"""Largest tilt that is used, since squares of larger ones would overflow; the draw equals
1 / (2 |c|) long before."""
_HALVES = np.arange(TERMS) + 0.5
_POWERS = np.arange(SERIES_LENGTH)
_MEAN_SERIES = (-1.0) ** _POWERS * zeta(2.0 * _POWERS + 2, TERMS + 0.5)
_VARIANCE_SERIES = (-1.0) ** _POWERS * (_POWERS + 1) * zeta(2.0 * _POWERS + 4, TERMS + 0.5)
SPARE = 16
"""Number of draws per spare candidate, enough because less than 5 % are rejected."""


def sample_probit(
    key: Key, problem: RowProblem, effects: Float[Array, "r k"], sweeps: int
) -> Float[Array, "r k"]:
    """Return whitened effects of a probit response after ``sweeps`` passes from these."""
    data, design = problem.data, problem.design
    sign = 2 * data.y - 1
    root = small.cholesky(jnp.eye(design.shape[1])[:, :, None] + data.gram(design))

    def sweep(i: Array, effects: Array) -> Array:
        key_utility, key_effects = jax.random.split(jax.random.fold_in(key, i))
        eta = problem.predictor(effects)
        utility = sign * positive_normal(key_utility, sign * eta)
        cross = data.sum(design * (utility - problem.offset)[:, None]).T
        return draw_gaussian(key_effects, root, cross)

    return jax.lax.fori_loop(0, sweeps, sweep, effects)


def sample_polya_gamma(key: Key, tilt: Float[Array, "..."]) -> Float[Array, "..."]:
    """Draw from PG(1, c) for each tilt c."""
    key_terms, key_remainder = jax.random.split(key)
    tilt = jnp.minimum(jnp.abs(tilt), LARGEST_TILT)
    scales = _scales(tilt)
    terms = jnp.sum(scales * jax.random.exponential(key_terms, scales.shape), axis=0)
    mean, variance = _remainder_moments(tilt)
    log_variance = jnp.log1p(variance / mean**2)
    normal = jax.random.normal(key_remainder, tilt.shape)
    return terms + mean * jnp.exp(jnp.sqrt(log_variance) * normal - 0.5 * log_variance)


def _scales(tilt: Float[Array, "..."]) -> Float[Array, "t ..."]:
    """Return the means of the leading terms."""
    halves = jnp.asarray(_HALVES.reshape(-1, *(1,) * tilt.ndim))
    return 0.5 / ((np.pi * halves) ** 2 + 0.25 * tilt**2)


def _remainder_moments(
    tilt: Float[Array, "..."],
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Return the mean and variance of the terms after the leading ones.

    Far from 0 they are those of the whole sum less those of the leading terms. Near 0 these nearly
    cancel, so the remainder's own power series in a^2 takes their place.
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


def sample_logit(
    key: Key, problem: RowProblem, effects: Float[Array, "r k"], sweeps: int
) -> Float[Array, "r k"]:
    """Return whitened effects of a logit response after ``sweeps`` passes from these."""

    def sweep(i: Array, effects: Array) -> Array:
        key_omega, key_effects = jax.random.split(jax.random.fold_in(key, i))
        omega = sample_polya_gamma(key_omega, problem.predictor(effects))
        right = problem.data.y - 0.5 - omega * problem.offset
        return draw_given_precision(key_effects, problem, omega, right)

    return jax.lax.fori_loop(0, sweeps, sweep, effects)


def sample_gamma(key: Key, shape: Scalar, size: tuple[int, ...]) -> Float[Array, "..."]:
    """Return independent draws from Gamma(shape, 1) for a single shape >= 1.

    Marsaglia and Tsang's candidates are d (1 + z)^3 with z ~ N(0, 1 / 9d) and d = shape - 1/3,
    accepted with probability exp(3 d (log(1 + z) - z + z^2/2 - z^3/3)). As all draws have the same
    shape, accepted candidates are exchangeable: the next of a few spare ones replaces a rejected
    one, without another round. Single precision suffices for noise and costs a third.
    """
    number = math.prod(size)
    spare = number // SPARE + 64
    d = (shape - 1 / 3).astype(jnp.float32)
    key_normal, key_uniform = jax.random.split(key)
    z = jax.random.normal(key_normal, (number + spare,), jnp.float32) / (3 * jnp.sqrt(d))
    z = materialise(jnp.maximum(z, -1 + 1e-6))
    u = jax.random.uniform(key_uniform, z.shape, jnp.float32, minval=1e-30)
    series = jnp.log1p(z) - z * (1 - z * (0.5 - z / 3))
    accepted = jnp.log(u) < 3 * d * series
    kept = z[number:][jnp.nonzero(accepted[number:], size=spare)[0]]
    rejected = ~accepted[:number]
    next_spare = jnp.minimum(jnp.cumsum(rejected, dtype=jnp.int32) - 1, spare - 1)
    z = jnp.where(rejected, kept[next_spare], z[:number])
    return (d * (1 + z) ** 3).astype(float).reshape(size)


def draw_precision(
    key: Key, error: Float[Array, " n"], noise_var: Scalar, degrees: Scalar
) -> Float[Array, " n"]:
    """Draw the precisions tau given the errors y - eta."""
    gammas = sample_gamma(key, 0.5 * (degrees + 1), error.shape)
    return 2 * gammas / (degrees * noise_var + error**2)


def sample_student_t(
    key: Key,
    problem: RowProblem,
    effects: Float[Array, "r k"],
    sweeps: int,
    noise_var: Scalar,
    degrees: Scalar,
) -> Float[Array, "r k"]:
    """Return whitened effects of a Student-t response after ``sweeps`` passes from these."""
    residual = problem.data.y - problem.offset

    def sweep(i: Array, effects: Array) -> Array:
        key_precision, key_effects = jax.random.split(jax.random.fold_in(key, i))
        error = problem.data.y - problem.predictor(effects)
        precision = draw_precision(key_precision, error, noise_var, degrees)
        return draw_given_precision(key_effects, problem, precision, precision * residual)

    return jax.lax.fori_loop(0, sweeps, sweep, effects)
