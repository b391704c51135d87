"""Factors of many larger matrices, batch axis first, one piece of the batch after another.

jaxlib divides a large batch between the threads of a pool and waits for them on a thread of that
pool. Two such calls at once on two cores have no thread left that could do the work, and wait
forever. Pieces below ``LARGEST_PIECE`` operations are worked off by the thread that asked.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

LARGEST_PIECE = 200_000
LARGEST_SOLVE = 600
"""Columns of a matrix that is inverted by solves; larger ones take half the time in halves."""


def _in_pieces(of: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """``of`` one matrix for a batch of them, also where the batch comes from ``vmap``."""

    @custom_vmap
    def apply(batch: Float[Array, "n r r"]) -> Float[Array, "n r r"]:
        fit = (LARGEST_PIECE - 1) // max(1, batch.shape[-1] ** 3)
        return jax.lax.map(of, batch, batch_size=max(1, fit))

    @apply.def_vmap
    def flatten(axis_size: int, in_batched: list[bool], batch: Array) -> tuple[Array, bool]:
        return apply(batch.reshape(-1, *batch.shape[2:])).reshape(batch.shape), True

    return apply


_cholesky = _in_pieces(lambda matrix: jax.lax.linalg.cholesky(matrix, symmetrize_input=False))
_inverse_lower = _in_pieces(
    lambda lower: solve_triangular(lower, jnp.eye(lower.shape[-1]), lower=True)
)


def _inverse_by_halves(lower: Float[Array, "r r"]) -> Float[Array, "r r"]:
    """(L L')^-1 by products of halves: triangular solves do not know where the identity is zero."""
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


_inverse = _in_pieces(_inverse_by_halves)


@jax.custom_jvp
def cholesky(matrix: Float[Array, "n r r"]) -> Float[Array, "n r r"]:
    """Lower Cholesky factors; the upper triangle is never read."""
    return _cholesky(matrix)


@jax.custom_jvp
def inverse_lower(lower: Float[Array, "n r r"]) -> Float[Array, "n r r"]:
    """Inverses of lower triangular matrices."""
    return _inverse_lower(lower)


@cholesky.defjvp
def _cholesky_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # dL = L Phi(L^-1 dA L^-T), Phi: the lower triangle with half the diagonal.
    lower = cholesky(primals[0])
    inverse = inverse_lower(lower)
    symmetric = jnp.tril(tangents[0]) + jnp.tril(tangents[0], -1).mT
    inner = inverse @ symmetric @ inverse.mT
    half = jnp.tril(inner) - inner * jnp.eye(inner.shape[-1]) / 2
    return lower, lower @ half


@inverse_lower.defjvp
def _inverse_lower_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    inverse = inverse_lower(primals[0])
    return inverse, -inverse @ jnp.tril(tangents[0]) @ inverse


@jax.custom_jvp
def inverse(lower: Float[Array, "n r r"]) -> Float[Array, "n r r"]:
    """(L L')^-1 of lower triangular matrices."""
    return _inverse(lower)


@inverse.defjvp
def _inverse_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    found, half = inverse(primals[0]), jnp.tril(tangents[0]) @ primals[0].mT
    return found, -found @ (half + half.mT) @ found
