"""Gaussian response: effects integrate out, and their conditional is exact.

With moments G_k = Z_k'Z_k, c_k = Z_k'e_k, noise variance v and Omega^-1 = L L'::

    Q_k = L L' + G_k / v,     b_k = c_k / v,     alpha_k | y ~ N(Q_k^-1 b_k, Q_k^-1)
    log p(y) = -n/2 log(2 pi v) - e'e / (2 v) + K log|L| + sum_k [ b_k'Q_k^-1 b_k - log|Q_k| ] / 2
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from nghvi._core.draws import flat_normal
from nghvi._linalg import small
from nghvi._typing import Key, Scalar
from nghvi.data.grouped import Moments


class Conditional(NamedTuple):
    """alpha_k | theta, y ~ N(R_k^-T forward_k, (R_k R_k')^-1)."""

    root: Float[Array, "r r k"]
    forward: Float[Array, "r k"]


def condition(
    gram: Float[Array, "r r k"],
    cross: Float[Array, "r k"],
    noise_var: Scalar,
    precision_factor: Float[Array, "r r"],
) -> Conditional:
    """The conditional distribution of the effects of every group."""
    root = small.cholesky(_precision(gram, noise_var, precision_factor))
    return Conditional(root, small.solve_lower(root, cross / noise_var))


def _precision(gram: Array, noise_var: Scalar, precision_factor: Array) -> Array:
    """Q_k."""
    return (precision_factor @ precision_factor.T)[:, :, None] + gram / noise_var


def log_marginal(
    moments: Moments, noise_var: Scalar, precision_factor: Float[Array, "r r"]
) -> Scalar:
    """log p(y | theta) with the effects integrated out."""
    constant = -0.5 * moments.num_rows * jnp.log(2 * jnp.pi * noise_var)
    fixed = constant - 0.5 * moments.square / noise_var
    if precision_factor.shape[0] == 0:
        return fixed
    log_det = jnp.sum(jnp.log(jnp.diagonal(precision_factor)))
    precision = _precision(moments.gram, noise_var, precision_factor)
    effects = small.log_evidence(precision, moments.cross / noise_var)
    return fixed + moments.gram.shape[-1] * log_det + effects


def sample(key: Key, conditional: Conditional) -> Float[Array, "k r"]:
    """Exact draw of the effects, one group a row."""
    noise = flat_normal(key, conditional.forward.shape)
    return small.solve_lower(conditional.root, conditional.forward + noise, transpose=True).T


def log_density(conditional: Conditional, effects: Float[Array, "k r"]) -> Float[Array, " k"]:
    """log p(alpha_k | theta, y) of every group."""
    root, forward = conditional
    noise = jnp.einsum("jik,kj->ik", root, effects) - forward
    constant = 0.5 * noise.shape[0] * jnp.log(2 * jnp.pi)
    return small.half_log_det(root) - 0.5 * jnp.sum(noise**2, axis=0) - constant


def moments(conditional: Conditional) -> tuple[Float[Array, "k r"], Float[Array, "r r k"]]:
    """Mean and covariance of the effects."""
    mean = small.solve_lower(conditional.root, conditional.forward, transpose=True)
    return mean.T, small.inverse(conditional.root)


def colour(
    whitened: Float[Array, "r k"], precision_factor: Float[Array, "r r"]
) -> Float[Array, "k r"]:
    """alpha = L^-T u, one group a row: back from the units in which the prior is N(0, I)."""
    return whitened.T @ small.inverse_lower(precision_factor)
