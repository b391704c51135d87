"""Conjugate gradients for ``(F + damping diag F) x = g`` with the matrix given as a product.

With the Jacobi preconditioner the spectrum is that of ``(corr F + damping I) / (1 + damping)``,
so a handful of iterations suffices at the damping used here. ``SolveOptions.published()`` is what
the authors' code does instead: no preconditioner, and at most twenty iterations whatever the
residual.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from nghvi._linalg.tree import tree_dot
from nghvi._typing import PyTree


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
