"""Several grouping factors with many crossed levels: the rest is only multiplied with, not formed.

The elimination of :mod:`nghvi.latents.schur` leaves S = E - sum_e V_e'V_e. With its own blocks
B B', one per level, A = B^-1 S B^-T is not far from the identity, and a product with it takes only
sums over cells. Starting from a vector z, Lanczos' method finds A Q = Q T + ... with Q'Q = I and a
small tridiagonal T, and with it::

    A^-1 z = |z| Q T^-1 e_1,    A^-1/2 z = |z| Q T^-1/2 e_1,    z' log A z = |z|^2 e_1' log T e_1

to any tolerance. This gives means of effects, their draws, and, since E z'log A z = log|A| for
random signs z, the evidence. The same z estimate blocks of the inverse, S^-1 = E x w' with
x = S^-1 B z and w = B^-T z, and hence the gradient (:mod:`nghvi.latents.selected_inverse`).
Directions in which all levels of a factor move together hardly differ from those of another factor
and have by far the smallest eigenvalues. They are not left to chance but are probes of their own,
and the random signs are made orthogonal to them.

The signs are the same for every theta, so the estimate is a smooth function. Its error is of the
order of 1 however many levels there are, while a variance of K levels is known to sqrt(2 / K):
relative to the posterior sd the error vanishes as the design grows.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from nghvi._core.draws import flat_normal
from nghvi._linalg import small
from nghvi._typing import Key, Scalar
from nghvi.data.elimination import Elimination, pairs_of
from nghvi.latents import schur
from nghvi.latents.schur import Eliminated, Reduced, System

MOST_STEPS, TOLERANCE = 150, 1e-9
"""Largest number of steps of Lanczos' method, and the relative residual of a solution at which it
has converged."""


class Rest(NamedTuple):
    """The rest S of a system, as the parts of which it is made."""

    diagonal: tuple[Float[Array, "r r k"], ...]
    """The diagonal blocks of E."""
    cells: tuple[Float[Array, "r s c"], ...]
    """The blocks of E between two factors."""
    eliminated: tuple[Eliminated, ...]
    roots: tuple[Float[Array, "r r k"], ...]
    """The block of B of every level."""
    right: Float[Array, " m"]


def rest_of(system: System, reduced: Reduced, plan: Elimination) -> Rest:
    """Return what the elimination leaves of a system."""
    diagonal = system.diagonal[plan.first_rest :]
    roots = []
    for own, f in zip(diagonal, plan.rest, strict=True):
        for e, each in enumerate(reduced.eliminated):
            block, where = each.coupling[f - e - 1], plan.steps[e].cells[f - e - 1]
            squares = jnp.einsum("aic,ajc->ijc", block, block)
            own -= schur.sums(squares, where.second, plan.levels[f])
        roots.append(small.cholesky(own))
    return Rest(diagonal, system.rest_cells, reduced.eliminated, tuple(roots), reduced.right)


def product(rest: Rest, plan: Elimination, vector: Float[Array, " m"]) -> Float[Array, " m"]:
    """Return S u."""
    effects = schur.by_factor(vector, plan)
    found = [jnp.einsum("ijk,jk->ik", d, u) for d, u in zip(rest.diagonal, effects, strict=True)]
    pairs = zip(pairs_of(range(len(effects))), rest.cells, plan.rest_cells, strict=True)
    for (f, g), block, where in pairs:
        right = jnp.einsum("asc,sc->ac", block, effects[g][:, where.second])
        found[f] += schur.sums(right, where.first, found[f].shape[-1])
        left = schur.times(block, effects[f], where.first)
        found[g] += schur.sums(left, where.second, found[g].shape[-1])
    for e, own in enumerate(rest.eliminated):
        first = plan.first_rest - e - 1
        total = jnp.zeros_like(own.forward)
        for block, where, u in zip(
            own.coupling[first:], plan.steps[e].cells[first:], effects, strict=True
        ):
            through = jnp.einsum("asc,sc->ac", block, u[:, where.second])
            total += schur.sums(through, where.first, total.shape[-1])
        taken = schur.onto_rest(plan, e, own, total)
        found = [a - b for a, b in zip(found, taken, strict=True)]
    return schur.flat(found)


def _solved(
    rest: Rest, plan: Elimination, vector: Float[Array, " m"], *, transpose: bool = False
) -> Float[Array, " m"]:
    """Return B^-1 u, or B'^-1 u."""
    parts = zip(rest.roots, schur.by_factor(vector, plan), strict=True)
    return schur.flat([small.solve_lower(root, u, transpose=transpose) for root, u in parts])


