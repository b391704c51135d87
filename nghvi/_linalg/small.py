"""Cholesky factors of many matrices at once, batch axis last.

LAPACK is called once per matrix; for the sizes of random effects the call costs more than
the arithmetic. Up to ``UNROLL`` columns the algorithms are written out column by column, so that
every operation runs over the whole batch.

Larger matrices go to LAPACK, batch axis first, one piece of the batch after another. jaxlib divides
a large batch between the threads of a pool and waits for them on a thread of that pool. Two such
calls at once on two cores have no thread left that could do the work, and wait forever. Pieces
below ``LARGEST_PIECE`` operations are worked off by the thread that asked.
"""

import functools
import importlib
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float
from threadpoolctl import ThreadpoolController

P = ParamSpec("P")
Out = TypeVar("Out")

UNROLL = 9
"""Largest number of columns for which the algorithms are written out column by column."""
LARGEST_PIECE = 200_000
"""Operations from which on jaxlib would divide a batch between threads."""
LARGEST_SOLVE = 600
"""Largest number of columns of a matrix that is inverted by solves; a larger one is inverted by
halves, in half the time."""


def cholesky(matrix: Float[Array, "r r k"]) -> Float[Array, "r r k"]:
    """Return the lower Cholesky factor of each ``matrix[:, :, k]``."""
    r = matrix.shape[0]
    if r > UNROLL:
        return jnp.moveaxis(lapack_cholesky(jnp.moveaxis(matrix, -1, 0)), 0, -1)
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
        half = lapack_inverse_lower(jnp.moveaxis(lower, -1, 0))
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
    """Return the inverse of one lower triangular matrix, or of each matrix of a batch."""
    r = lower.shape[0]
    if r == 0:
        return lower
    if r > UNROLL:
        batch = lower if lower.ndim == 3 else lower[..., None]
        found = jnp.moveaxis(lapack_inverse_lower(jnp.moveaxis(batch, -1, 0)), 0, -1)
        return found.reshape(lower.shape)
    identity = np.eye(r, dtype=lower.dtype).reshape(r, r, *[1] * (lower.ndim - 2))
    rows: list[Array] = []
    for i in range(r):
        row = jnp.broadcast_to(identity[i], lower.shape[1:])
        for j, known in enumerate(rows):
            row = row - lower[i, j] * known
        rows.append(row / lower[i, i])
    return jnp.stack(rows)


def half_log_det(lower: Float[Array, "r r k"]) -> Float[Array, " k"]:
    """Return the sum of the logarithms of the diagonal of each factor."""
    return sum((jnp.log(lower[i, i]) for i in range(lower.shape[0])), jnp.zeros(lower.shape[-1]))


@jax.custom_jvp
def log_evidence(matrix: Float[Array, "r r k"], right: Float[Array, "r k"]) -> Float[Array, ""]:
    """Return ``sum_k (b_k' Q_k^-1 b_k - log|Q_k|) / 2``, a sum of Gaussian integrals.

    ``matrix``: Q; ``right``: b.
    """
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
    """Return (R R')^-1 for each Cholesky factor R."""
    if root.shape[0] > UNROLL:
        half = lapack_inverse_lower(jnp.moveaxis(root, -1, 0))
        return jnp.einsum("kai,kaj->ijk", half, half)
    half = inverse_lower(root)
    return sum((row[:, None] * row[None] for row in half), jnp.zeros_like(root))


def _in_pieces(of: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Extend ``of``, a function of one matrix, to a batch, even one that ``vmap`` makes."""

    @custom_vmap
    def apply(batch: Float[Array, "n r r"]) -> Float[Array, "n r r"]:
        fit = (LARGEST_PIECE - 1) // max(1, batch.shape[-1] ** 3)
        return jax.lax.map(of, batch, batch_size=max(1, fit))

    @apply.def_vmap
    def flatten(axis_size: int, in_batched: list[bool], batch: Array) -> tuple[Array, bool]:
        # The number of matrices is given, since -1 cannot stand for it where they are empty.
        flat = batch.reshape(axis_size * batch.shape[1], *batch.shape[2:])
        return apply(flat).reshape(batch.shape), True

    return apply


_cholesky_in_pieces = _in_pieces(
    lambda matrix: jax.lax.linalg.cholesky(matrix, symmetrize_input=False)
)
_inverse_lower_in_pieces = _in_pieces(
    lambda lower: solve_triangular(lower, jnp.eye(lower.shape[-1]), lower=True)
)


def _inverse_by_halves(lower: Float[Array, "r r"]) -> Float[Array, "r r"]:
    """Return (L L')^-1 by products of halves: solves do not exploit the zeros of the identity."""
    r = lower.shape[-1]
    if r <= LARGEST_SOLVE:
        return cho_solve((lower, True), jnp.eye(r))
    half = r // 2
    first, below, last = lower[:half, :half], lower[half:, :half], lower[half:, half:]
    corner = _inverse_by_halves(last)
    through = solve_triangular(first, below.T, lower=True, trans=1).T
    side = corner @ through
    top = _inverse_by_halves(first) + through.T @ side
    return jnp.block([[top, -side.T], [-side, corner]])


_inverse_in_pieces = _in_pieces(_inverse_by_halves)


@jax.custom_jvp
def lapack_cholesky(matrix: Float[Array, "n r r"]) -> Float[Array, "n r r"]:
    """Return lower Cholesky factors, batch axis first; the upper triangles are never read."""
    return _cholesky_in_pieces(matrix)


@jax.custom_jvp
def lapack_inverse_lower(lower: Float[Array, "n r r"]) -> Float[Array, "n r r"]:
    """Return the inverses of lower triangular matrices, batch axis first."""
    return _inverse_lower_in_pieces(lower)


@lapack_cholesky.defjvp
def _lapack_cholesky_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # dL = L Phi(L^-1 dA L^-T), Phi: the lower triangle with half the diagonal.
    lower = lapack_cholesky(primals[0])
    half_inverse = lapack_inverse_lower(lower)
    symmetric = jnp.tril(tangents[0]) + jnp.tril(tangents[0], -1).mT
    inner = half_inverse @ symmetric @ half_inverse.mT
    half = jnp.tril(inner) - inner * jnp.eye(inner.shape[-1]) / 2
    return lower, lower @ half


@lapack_inverse_lower.defjvp
def _lapack_inverse_lower_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    found = lapack_inverse_lower(primals[0])
    return found, -found @ jnp.tril(tangents[0]) @ found


@jax.custom_jvp
def lapack_inverse(lower: Float[Array, "n r r"]) -> Float[Array, "n r r"]:
    """Return (L L')^-1 of lower triangular matrices, batch axis first."""
    return _inverse_in_pieces(lower)


@lapack_inverse.defjvp
def _lapack_inverse_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    found, half = lapack_inverse(primals[0]), jnp.tril(tangents[0]) @ primals[0].mT
    return found, -found @ (half + half.mT) @ found


def one_thread(function: Callable[P, Out]) -> Callable[P, Out]:
    """Return the function, during whose calls LAPACK uses one thread.

    Waking a second one costs more than it gains, on a busy machine tenfold.
    """

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> Out:
        with _controller().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return alone


@functools.cache
def _controller() -> ThreadpoolController:
    """Look for the libraries once, which takes milliseconds."""
    importlib.import_module("scipy.linalg")  # it loads the LAPACK that JAX calls
    return ThreadpoolController()
