"""Packed triangles: the free entries of a lower trapezoid as one vector, and back.

A matrix ``B`` (rows x columns) with zero strict upper triangle has
``rows * columns - columns (columns - 1) / 2`` free entries. Storing only those keeps every
generic tool (gradients, optimisers, norms) away from structural zeros.
"""

import functools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


@functools.lru_cache(maxsize=256)
def _lower_indices(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    return np.tril_indices(rows, 0, columns)


def packed_size(rows: int, columns: int) -> int:
    """Number of free entries of a lower trapezoid."""
    width = min(rows, columns)
    return rows * columns - width * (width - 1) // 2 - rows * (columns - width)


def unpack_lower(packed: Float[Array, " free"], rows: int, columns: int) -> Float[Array, "r c"]:
    """The lower trapezoid with these free entries, row by row."""
    if columns == 0:
        return jnp.zeros((rows, 0), packed.dtype)
    if columns == 1:
        return packed[:, None]
    # Only the first rows are a triangle; a scatter of all the others is slow on a CPU.
    top = min(rows, columns)
    index = _lower_indices(top, columns)
    triangle = (
        jnp.zeros((top, columns), packed.dtype)
        .at[index]
        .set(packed[: index[0].size], unique_indices=True)
    )
    return jnp.concatenate([triangle, packed[index[0].size :].reshape(-1, columns)])


def pack_lower(matrix: Float[Array, "r c"]) -> Float[Array, " free"]:
    """The free entries of a lower trapezoid; what stands above the diagonal is ignored."""
    rows, columns = matrix.shape
    top = min(rows, columns)
    return jnp.concatenate([matrix[_lower_indices(top, columns)], matrix[top:].ravel()])


@functools.lru_cache(maxsize=64)
def _placement(size: int) -> np.ndarray:
    """0/1 matrix that puts packed entries into a square: one product instead of a scatter."""
    rows, columns = _lower_indices(size, size)
    place = np.zeros((rows.size, size * size))
    place[np.arange(rows.size), rows * size + columns] = 1.0
    return place


def unpack_log_cholesky(packed: Float[Array, " free"], size: int) -> Float[Array, "s s"]:
    """Lower triangle whose diagonal is stored as its logarithm."""
    rows, columns = _lower_indices(size, size)
    on_diagonal = rows == columns
    # What is not on the diagonal may be too large for an exponential.
    entries = jnp.where(on_diagonal, jnp.exp(jnp.where(on_diagonal, packed, 0.0)), packed)
    return (entries @ _placement(size)).reshape(size, size)


def log_cholesky_diagonal(packed: Float[Array, " free"], size: int) -> Float[Array, " s"]:
    """The stored logarithms of the diagonal."""
    return packed[np.cumsum(np.arange(1, size + 1)) - 1]
