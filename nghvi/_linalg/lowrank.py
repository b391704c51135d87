"""The precision of a factor covariance without ever forming it.

For ``S = B B' + D^2`` with ``D = diag(d)`` and ``R = (I + B' D^-2 B)^-1 = L L'``::

    P = S^-1 = D^-2 - W W',   W = D^-2 B L,   C = P B = W L',   A = B' P B = B' C

``A`` is computed as ``B' C``: the shorter ``I - L L'`` loses every digit when ``B`` is small.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float


class FactorPrecision(NamedTuple):
    """``P = diag(inverse_variance) - root root'`` and the products the Fisher matrix needs."""

    inverse_variance: Float[Array, " m"]
    root: Float[Array, "m p"]
    core: Float[Array, "p p"]
    projected: Float[Array, "m p"]
    gram: Float[Array, "p p"]
    log_det_covariance: Float[Array, ""]

    def matmul(self, right: Float[Array, "m k"]) -> Float[Array, "m k"]:
        """``P @ right``."""
        return self.inverse_variance[:, None] * right - self.root @ (self.root.T @ right)

    def matvec(self, right: Float[Array, " m"]) -> Float[Array, " m"]:
        """``P @ right`` for one vector."""
        return self.inverse_variance * right - self.root @ (self.root.T @ right)

    def diagonal(self) -> Float[Array, " m"]:
        """Diagonal of ``P``."""
        return self.inverse_variance - jnp.sum(self.root**2, axis=1)


def factor_precision(loadings: Float[Array, "m p"], scale: Float[Array, " m"]) -> FactorPrecision:
    """Woodbury form of ``(loadings loadings' + diag(scale)^2)^-1``."""
    p = loadings.shape[1]
    inverse_variance = scale**-2
    scaled = loadings / scale[:, None]
    # Cholesky of I + B'D^-2B = U U'; its inverse's root is L = U^-T, upper triangular.
    upper_inverse = solve_triangular(
        jnp.linalg.cholesky(jnp.eye(p) + scaled.T @ scaled), jnp.eye(p), lower=True
    )
    core = upper_inverse.T
    root = inverse_variance[:, None] * loadings @ core
    projected = root @ core.T
    log_det = 2 * jnp.sum(jnp.log(jnp.abs(scale))) - 2 * jnp.sum(
        jnp.log(jnp.diagonal(upper_inverse))
    )
    return FactorPrecision(inverse_variance, root, core, projected, loadings.T @ projected, log_det)