class Krylov(NamedTuple):
    """Lanczos' decomposition of a symmetric matrix A, started at a vector z."""

    basis: Float[Array, "j m"]
    values: Float[Array, " j"]
    """Eigenvalues of T."""
    vectors: Float[Array, "j j"]
    norm: Scalar
    found: Bool[Array, ""]
    """Whether the method has converged."""

    def times(self, of: Callable[[Array], Array]) -> Float[Array, " m"]:
        """Return f(A) z, where ``of`` is f."""
        return self.norm * (self.vectors @ (of(self.values) * self.vectors[0])) @ self.basis

    def quadratic(self, of: Callable[[Array], Array]) -> Scalar:
        """Return z' f(A) z, where ``of`` is f."""
        return self.norm**2 * jnp.sum(of(self.values) * self.vectors[0] ** 2)


def lanczos(apply: Callable[[Array], Array], start: Float[Array, " m"]) -> Krylov:
    """Take as many steps of Lanczos' method as a solution needs, with full orthogonalisation."""
    most = min(MOST_STEPS, start.size)
    norm = jnp.linalg.norm(start)
    basis = jnp.zeros((most + 1, start.size)).at[0].set(start / jnp.maximum(norm, 1e-300))

    def goes_on(at: tuple) -> Array:
        j, *_, residual = at
        return (j < most) & (residual > TOLERANCE)

    def step(at: tuple) -> tuple:
        j, basis, main, side, pivot, residual = at
        image = apply(basis[j])
        along = image @ basis[j]
        for _ in range(2):
            image -= (basis @ image) @ basis
        length = jnp.linalg.norm(image)
        # Pivots of T = L D L': the residual of a solution is a product of their ratios.
        before = jnp.where(j > 0, side[j - 1] ** 2 / pivot, 0.0)
        pivot = along - before
        residual *= length / jnp.maximum(pivot, 1e-300)
        following = image / jnp.maximum(length, 1e-300)
        return (
            j + 1,
            basis.at[j + 1].set(following),
            main.at[j].set(along),
            side.at[j].set(length),
            pivot,
            residual,
        )

    one = jnp.ones(())
    begin = (jnp.zeros((), int), basis, jnp.ones(most), jnp.zeros(most), one, one)
    number, basis, main, side, _, residual = jax.lax.while_loop(goes_on, step, begin)
    side = jnp.where(jnp.arange(most) < number - 1, side, 0.0)[:-1]
    values, vectors = jnp.linalg.eigh(jnp.diag(main) + jnp.diag(side, 1) + jnp.diag(side, -1))
    found = (norm == 0) | ((residual <= TOLERANCE) & (values[0] > 0))
    return Krylov(basis[:-1], jnp.maximum(values, 1e-300), vectors, norm, found)


def _begun_at(rest: Rest, plan: Elimination, start: Float[Array, " m"]) -> Krylov:
    def apply(vector: Array) -> Array:
        return _solved(rest, plan, product(rest, plan, _solved(rest, plan, vector, transpose=True)))

    return lanczos(apply, start)


def common_signs(number: int, size: int) -> Float[Array, "s m"]:
    """Return random signs that are the same in every call."""
    return signs(jax.random.key(18), number, size)


def signs(key: Key, number: int, size: int) -> Float[Array, "s m"]:
    """Return random signs."""
    return jax.random.rademacher(key, (number, size), float)


class Solution(NamedTuple):
    """The mean of the rest, and what probes say about its precision."""

    mean: Float[Array, " m"]
    log_dets: Float[Array, " s"]
    """One estimate of log|S| from every random probe."""
    left: Float[Array, "p m"]
    """The vectors S^-1 B z of all probes."""
    right: Float[Array, "p m"]
    """The vectors B^-T z of all probes."""
    weights: Float[np.ndarray, " p"]
    """Weights of the probes: the inverse is the sum of these times left right'."""
    found: Bool[Array, ""]


