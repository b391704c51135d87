"""Cholesky factors of many small matrices at once, batch axis last.

LAPACK is called once per matrix; for the sizes of random effects the call costs more than
the arithmetic. Up to ``UNROLL`` columns the factorisation is written out, so that every
operation runs over the whole batch (about eight times faster at 1,000 matrices of order 3);
above that LAPACK wins.
"""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

UNROLL = 4


def cholesky(matrix: Float[Array, "r r k"]) -> Float[Array, "r r k"]:
    """Lower Cholesky factor of each ``matrix[:, :, k]``."""
    r = matrix.shape[0]
    if r > UNROLL:
        return jnp.moveaxis(jnp.linalg.cholesky(jnp.moveaxis(matrix, -1, 0)), 0, -1)
    zero = jnp.zeros_like(matrix[0, 0])
    rows: list[list[Array]] = [[zero] * r for _ in range(r)]
    for j in range(r):
        rows[j][j] = jnp.sqrt(matrix[j, j] - sum((rows[j][k] ** 2 for k in range(j)), zero))
        for i in range(j + 1, r):
            inner = sum((rows[i][k] * rows[j][k] for k in range(j)), zero)
            rows[i][j] = (matrix[i, j] - inner) / rows[j][j]
    return jnp.stack([jnp.stack(row) for row in rows])


def solve_lower(
    lower: Float[Array, "r r k"], right: Float[Array, "r k"], *, transpose: bool = False
) -> Float[Array, "r k"]:
    """Solve ``lower x = right`` (or with ``lower'``) for each member of the batch."""
    r = lower.shape[0]
    if r > UNROLL:
        solution = solve_triangular(
            jnp.moveaxis(lower, -1, 0), right.T[..., None], lower=True, trans=int(transpose)
        )
        return solution[..., 0].T
    x: list[Array] = [right[0]] * r
    order = range(r - 1, -1, -1) if transpose else range(r)
    for i in order:
        known = range(i + 1, r) if transpose else range(i)
        entry = (lambda k, i=i: lower[k, i]) if transpose else (lambda k, i=i: lower[i, k])
        inner = sum((entry(k) * x[k] for k in known), jnp.zeros_like(right[0]))
        x[i] = (right[i] - inner) / lower[i, i]
    return jnp.stack(x)


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
    r = root.shape[0]
    if r == 1:
        return root**-2
    if r > UNROLL:
        batch = jnp.moveaxis(root, -1, 0)
        half = solve_triangular(batch, jnp.broadcast_to(jnp.eye(r), batch.shape), lower=True)
        return jnp.einsum("kai,kaj->ijk", half, half)
    unit = jnp.eye(r)[:, :, None] * jnp.ones(root.shape[-1])
    half = jnp.stack([solve_lower(root, unit[i]) for i in range(r)], axis=1)
    return jnp.einsum("aik,ajk->ijk", half, half)
