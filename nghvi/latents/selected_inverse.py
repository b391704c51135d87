"""Several grouping factors: M^-1 where M has blocks, and with it the gradient of log p(y).

With the elimination of :mod:`nghvi.latents.schur`, M = [D C; C' E] for one factor and all later
ones, D = R R' and V = R^-1 C, the inverse P of M follows from that of what is left::

    P_kj = -R_k^-T sum_l V_kl P_lj,     P_kk = R_k^-T (I + sum_jl V_kj P_jl V_kl') R_k^-1

Only blocks of levels l and j that k meets are needed, and these are dense or meet as well. Hence

    d log p(y) = m'db - (P + m m') : dM / 2,     m = P b

costs one dense inverse and one more sum over pairs. Differentiating the elimination step by step
would cost three times as much, and would take up most of the time to compile.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from nghvi._linalg import small
from nghvi._typing import Scalar
from nghvi.data.elimination import Elimination, Step, pairs_of
from nghvi.latents import krylov, schur
from nghvi.latents.schur import Conditional, Eliminated, Reduced, System

Whitened = tuple[Float[Array, "r k"], ...]
"""Whitened effects, in the order of elimination."""


class Selected(NamedTuple):
    """Blocks of M^-1 where M has blocks: conditional covariances of whitened effects."""

    diagonal: tuple[Float[Array, "r r k"], ...]
    cells: tuple[tuple[Float[Array, "r s c"], ...], ...]
    rest_cells: tuple[Float[Array, "r s c"], ...]


class Solved(NamedTuple):
    """The solution of a system: exact, or estimated from probes if its rest is not dense."""

    log_evidence: Scalar
    """The number (b' M^-1 b - log|M|) / 2."""
    error: Scalar
    """Standard error of the log evidence; 0 if it is exact."""
    mean: Whitened
    covariance: Selected


def log_noise(square: Scalar, num_rows: float | Scalar, noise_var: Scalar) -> Scalar:
    """Return the part of log p(y | theta) that does not depend on effects."""
    return -0.5 * num_rows * jnp.log(2 * jnp.pi * noise_var) - 0.5 * square / noise_var


@jax.custom_jvp
def log_evidence(system: System, plan: Elimination, probes: Float[Array, "s m"]) -> Scalar:
    """Return (b' M^-1 b - log|M|) / 2."""
    return solved(system, plan, probes).log_evidence


@log_evidence.defjvp
def _log_evidence_jvp(primals: tuple, tangents: tuple) -> tuple[Scalar, Scalar]:
    system, plan, probes = primals
    found, moved = solved(system, plan, probes), tangents[0]
    slope = sum(
        (jnp.sum(m * d) for m, d in zip(found.mean, moved.right, strict=True)), jnp.zeros(())
    )
    slope -= 0.5 * quadratic(moved, plan, found.mean)
    inverse = found.covariance
    for block, change in zip(inverse.diagonal, moved.diagonal, strict=True):
        slope -= 0.5 * jnp.sum(block * change)
    pairs = zip(
        [*sum(inverse.cells, ()), *inverse.rest_cells],
        [*sum(moved.cells, ()), *moved.rest_cells],
        strict=True,
    )
    return found.log_evidence, slope - sum(jnp.sum(block * change) for block, change in pairs)


def parts_of_evidence(
    system: System,
    right: tuple[Float[Array, "c r k"], ...],
    plan: Elimination,
    probes: Float[Array, "s m"],
) -> tuple[Float[Array, " e"], Float[Array, "c c"]]:
    """Return log|M| and B'M^-1 B for many columns B, which take the place of the system's own.

    Of log|M| there is one estimate from every probe, or a single number if the rest is dense.
    """

    def reduced(right: Whitened) -> tuple[Reduced, tuple[tuple[Array, ...], Array]]:
        found = schur.reduce(system._replace(right=right), plan)
        return found, (tuple(each.forward for each in found.eliminated), found.right)

    alone = reduced(system.right)[0]  # only its parts that do not depend on the right side are used
    forwards, rights = jax.vmap(lambda each: reduced(each)[1])(right)
    log_det, number = jnp.zeros(()), len(right[0])
    total = jnp.zeros((number, number))
    for each, forward in zip(alone.eliminated, forwards, strict=True):
        total += forward.reshape(number, -1) @ forward.reshape(number, -1).T
        log_det += 2 * jnp.sum(small.half_log_det(each.root))
    if not plan.dense:
        rest = krylov.rest_of(system, alone._replace(right=rights), plan)
        estimates, own = krylov.parts_of_evidence(rest, plan, probes)
        return log_det + estimates, total + own
    if plan.num_rest:
        root = small.lapack_cholesky(alone.matrix[None])[0]
        forward = solve_triangular(root, rights.T, lower=True)
        total += forward.T @ forward
        log_det += 2 * jnp.sum(jnp.log(jnp.diagonal(root)))
    return log_det[None], total


def quadratic(system: System, plan: Elimination, effects: Whitened) -> Scalar:
    """Return u' M u."""
    total = jnp.zeros(())
    for block, u in zip(system.diagonal, effects, strict=True):
        total += jnp.einsum("ac,abc,bc->", u, block, u)
    for e, step in enumerate(plan.steps):
        parts = zip(system.cells[e], step.cells, effects[e + 1 :], strict=True)
        for block, where, later in parts:
            left, right = effects[e][:, where.first], later[:, where.second]
            total += 2 * jnp.einsum("ac,abc,bc->", left, block, right)
    pairs = zip(pairs_of(plan.rest), system.rest_cells, plan.rest_cells, strict=True)
    for (f, g), block, where in pairs:
        left, right = effects[f][:, where.first], effects[g][:, where.second]
        total += 2 * jnp.einsum("ac,abc,bc->", left, block, right)
    return total


def log_density(
    system: System, plan: Elimination, probes: Float[Array, "s m"], effects: Whitened
) -> Scalar:
    """Return log p(u | theta, y) of all whitened effects."""
    along = sum((jnp.sum(u * b) for u, b in zip(effects, system.right, strict=True)), jnp.zeros(()))
    constant = 0.5 * sum(plan.columns) * jnp.log(2 * jnp.pi)
    whole = along - 0.5 * quadratic(system, plan, effects)
    return whole - log_evidence(system, plan, probes) - constant


def solved(system: System, plan: Elimination, probes: Float[Array, "s m"]) -> Solved:
    """Return the mean, covariances and evidence of a system.

    ``probes``: random signs, which are used only if the rest is not dense.
    """
    reduced = schur.reduce(system, plan)
    total = jnp.zeros(())
    for each in reduced.eliminated:
        total += 0.5 * jnp.sum(each.forward**2) - jnp.sum(small.half_log_det(each.root))
    if plan.dense:
        conditional = schur.condition(reduced)
        total += 0.5 * jnp.sum(conditional.forward**2)
        total -= jnp.sum(jnp.log(jnp.diagonal(conditional.root)))
        inverse = selected_inverse(conditional, plan)
        return Solved(total, jnp.zeros(()), schur.mean(conditional, plan), inverse)
    rest = krylov.rest_of(system, reduced, plan)
    found = krylov.solve(rest, plan, probes)
    total += 0.5 * (rest.right @ found.mean - jnp.mean(found.log_dets))
    error = 0.5 * jnp.std(found.log_dets) / jnp.sqrt(max(len(found.log_dets) - 1, 1))
    mean = _full(rest, plan, found.mean, [each.forward for each in rest.eliminated])
    value = jnp.where(found.found, total, jnp.nan)
    return Solved(value, error, mean, _estimated(rest, plan, found))


def _full(rest: krylov.Rest, plan: Elimination, vector: Array, right: list[Array]) -> Whitened:
    """Return all effects, given those of the rest."""
    return schur.substituted(rest.eliminated, plan, right, schur.by_factor(vector, plan))


def _estimated(rest: krylov.Rest, plan: Elimination, found: krylov.Solution) -> Selected:
    """Return the inverse without the rest, plus a product of two vectors for each probe."""
    none = [jnp.zeros_like(each.forward) for each in rest.eliminated]
    begin = _back(rest.eliminated, plan, None)

    def add(total: Selected, probe: tuple[Array, Array, Array]) -> tuple[Selected, None]:
        weight, *ends = probe
        x, w = (_full(rest, plan, end, none) for end in ends)

        def both(f: int, g: int, first: Array | slice, second: Array | slice) -> Array:
            one = x[f][:, None, first] * w[g][None, :, second]
            other = w[f][:, None, first] * x[g][None, :, second]
            return 0.5 * weight * (one + other)

        everywhere = slice(None)
        diagonal = [
            block + both(f, f, everywhere, everywhere) for f, block in enumerate(total.diagonal)
        ]
        cells = [
            tuple(
                block + both(e, e + 1 + i, where.first, where.second)
                for i, (block, where) in enumerate(zip(blocks, step.cells, strict=True))
            )
            for e, (blocks, step) in enumerate(zip(total.cells, plan.steps, strict=True))
        ]
        among = [
            block + both(*pair, where.first, where.second)
            for pair, block, where in zip(
                pairs_of(plan.rest), total.rest_cells, plan.rest_cells, strict=True
            )
        ]
        return Selected(tuple(diagonal), tuple(cells), tuple(among)), None

    return jax.lax.scan(add, begin, (jnp.asarray(found.weights), found.left, found.right))[0]


def selected_inverse(conditional: Conditional, plan: Elimination) -> Selected:
    """Return the blocks of M^-1 for a system whose rest, if any, is dense."""
    rest = small.lapack_inverse(conditional.root[None])[0] if plan.num_rest else None
    return _back(conditional.eliminated, plan, rest)


def _back(
    eliminated: tuple[Eliminated, ...], plan: Elimination, rest: Float[Array, "m m"] | None
) -> Selected:
    """Return the blocks from the inverse of the rest; None takes that inverse for 0."""
    diagonal = [_own_blocks(rest, plan, f) for f in plan.rest]
    cells: list[tuple[Array, ...]] = []
    for e in reversed(range(len(plan.steps))):
        own, step = eliminated[e], plan.steps[e]
        through = _times_later(own, step, plan, e, diagonal, cells, rest)
        inner = jnp.zeros_like(own.root)
        for mine, other, where in zip(through, own.coupling, step.cells, strict=True):
            inner += schur.sums(
                jnp.einsum("asc,bsc->abc", mine, other), where.first, plan.levels[e]
            )
        half = small.inverse_lower(own.root)
        covered = jnp.einsum("aik,abk,bjk->ijk", half, inner, half)
        solved = tuple(
            -schur.solve_cells(own.root, mine, where, plan.levels[e + 1 + i], transpose=True)
            for i, (mine, where) in enumerate(zip(through, step.cells, strict=True))
        )
        diagonal, cells = [small.inverse(own.root) + covered, *diagonal], [solved, *cells]
    return Selected(tuple(diagonal), tuple(cells), _among_rest(rest, plan))


def _times_later(
    own: Eliminated,
    step: Step,
    plan: Elimination,
    e: int,
    diagonal: list[Array],
    cells: list[tuple[Array, ...]],
    rest: Array | None,
) -> list[Float[Array, "r s c"]]:
    """Return sum_l V_kl P_lj at the cells of factor e with every later one.

    ``diagonal`` and ``cells``: blocks of the inverse for the factors after e.
    """
    found = [jnp.zeros_like(block) for block in own.coupling]
    for i, updates in enumerate(step.among_later):
        mine = own.coupling[i]
        # Each level of this factor meets one level of a later factor that is also eliminated.
        among = diagonal[i][:, :, step.cells[i].second]
        found[i] += jnp.einsum("asc,stc->atc", mine, among)
        for j, update in enumerate(updates):
            if update is not None:
                other, between = own.coupling[i + j], cells[i][j - 1][:, :, update.target]
                left = jnp.einsum("atp,stp->asp", other[:, :, update.right], between)
                right = jnp.einsum("asp,stp->atp", mine[:, :, update.left], between)
                found[i] += schur.sums(left, update.left, mine.shape[-1])
                found[i + j] += schur.sums(right, update.right, other.shape[-1])
    if rest is not None:
        first = plan.first_rest - e - 1
        of_rest = _times_rest(own, step, plan, e, rest)
        found[first:] = [a + b for a, b in zip(found[first:], of_rest, strict=True)]
    return found


def _times_rest(
    own: Eliminated, step: Step, plan: Elimination, e: int, rest: Float[Array, "m m"]
) -> list[Float[Array, "r s c"]]:
    """Return the part of the sum that comes from the dense rest."""
    if step.among_rest is None:
        whole = schur.whole(plan, e, plan.first_rest, own) @ rest
        return [_at_cells(whole, plan, e, f) for f in plan.rest]
    update = step.among_rest
    values, _, column = schur.entries(plan, e, own)
    between = rest.ravel()[update.target]
    number = values.shape[1]
    # Each pair is listed once, so both ends contribute; an entry paired with itself counts once.
    summed = schur.sums(between * values[:, update.right], update.left, number)
    summed += schur.sums(between * values[:, update.left], update.right, number)
    summed -= jnp.diagonal(rest)[column] * values
    found, start = [], 0
    for f in plan.rest:
        block = own.coupling[f - e - 1]
        size = block.shape[1] * block.shape[2]
        found.append(summed[:, start : start + size].reshape(block.shape))
        start += size
    return found


def _at_cells(
    whole: Float[Array, "k r m"], plan: Elimination, e: int, f: int
) -> Float[Array, "r s c"]:
    """Return the columns of a product that belong to the cells with factor f."""
    k, r, _ = whole.shape
    offset, where = plan.offsets[f - plan.first_rest], plan.steps[e].cells[f - e - 1]
    columns = whole[:, :, offset : offset + plan.columns[f]]
    blocks = columns.reshape(k, r, plan.levels[f], plan.effects[f])
    if where.first.size == k * plan.levels[f]:  # all levels meet, and cells are sorted
        return jnp.transpose(blocks, (1, 3, 0, 2)).reshape(r, plan.effects[f], -1)
    return jnp.transpose(blocks[where.first, :, where.second], (1, 2, 0))


def _own_blocks(
    rest: Float[Array, "m m"] | None, plan: Elimination, f: int
) -> Float[Array, "r r k"]:
    """Return the block of each level with itself, for a factor of the rest."""
    level = jnp.arange(plan.levels[f])
    return _blocks(rest, plan, (f, f), (level, level))


def _among_rest(
    rest: Float[Array, "m m"] | None, plan: Elimination
) -> tuple[Float[Array, "r s c"], ...]:
    pairs = zip(pairs_of(plan.rest), plan.rest_cells, strict=True)
    return tuple(_blocks(rest, plan, pair, (where.first, where.second)) for pair, where in pairs)


def _blocks(
    rest: Float[Array, "m m"] | None,
    plan: Elimination,
    factors: tuple[int, int],
    levels: tuple[Array, Array],
) -> Float[Array, "r s c"]:
    offsets = [plan.offsets[f - plan.first_rest] for f in factors]
    r, s = (plan.effects[f] for f in factors)
    if rest is None:
        return jnp.zeros((r, s, levels[0].size))
    rows = offsets[0] + levels[0] * r + jnp.arange(r)[:, None, None]
    columns = offsets[1] + levels[1] * s + jnp.arange(s)[None, :, None]
    return rest[rows, columns]