def _starts(
    rest: Rest, plan: Elimination, random: Float[Array, "s m"]
) -> tuple[Float[Array, "e m"], Float[Array, "s m"]]:
    """Return the directions that move all levels together, and signs orthogonal to these."""
    directions = []
    for f, root in zip(plan.rest, rest.roots, strict=True):
        for effect in range(plan.effects[f]):
            moved = [jnp.zeros((plan.effects[g], plan.levels[g])) for g in plan.rest]
            moved[f - plan.first_rest] = root[effect]  # B' of ones
            directions.append(schur.flat(moved))
    exact = jnp.linalg.qr(jnp.stack(directions, axis=1))[0].T
    return exact, random - (random @ exact.T) @ exact


def solve(rest: Rest, plan: Elimination, random: Float[Array, "s m"]) -> Solution:
    """Solve for the rest by ``random`` signs and the directions that move all levels together."""
    exact, others = _starts(rest, plan, random)
    starts = jnp.concatenate([exact, others])

    def probe(start: Array) -> tuple[Array, Array, Array]:
        at = _begun_at(rest, plan, start)
        solved = _solved(rest, plan, at.times(jnp.reciprocal), transpose=True)
        return solved, at.quadratic(jnp.log), at.found

    left, logs, all_found = jax.lax.map(probe, starts)
    right = jax.lax.map(lambda start: _solved(rest, plan, start, transpose=True), starts)
    at = _begun_at(rest, plan, _solved(rest, plan, rest.right))
    mean = _solved(rest, plan, at.times(jnp.reciprocal), transpose=True)
    blocks = 2 * sum((jnp.sum(small.half_log_det(root)) for root in rest.roots), jnp.zeros(()))
    weights = np.concatenate([np.ones(len(exact)), np.full(len(random), 1 / len(random))])
    return Solution(
        mean,
        blocks + jnp.sum(logs[: len(exact)]) + logs[len(exact) :],
        left,
        right,
        weights,
        at.found & jnp.all(all_found),
    )


def parts_of_evidence(
    rest: Rest, plan: Elimination, random: Float[Array, "s m"]
) -> tuple[Float[Array, " s"], Float[Array, "c c"]]:
    """Return an estimate of log|S| from every sign, and B'S^-1 B; ``rest.right`` holds B'."""
    exact, others = _starts(rest, plan, random)

    def log_det(start: Array) -> Array:
        at = _begun_at(rest, plan, start)
        return jnp.where(at.found, at.quadratic(jnp.log), jnp.nan)

    def solved(start: Array) -> Array:
        at = _begun_at(rest, plan, start)
        return jnp.where(at.found, at.times(jnp.reciprocal), jnp.nan)

    logs = jax.lax.map(log_det, jnp.concatenate([exact, others]))
    blocks = 2 * sum((jnp.sum(small.half_log_det(root)) for root in rest.roots), jnp.zeros(()))
    log_dets = blocks + jnp.sum(logs[: len(exact)]) + logs[len(exact) :]
    scaled = jax.lax.map(lambda right: _solved(rest, plan, right), rest.right)
    return log_dets, jax.lax.map(solved, scaled) @ scaled.T


def draw(
    key: Key, rest: Rest, plan: Elimination, sign: float | Scalar = 1.0
) -> tuple[Float[Array, "r k"], ...]:
    """Return an exact draw of all whitened effects.

    ``sign``: what its deviation from the mean is multiplied by, 1 or -1.
    """
    keys = jax.random.split(key, len(plan.steps) + 1)
    at = _begun_at(rest, plan, _solved(rest, plan, rest.right))
    noise = _begun_at(rest, plan, flat_normal(keys[0], rest.right.shape))
    scaled = at.times(jnp.reciprocal) + sign * noise.times(jax.lax.rsqrt)
    effects = _solved(rest, plan, scaled, transpose=True)
    effects = jnp.where(at.found & noise.found, effects, jnp.nan)
    right = [
        each.forward + sign * flat_normal(k, each.forward.shape)
        for k, each in zip(keys[1:], rest.eliminated, strict=True)
    ]
    return schur.substituted(rest.eliminated, plan, right, schur.by_factor(effects, plan))
