"""Gaussian response: the effects integrate out, and their conditional distribution is exact.

With moments G_k = Z_k'Z_k, c_k = Z_k'e_k, noise variance v and Omega^-1 = L L'::

    Q_k = L L' + G_k / v,     b_k = c_k / v,     alpha_k | y ~ N(Q_k^-1 b_k, Q_k^-1)
    log p(y) = -n/2 log(2 pi v) - e'e / (2 v) + K log|L| + sum_k [ b_k'Q_k^-1 b_k - log|Q_k| ] / 2
    log p(y | alpha) = -n/2 log(2 pi v) - [ e'e - sum_k (2 c_k - G_k alpha_k)'alpha_k ] / (2 v)

Q_k is factorised in units of the effects' conditional sds under the prior, d_j = 1 / |row j of L|:
otherwise an effect whose sd is nearly zero would cost the others all their digits.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nghvi._core.draws import flat_normal
from nghvi._linalg import small
from nghvi._typing import Key, Scalar
from nghvi.data.grouped import Moments


class Conditional(NamedTuple):
    """The distribution alpha_k | theta, y ~ N(R_k^-T forward_k, (R_k R_k')^-1) of every group."""

    root: Float[Array, "r r k"]
    forward: Float[Array, "r k"]


def condition(
    gram: Float[Array, "r r k"],
    cross: Float[Array, "r k"],
    noise_var: Scalar,
    precision_factor: Float[Array, "r r"],
) -> Conditional:
    """Return the conditional distribution of the effects of every group."""
    scaled, unit = _precision(gram, noise_var, precision_factor)
    root = small.cholesky(scaled) / unit[:, None, None]
    return Conditional(root, small.solve_lower(root, cross / noise_var))


def _precision(
    gram: Float[Array, "r r k"], noise_var: Scalar, precision_factor: Float[Array, "r r"]
) -> tuple[Float[Array, "r r k"], Float[Array, " r"]]:
    """Return d Q_k d and d."""
    unit = jax.lax.rsqrt(jnp.sum(precision_factor**2, axis=1))
    prior = unit[:, None] * precision_factor
    data = gram * (unit[:, None] * unit / noise_var)[:, :, None]
    return (prior @ prior.T)[:, :, None] + data, unit


def log_marginal(
    moments: Moments, noise_var: Scalar, precision_factor: Float[Array, "r r"]
) -> Scalar:
    """Return log p(y | theta) with the effects integrated out."""
    constant = -0.5 * moments.num_rows * jnp.log(2 * jnp.pi * noise_var)
    fixed = constant - 0.5 * moments.square / noise_var
    if precision_factor.shape[0] == 0:
        return fixed
    precision, unit = _precision(moments.gram, noise_var, precision_factor)
    log_det = jnp.sum(jnp.log(unit * jnp.diagonal(precision_factor)))
    effects = small.log_evidence(precision, moments.cross * (unit / noise_var)[:, None])
    return fixed + moments.gram.shape[-1] * log_det + effects


def log_likelihood(moments: Moments, effects: Float[Array, "k r"], noise_var: Scalar) -> Scalar:
    """Return log p(y | theta, alpha)."""
    explained = 2 * moments.cross - jnp.einsum("ijk,kj->ik", moments.gram, effects)
    square = moments.square - jnp.sum(explained.T * effects)
    return -0.5 * (moments.num_rows * jnp.log(2 * jnp.pi * noise_var) + square / noise_var)


def sample(key: Key, conditional: Conditional) -> Float[Array, "k r"]:
    """Return an exact draw of the effects, one row per group."""
    noise = flat_normal(key, conditional.forward.shape)
    return small.solve_lower(conditional.root, conditional.forward + noise, transpose=True).T


def log_density(conditional: Conditional, effects: Float[Array, "k r"]) -> Float[Array, " k"]:
    """Return log p(alpha_k | theta, y) of every group."""
    root, forward = conditional
    noise = jnp.einsum("jik,kj->ik", root, effects) - forward
    constant = 0.5 * noise.shape[0] * jnp.log(2 * jnp.pi)
    return small.half_log_det(root) - 0.5 * jnp.sum(noise**2, axis=0) - constant


def moments(conditional: Conditional) -> tuple[Float[Array, "k r"], Float[Array, "r r k"]]:
    """Return the mean and covariance of the effects."""
    mean = small.solve_lower(conditional.root, conditional.forward, transpose=True)
    return mean.T, small.inverse(conditional.root)


def colour(
    whitened: Float[Array, "r k"], precision_factor: Float[Array, "r r"]
) -> Float[Array, "k r"]:
    """Return alpha = L^-T u, one row per group: the effects whose whitened form is u."""
    return whitened.T @ small.inverse_lower(precision_factor)
