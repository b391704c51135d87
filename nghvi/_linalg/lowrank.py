"""Factor covariances: the free entries of their loadings, and their precision, never formed.

For ``S = B B' + D^2`` with ``D = diag(d)`` and ``R = (I + B' D^-2 B)^-1 = L L'``::

    P = S^-1 = D^-2 - W W',   W = D^-2 B L,   C = P B = W L',   A = B' P B = B' C

``A`` is computed as ``B' C``: the shorter ``I - L L'`` loses every digit when ``B`` is small.

The loadings ``B`` (rows x columns) have a zero strict upper triangle and are stored packed, as the
vector of their ``rows * columns - columns (columns - 1) / 2`` free entries, so that generic tools
(gradients, optimisers, norms) never meet structural zeros.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

SMALL = 12
"""Rows of a triangle below which it is placed by one product with a matrix of zeros and ones."""


@functools.lru_cache(maxsize=256)
def _lower_indices(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    return np.tril_indices(rows, 0, columns)


def packed_size(rows: int, columns: int) -> int:
    """Return the number of free entries of a lower trapezoid."""
    width = min(rows, columns)
    return rows * columns - width * (width - 1) // 2 - rows * (columns - width)


def unpack_lower(packed: Float[Array, " free"], rows: int, columns: int) -> Float[Array, "r c"]:
    """Return the lower trapezoid with these free entries, which are given row by row."""
    if columns == 0:
        return jnp.zeros((rows, 0), packed.dtype)
    if columns == 1:
        return packed[:, None]
    # Only the first rows are a triangle. Looking entries up takes one kernel, scattering many.
    top = min(rows, columns)
    rows_of, columns_of = _lower_indices(top, columns)
    if top <= SMALL:
        triangle = (packed[: rows_of.size] @ _placement(top, columns)).reshape(top, columns)
    else:
        place = np.zeros((top, columns), int)
        place[rows_of, columns_of] = np.arange(rows_of.size)
        triangle = jnp.tril(packed[place])
    return jnp.concatenate([triangle, packed[rows_of.size :].reshape(-1, columns)])


def pack_lower(matrix: Float[Array, "r c"]) -> Float[Array, " free"]:
    """Return the free entries of a lower trapezoid, ignoring what is above the diagonal."""
    rows, columns = matrix.shape
    top = min(rows, columns)
    return jnp.concatenate([matrix[_lower_indices(top, columns)], matrix[top:].ravel()])


def diagonal(matrix: Float[Array, "r r"]) -> Float[Array, " r"]:
    """Return the diagonal by a masked sum, which compiles to far less than a look-up."""
    return jnp.sum(jnp.where(np.eye(len(matrix), dtype=bool), matrix, 0.0), axis=1)


@functools.lru_cache(maxsize=64)
def _placement(rows: int, columns: int) -> np.ndarray:
    """Return the 0/1 matrix that puts packed entries into a rectangle, to replace a scatter."""
    at = _lower_indices(rows, columns)
    place = np.zeros((at[0].size, rows * columns))
    place[np.arange(at[0].size), at[0] * columns + at[1]] = 1.0
    return place


def unpack_log_cholesky(packed: Float[Array, " free"], size: int) -> Float[Array, "s s"]:
    """Return the lower triangle whose packed entries hold the logarithms of its diagonal."""
    rows, columns = _lower_indices(size, size)
    on_diagonal = rows == columns
    # Entries off the diagonal may be too large to exponentiate.
    entries = jnp.where(on_diagonal, jnp.exp(jnp.where(on_diagonal, packed, 0.0)), packed)
    return (entries @ _placement(size, size)).reshape(size, size)


def log_cholesky_diagonal(packed: Float[Array, " free"], size: int) -> Float[Array, " s"]:
    """Return the logarithms of the diagonal, as they are stored."""
    return packed[np.cumsum(np.arange(1, size + 1)) - 1]


class FactorPrecision(NamedTuple):
    """The precision P = diag(inverse_variance) - root root', with products for the Fisher matrix.

    In the notation above, ``root`` is W, ``core`` is L, ``projected`` is C and ``gram`` is A.
    """

    inverse_variance: Float[Array, " m"]
    root: Float[Array, "m p"]
    core: Float[Array, "p p"]
    projected: Float[Array, "m p"]
    gram: Float[Array, "p p"]
    log_det_covariance: Float[Array, ""]

    def matvec(self, right: Float[Array, " m"]) -> Float[Array, " m"]:
        """Return ``P @ right`` for one vector."""
        return self.inverse_variance * right - self.root @ (self.root.T @ right)

    def diagonal(self) -> Float[Array, " m"]:
        """Return the diagonal of ``P``."""
        return self.inverse_variance - jnp.sum(self.root**2, axis=1)


def factor_precision(loadings: Float[Array, "m p"], scale: Float[Array, " m"]) -> FactorPrecision:
    """Return the Woodbury form of ``(loadings loadings' + diag(scale)^2)^-1``."""
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
