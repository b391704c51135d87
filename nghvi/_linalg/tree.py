"""Pytrees as vectors: products, functions of their leading axis, and damped linear systems.

The systems are ``(F + damping diag F) x = g`` with the matrix given as a product, solved by
conjugate gradients. With the Jacobi preconditioner the spectrum is that of
``(corr F + damping I) / (1 + damping)``, so a handful of iterations suffices at the damping used
here. ``SolveOptions.published()`` is what the authors' code does instead: no preconditioner, and at
most twenty iterations whatever the residual.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

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


class SolveOptions(NamedTuple):
    """When the iteration stops, and whether it is preconditioned."""

    tolerance: float = 1e-8
    max_iterations: int = 100
    preconditioned: bool = True

    @staticmethod
    def published() -> "SolveOptions":
        """Return the defaults of the MATLAB solver used for the paper."""
        return SolveOptions(1e-6, 20, False)


class SolveInfo(NamedTuple):
    """How a linear solve went: the iterations it took and the relative residual that is left."""

    iterations: Int[Array, ""]
    residual: Float[Array, ""]


def exact_solve() -> SolveInfo:
    """Return the information about a solve in closed form."""
    return SolveInfo(jnp.zeros((), jnp.int32), jnp.zeros(()))


def damped_cg(
    product: Callable[[PyTree], PyTree],
    diagonal: PyTree,
    right: PyTree,
    damping: float,
    options: SolveOptions = SolveOptions(),
) -> tuple[PyTree, SolveInfo]:
    """Solve ``(F + damping diag F) x = right``, to a relative residual or a number of iterations.

    ``product``: the function x -> F x; ``diagonal``: diag F.
    """
    # diag F vanishes where a column of B does, and damping by diag F cannot help there.
    floor = 1e-10 * jnp.max(jnp.stack([jnp.max(x, initial=0.0) for x in jax.tree.leaves(diagonal)]))
    damped_diagonal = jax.tree.map(lambda x: damping * x + floor, diagonal)

    def damped(x: PyTree) -> PyTree:
        return jax.tree.map(lambda a, d, b: a + d * b, product(x), damped_diagonal, x)

    def precondition(x: PyTree) -> PyTree:
        if not options.preconditioned:
            return x
        return jax.tree.map(lambda r, f, d: r / (f + d), x, diagonal, damped_diagonal)

    target = options.tolerance * jnp.sqrt(tree_dot(right, right))

    def unfinished(carry: tuple) -> Array:
        _, residual, _, _, iteration = carry
        return (jnp.sqrt(tree_dot(residual, residual)) > target) & (
            iteration < options.max_iterations
        )

    def iterate(carry: tuple) -> tuple:
        x, residual, direction, rho, iteration = carry
        image = damped(direction)
        length = rho / tree_dot(direction, image)
        x = jax.tree.map(lambda a, b: a + length * b, x, direction)
        residual = jax.tree.map(lambda a, b: a - length * b, residual, image)
        preconditioned = precondition(residual)
        rho_next = tree_dot(residual, preconditioned)
        direction = jax.tree.map(lambda a, b: a + rho_next / rho * b, preconditioned, direction)
        return x, residual, direction, rho_next, iteration + 1

    zero = jax.tree.map(jnp.zeros_like, right)
    first = precondition(right)
    start = (zero, right, first, tree_dot(right, first), jnp.zeros((), jnp.int32))
    x, residual, _, _, iterations = jax.lax.while_loop(unfinished, iterate, start)
    norm = jnp.sqrt(tree_dot(right, right))
    relative = jnp.sqrt(tree_dot(residual, residual)) / jnp.where(norm > 0, norm, 1.0)
    return x, SolveInfo(iterations, relative)
