"""Effects that are integrated out row by row, for groups with fewer rows than effects.

Given the coefficients beta, the n rows of a group with effects N(0, Omega) have the distribution
N(H beta, v S), S = I + Z Omega Z' / v. With B = (H, y) / sqrt(v)::

    -2 log p(y | beta) = n log(2 pi v) + log|S| + (-beta, 1)' B' S^-1 B (-beta, 1)

so that all a group has to say is in log|S| and B' S^-1 B. This takes the inverse of a matrix of n
rows, where eliminating the effects takes one of r columns.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nghvi._linalg import small
from nghvi._typing import Scalar


class Whitened(NamedTuple):
    """What groups say about coefficients, summed over the groups."""

    square: Float[Array, "p p"]
    """B' S^-1 B."""
    half_log_det: Scalar
    """Half of log|S|."""


Saved = tuple[Float[Array, "k n p"], Float[Array, "k n n"], Float[Array, "k n r"]]


@jax.custom_vjp
def whitened(rows: Float[Array, "k n p"], design: Float[Array, "k n r"]) -> Whitened:
    """Return B' S^-1 B and log|S| / 2 for B = ``rows`` and S = I + Z Z' with Z = ``design``."""
    return _forward(rows, design)[0]


def _forward(rows: Float[Array, "k n p"], design: Float[Array, "k n r"]) -> tuple[Whitened, Saved]:
    n = design.shape[1]
    cross = design @ jnp.swapaxes(design, 1, 2)
    root = small.cholesky(jnp.moveaxis(cross, 0, -1) + jnp.eye(n)[:, :, None])
    inverse = jnp.moveaxis(small.inverse(root), -1, 0)
    solved = inverse @ rows
    p = rows.shape[-1]
    square = rows.reshape(-1, p).T @ solved.reshape(-1, p)
    return Whitened(square, jnp.sum(small.half_log_det(root))), (solved, inverse, design)


def _backward(saved: Saved, slope: Whitened) -> tuple[Float[Array, "k n p"], Float[Array, "k n r"]]:
    # d(B'S^-1 B) = dB'P + P'dB - P' dS P with P = S^-1 B, and d log|S| = tr S^-1 dS.
    solved, inverse, design = saved
    by_rows = solved @ (slope.square + slope.square.T)
    by_cross = slope.half_log_det * inverse - by_rows @ jnp.swapaxes(solved, 1, 2)
    return by_rows, by_cross @ design


whitened.defvjp(_forward, _backward)
