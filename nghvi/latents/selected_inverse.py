"""Several grouping factors: M^-1 where M has blocks, and with it the gradient of log p(y).

With the elimination of :mod:`nghvi.latents.schur`, M = [D C; C' E] of one factor and all later
ones, D = R R' and V = R^-1 C, the inverse P of M follows from that of what was left::

    P_kj = -R_k^-T sum_l V_kl P_lj,     P_kk = R_k^-T (I + sum_jl V_kj P_jl V_kl') R_k^-1

Only levels l and j that k meets are asked for, and these are either dense or meet, too. Hence

    d log p(y) = m'db - (P + m m') : dM / 2,     m = P b

costs one dense inverse and one more sum over pairs. Differentiating the elimination step by step
would cost three times as much, and is most of what there would be to compile.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nghvi._linalg import small
from nghvi._typing import Scalar
from nghvi.data.elimination import Elimination, Step, pairs_of
from nghvi.latents import krylov, schur
from nghvi.latents.schur import Conditional, Eliminated, System

Whitened = tuple[Float[Array, "r k"], ...]
"""Whitened effects, in the order of elimination."""


class Selected(NamedTuple):
    """Blocks of M^-1 at the places of M's own: conditional covariances of whitened effects."""

    diagonal: tuple[Float[Array, "r r k"], ...]
    cells: tuple[tuple[Float[Array, "r s c"], ...], ...]
    rest_cells: tuple[Float[Array, "r s c"], ...]


class Solved(NamedTuple):
    """What is known of a system: exactly, or where its rest is not dense from probes."""

    log_evidence: Scalar
    """(b' M^-1 b - log|M|) / 2."""
    error: Scalar
    """Its standard error."""
    mean: Whitened
    covariance: Selected


def log_noise(square: Scalar, num_rows: float | Scalar, noise_var: Scalar) -> Scalar:
    """The part of log p(y | theta) that no effect touches."""
    return -0.5 * num_rows * jnp.log(2 * jnp.pi * noise_var) - 0.5 * square / noise_var


@jax.custom_jvp
def log_evidence(system: System, plan: Elimination, probes: Float[Array, "s m"]) -> Scalar:
    """(b' M^-1 b - log|M|) / 2."""
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


def quadratic(system: System, plan: Elimination, effects: Whitened) -> Scalar:
    """u' M u."""
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
    """log p(u | theta, y) of all whitened effects."""
    along = sum((jnp.sum(u * b) for u, b in zip(effects, system.right, strict=True)), jnp.zeros(()))
    constant = 0.5 * sum(plan.columns) * jnp.log(2 * jnp.pi)
    whole = along - 0.5 * quadratic(system, plan, effects)
    return whole - log_evidence(system, plan, probes) - constant


def solved(system: System, plan: Elimination, probes: Float[Array, "s m"]) -> Solved:
    """Mean, covariances and evidence; ``probes``: random signs, read where a rest is not dense."""
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
    """All effects, from those of the rest."""
    return schur.substituted(rest.eliminated, plan, right, schur.by_factor(vector, plan))


def _estimated(rest: krylov.Rest, plan: Elimination, found: krylov.Solution) -> Selected:
    """Without the rest, and what probes say of it: each a product of two vectors of all effects."""
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
    """Of a system whose rest is dense, if there is one."""
    rest = small.lapack_inverse(conditional.root[None])[0] if plan.num_rest else None
    return _back(conditional.eliminated, plan, rest)


def _back(
    eliminated: tuple[Eliminated, ...], plan: Elimination, rest: Float[Array, "m m"] | None
) -> Selected:
    """From the inverse of the rest back to the factor that was eliminated first; None is 0."""
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
    """sum_l V_kl P_lj at the cells of factor e with every later one.

    ``diagonal`` and ``cells``: the inverse's, of the factors after e.
    """
    found = [jnp.zeros_like(block) for block in own.coupling]
    for i, updates in enumerate(step.among_later):
        mine = own.coupling[i]
        # One level of a factor that is eliminated, too, meets each level of this one.
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
    """The part of the dense rest."""
    if step.among_rest is None:
        whole = schur.whole(plan, e, plan.first_rest, own) @ rest
        return [_at_cells(whole, plan, e, f) for f in plan.rest]
    update = step.among_rest
    values, _, column = schur.entries(plan, e, own)
    between = rest.ravel()[update.target]
    number = values.shape[1]
    # Pairs are stated once, so that both ends take part; a pair of one entry is taken off again.
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
    """Of a product with all columns, those of the cells with factor f."""
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
    """Of every level of a factor of the rest with itself."""
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
