"""Vector space operations on pytrees, and functions of their leading axis."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nghvi._typing import PyTree


def tree_dot(left: PyTree, right: PyTree) -> Float[Array, ""]:
    """Return the inner product over all leaves."""
    products = jax.tree.map(jnp.vdot, left, right)
    return sum(jax.tree.leaves(products), start=jnp.zeros(()))


def tree_norm(tree: PyTree) -> Float[Array, ""]:
    """Return the Euclidean norm over all leaves."""
    return jnp.sqrt(tree_dot(tree, tree))


def tree_where(condition: Array, when_true: PyTree, when_false: PyTree) -> PyTree:
    """Choose between two trees, leaf by leaf."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), when_true, when_false)


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of ``number`` that is at most ``most``; at least 1."""
    return max(n for n in range(1, number + 1) if number % n == 0 and n <= max(most, 1))


def map_in_parts(of: Callable, leading: PyTree, most: int) -> PyTree:
    """Apply ``of`` to every entry of the leading axis, at most ``most`` entries side by side.

    All parts have the same size: a last part of another size would take a second program, half as
    much again to compile.
    """
    number = len(jax.tree.leaves(leading)[0])
    size = largest_divisor(number, most)
    if size == number:
        return jax.vmap(of)(leading)
    return jax.lax.map(of, leading, batch_size=size if size > 1 else None)


def materialise(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return ``x``, computed once and stored; all NaN if any entry is not finite.

    XLA repeats whatever looks cheap inside every loop that reads it. It considers random number
    generators cheap, so theta would be drawn anew at every row of the data, which triples the cost
    of a step. It does not look through a conditional.
    """
    finite = jnp.all(jnp.isfinite(x))
    return jax.lax.cond(finite, lambda x: x, lambda x: jnp.full_like(x, jnp.nan), x)
