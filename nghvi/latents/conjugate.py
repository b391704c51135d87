"""Gaussian response: effects integrate out, and their conditional is exact.

With moments G_k = Z_k'Z_k, c_k = Z_k'e_k, noise variance v and whitened effects::

    Q_k = I + L^-1 G_k L^-T / v,     b_k = L^-1 c_k / v,     u_k | y ~ N(Q_k^-1 b_k, Q_k^-1)
    log p(y) = -n/2 log(2 pi v) - e'e / (2 v) + sum_k [ |R_k^-1 b_k|^2 / 2 - log|R_k| ],  Q = R R'
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from nghvi._core.draws import flat_normal
from nghvi._linalg import small
from nghvi._typing import Key, Scalar
from nghvi.data.grouped import Moments


class Conditional(NamedTuple):
    """u_k | theta, y ~ N(R_k^-T forward_k, (R_k R_k')^-1)."""

    root: Float[Array, "r r k"]
    forward: Float[Array, "r k"]


def condition(
    gram: Float[Array, "r r k"],
    cross: Float[Array, "r k"],
    noise_var: Scalar,
    precision_factor: Float[Array, "r r"],
) -> Conditional:
    """The conditional distribution of the whitened effects of every group."""
    matrix, right = _whiten(gram, cross, noise_var, precision_factor)
    root = small.cholesky(matrix)
    return Conditional(root, small.solve_lower(root, right))


def _whiten(
    gram: Array, cross: Array, noise_var: Scalar, precision_factor: Array
) -> tuple[Array, Array]:
    """Q_k and b_k."""
    r = precision_factor.shape[0]
    if r == 1:
        inverse = 1 / precision_factor
        return 1 + gram * (inverse[0, 0] ** 2 / noise_var), cross * (inverse[0, 0] / noise_var)
    inverse = solve_triangular(precision_factor, jnp.eye(r), lower=True)
    # L^-1 G L^-T for all groups is one product with the Kronecker square of L^-1.
    square = jnp.kron(inverse, inverse) / noise_var
    whitened = (square @ gram.reshape(r * r, -1)).reshape(gram.shape)
    return jnp.eye(r)[:, :, None] + whitened, inverse @ cross / noise_var


def log_marginal(
    moments: Moments, noise_var: Scalar, precision_factor: Float[Array, "r r"]
) -> Scalar:
    """log p(y | theta) with the effects integrated out."""
    constant = -0.5 * moments.num_rows * jnp.log(2 * jnp.pi * noise_var)
    fixed = constant - 0.5 * moments.square / noise_var
    if precision_factor.shape[0] == 0:
        return fixed
    matrix, right = _whiten(moments.gram, moments.cross, noise_var, precision_factor)
    return fixed + small.log_evidence(matrix, right)


def colour(
    whitened: Float[Array, "r k"], precision_factor: Float[Array, "r r"]
) -> Float[Array, "k r"]:
    """alpha = L^-T u, one group a row."""
    return solve_triangular(precision_factor, whitened, lower=True, trans=1).T


def sample(
    key: Key, conditional: Conditional, precision_factor: Float[Array, "r r"]
) -> Float[Array, "k r"]:
    """Exact draw of the effects."""
    noise = flat_normal(key, conditional.forward.shape)
    whitened = small.solve_lower(conditional.root, conditional.forward + noise, transpose=True)
    return colour(whitened, precision_factor)


def moments(conditional: Conditional) -> tuple[Float[Array, "r k"], Float[Array, "r r k"]]:
    """Mean and covariance of the whitened effects."""
    mean = small.solve_lower(conditional.root, conditional.forward, transpose=True)
    return mean, small.inverse(conditional.root)
