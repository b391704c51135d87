"""Cholesky factors of many small matrices at once, batch axis last.

LAPACK is called once per matrix; for the sizes of random effects the call costs more than
the arithmetic. Up to ``UNROLL`` columns the algorithms are written out column by column, so that
every operation runs over the whole batch; larger matrices go to :mod:`nghvi._linalg.lapack`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nghvi._linalg import lapack

UNROLL = 9


def cholesky(matrix: Float[Array, "r r k"]) -> Float[Array, "r r k"]:
    """Lower Cholesky factor of each ``matrix[:, :, k]``."""
    r = matrix.shape[0]
    if r > UNROLL:
        return jnp.moveaxis(lapack.cholesky(jnp.moveaxis(matrix, -1, 0)), 0, -1)
    columns: list[Array] = []
    for j in range(r):
        rest = matrix[j:, j]
        for column in columns:
            rest = rest - column[j:] * column[j]
        rest = rest / jnp.sqrt(rest[0])
        columns.append(jnp.concatenate([jnp.zeros_like(matrix[:j, j]), rest]))
    return jnp.stack(columns, axis=1)


def solve_lower(
    lower: Float[Array, "r r k"], right: Float[Array, "r k"], *, transpose: bool = False
) -> Float[Array, "r k"]:
    """Solve ``lower x = right`` (or with ``lower'``) for each member of the batch."""
    r = lower.shape[0]
    if r > UNROLL:
        half = lapack.inverse_lower(jnp.moveaxis(lower, -1, 0))
        return jnp.einsum("kji,jk->ik" if transpose else "kij,jk->ik", half, right)
    x: list[Array] = [right[0]] * r
    order = range(r - 1, -1, -1) if transpose else range(r)
    for i in order:
        known = range(i + 1, r) if transpose else range(i)
        entry = (lambda k, i=i: lower[k, i]) if transpose else (lambda k, i=i: lower[i, k])
        inner = sum((entry(k) * x[k] for k in known), jnp.zeros_like(right[0]))
        x[i] = (right[i] - inner) / lower[i, i]
    return jnp.stack(x)


def inverse_lower(lower: Float[Array, "r r ..."]) -> Float[Array, "r r ..."]:
    """The inverse of one lower triangular matrix, or of each of a batch."""
    r = lower.shape[0]
    if r == 0:
        return lower
    if r > UNROLL:
        batch = lower if lower.ndim == 3 else lower[..., None]
        found = jnp.moveaxis(lapack.inverse_lower(jnp.moveaxis(batch, -1, 0)), 0, -1)
        return found.reshape(lower.shape)
    rows: list[Array] = []
    for i in range(r):
        row = jnp.zeros_like(lower[0]).at[i].set(1.0)
        for j, known in enumerate(rows):
            row = row - lower[i, j] * known
        rows.append(row / lower[i, i])
    return jnp.stack(rows)


def half_log_det(lower: Float[Array, "r r k"]) -> Float[Array, " k"]:
    """Sum of the logarithms of the diagonal of each factor."""
    return sum((jnp.log(lower[i, i]) for i in range(lower.shape[0])), jnp.zeros(lower.shape[-1]))


@jax.custom_jvp
def log_evidence(matrix: Float[Array, "r r k"], right: Float[Array, "r k"]) -> Float[Array, ""]:
    """``sum_k (b_k' Q_k^-1 b_k - log|Q_k|) / 2``: a Gaussian integral for each member."""
    root = cholesky(matrix)
    return 0.5 * jnp.sum(solve_lower(root, right) ** 2) - jnp.sum(half_log_det(root))


@log_evidence.defjvp
def _log_evidence_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    # d = m'db - (m m' + Q^-1) : dQ / 2 with m = Q^-1 b. Going back through the factorisation
    # instead would cost three more triangular solves and twice the code to compile.
    matrix, right = primals
    d_matrix, d_right = tangents
    root = cholesky(matrix)
    covariance = inverse(root)
    mean = jnp.sum(covariance * right, axis=1)
    value = 0.5 * jnp.sum(mean * right) - jnp.sum(half_log_det(root))
    moment = mean[:, None] * mean[None] + covariance
    return value, jnp.sum(mean * d_right) - 0.5 * jnp.sum(moment * d_matrix)


def inverse(root: Float[Array, "r r k"]) -> Float[Array, "r r k"]:
    """(R R')^-1 for each factor."""
    if root.shape[0] > UNROLL:
        half = lapack.inverse_lower(jnp.moveaxis(root, -1, 0))
        return jnp.einsum("kai,kaj->ijk", half, half)
    half = inverse_lower(root)
    return sum((row[:, None] * row[None] for row in half), jnp.zeros_like(root))
