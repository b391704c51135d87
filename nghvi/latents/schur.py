"""Gaussian response, several grouping factors: effects integrate out block by block.

With whitened effects u_f = L_f' alpha_f of every factor, Omega_f^-1 = L_f L_f', noise variance v,
whitened designs Z_f and residuals e::

    u | y ~ N(M^-1 b, M^-1),     M = I + Z'Z / v,     b = Z'e / v
    log p(y) = -n/2 log(2 pi v) - e'e / (2 v) + (b' M^-1 b - log|M|) / 2

M has a block D_k = R_k R_k' for every level k of the factor that is eliminated, and C_kj where it
meets level j of a later one. With V_kj = R_k^-1 C_kj and w_k = R_k^-1 b_k the later factors have

    M_jl - sum_k V_kj' V_kl,     b_j - sum_k V_kj' w_k

which is eliminated in turn, in the order that :mod:`nghvi.data.elimination` has found, until a
dense rest is left or nothing. Backwards, u_k = R_k^-T (w_k - sum_j V_kj u_j + noise).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from nghvi._core.draws import flat_normal
from nghvi._linalg import lapack, small
from nghvi._typing import Key, Scalar
from nghvi.data.elimination import Cells, Elimination, Step, Update, pairs_of


class System(NamedTuple):
    """M and b, factors in the order of their elimination, levels last."""

    diagonal: tuple[Float[Array, "r r k"], ...]
    cells: tuple[tuple[Float[Array, "r s c"], ...], ...]
    """Of every eliminated factor with every later one."""
    rest_cells: tuple[Float[Array, "r s c"], ...]
    right: tuple[Float[Array, "r k"], ...]

    @staticmethod
    def whiten(
        gram: tuple[Float[Array, "r r k"], ...],
        cells: tuple[tuple[Float[Array, "r s c"], ...], ...],
        rest_cells: tuple[Float[Array, "r s c"], ...],
        cross: tuple[Float[Array, "r k"], ...],
        noise_var: Scalar,
        precision_factors: tuple[Float[Array, "r r"], ...],
        plan: Elimination,
    ) -> "System":
        """From sums over rows: Z'Z of levels and cells, and Z'e."""
        white = tuple(small.inverse_lower(lower) for lower in precision_factors)

        def product(block: Array, f: int, g: int) -> Array:
            return jnp.einsum("ia,abc,jb->ijc", white[f], block, white[g]) / noise_var

        places = range(len(white))
        return System(
            tuple(
                product(block, f, f) + jnp.eye(len(block))[:, :, None]
                for f, block in zip(places, gram, strict=True)
            ),
            tuple(
                tuple(product(block, e, e + 1 + i) for i, block in enumerate(blocks))
                for e, blocks in enumerate(cells)
            ),
            tuple(
                product(block, *pair)
                for block, pair in zip(rest_cells, pairs_of(plan.rest), strict=True)
            ),
            tuple(w @ c / noise_var for w, c in zip(white, cross, strict=True)),
        )


class Eliminated(NamedTuple):
    """u_k | later u, y ~ N(R_k^-T (forward_k - sum_j V_kj u_j), (R_k R_k')^-1)."""

    root: Float[Array, "r r k"]
    forward: Float[Array, "r k"]
    coupling: tuple[Float[Array, "r s c"], ...]
    """V of the cells with every later factor."""


class Reduced(NamedTuple):
    """A system whose free factors are eliminated; the rest, if there is one, is dense."""

    eliminated: tuple[Eliminated, ...]
    matrix: Float[Array, "m m"]
    right: Float[Array, " m"]


class Conditional(NamedTuple):
    """The conditional distribution of all whitened effects."""

    eliminated: tuple[Eliminated, ...]
    root: Float[Array, "m m"]
    forward: Float[Array, " m"]


def log_marginal(
    reduced: Reduced, square: Scalar, num_rows: float | Scalar, noise_var: Scalar
) -> Scalar:
    """log p(y | theta) with all effects integrated out."""
    total = -0.5 * num_rows * jnp.log(2 * jnp.pi * noise_var) - 0.5 * square / noise_var
    for each in reduced.eliminated:
        total += 0.5 * jnp.sum(each.forward**2) - jnp.sum(small.half_log_det(each.root))
    if not reduced.right.size:
        return total
    return total + _log_evidence(reduced.matrix, reduced.right)


@jax.custom_jvp
def _log_evidence(matrix: Float[Array, "m m"], right: Float[Array, " m"]) -> Scalar:
    """As :func:`nghvi._linalg.small.log_evidence` of one large matrix."""
    root, forward = _factorise(matrix, right)
    return 0.5 * jnp.sum(forward**2) - jnp.sum(jnp.log(jnp.diagonal(root)))


@_log_evidence.defjvp
def _log_evidence_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    root, forward = _factorise(*primals)
    covariance = lapack.inverse(root[None])[0]
    mean = covariance @ primals[1]
    value = 0.5 * jnp.sum(forward**2) - jnp.sum(jnp.log(jnp.diagonal(root)))
    moment = mean[:, None] * mean + covariance
    return value, jnp.sum(mean * tangents[1]) - 0.5 * jnp.sum(moment * tangents[0])


def _factorise(
    matrix: Float[Array, "m m"], right: Float[Array, " m"]
) -> tuple[Float[Array, "m m"], Float[Array, " m"]]:
    """R with M = R R', and R^-1 b, by one factorisation of M with b below it.

    No part of I + Z'Z / v that is left by an elimination has an eigenvalue below 1, so the corner
    exceeds b'M^-1 b.
    """
    corner = 1 + right @ right
    bordered = jnp.block([[matrix, right[:, None]], [right[None], corner[None, None]]])
    lower = lapack.cholesky(bordered[None])[0]
    return lower[:-1, :-1], lower[-1, :-1]


def reduce(system: System, plan: Elimination) -> Reduced:
    """Eliminate the factors that can be, one after the other."""
    diagonal, right = list(system.diagonal), list(system.right)
    cells = [list(blocks) for blocks in system.cells]
    dense = _dense(system, plan)
    rest_right = _flat([right[f] for f in plan.rest])
    done = []
    for e, step in enumerate(plan.steps):
        root = small.cholesky(diagonal[e])
        forward = small.solve_lower(root, right[e])
        coupling = tuple(
            _solve_cells(root, block, where, plan.levels[e + 1 + i])
            for i, (block, where) in enumerate(zip(cells[e], step.cells, strict=True))
        )
        done.append(Eliminated(root, forward, coupling))
        for i, updates in enumerate(step.among_later):  # later factors that are eliminated too
            f, where = e + 1 + i, step.cells[i]
            mine = coupling[i]
            levels = plan.levels[f]
            own = jnp.einsum("aic,ajc->ijc", mine, mine)
            diagonal[f] -= _sums(own, where.second, levels)
            right[f] -= _sums(_times(mine, forward, where.first), where.second, levels)
            for j, update in enumerate(updates):
                if update is not None:
                    # Entry 0 of cells is with the factor right after their own.
                    cells[f][j - 1] -= _products(mine, coupling[i + j], update, cells[f][j - 1])
        if plan.num_rest:
            dense, rest_right = _reduce_rest(plan, step, e, done[-1], dense, rest_right)
    return Reduced(tuple(done), dense, rest_right)


def _reduce_rest(
    plan: Elimination, step: Step, e: int, own: Eliminated, dense: Array, right: Array
) -> tuple[Float[Array, "m m"], Float[Array, " m"]]:
    if step.among_rest is None:
        whole = _whole(plan, e, plan.first_rest, own).reshape(-1, plan.num_rest)
        return dense - whole.T @ whole, right - whole.T @ own.forward.T.ravel()
    values, level, column = _entries(plan, e, own)
    m, update = plan.num_rest, step.among_rest
    taken = jax.ops.segment_sum(jnp.sum(values * own.forward[:, level], axis=0), column, m)
    pairs = jnp.sum(values[:, update.left] * values[:, update.right], axis=0)
    summed = jax.ops.segment_sum(pairs, update.target, m * m, indices_are_sorted=True)
    lower = summed.reshape(m, m)
    return dense - lower - jnp.tril(lower, -1).T, right - taken


def _entries(
    plan: Elimination, e: int, own: Eliminated
) -> tuple[Float[Array, "r n"], Array, Array]:
    """V of factor e and the rest, each number with its level and its column.

    In the order of :func:`nghvi.data.elimination.entries`.
    """
    values, level, column = [], [], []
    for f, offset in zip(plan.rest, plan.offsets, strict=True):
        block, where, r = own.coupling[f - e - 1], plan.steps[e].cells[f - e - 1], plan.effects[f]
        values.append(block.reshape(len(block), -1))
        level.append(jnp.tile(where.first, r))
        column += [offset + where.second * r + effect for effect in range(r)]
    return jnp.concatenate(values, axis=1), jnp.concatenate(level), jnp.concatenate(column)


def _whole(plan: Elimination, e: int, first: int, own: Eliminated) -> Float[Array, "k r m"]:
    """V of factor e and all factors from ``first`` on, with zeros where levels do not meet."""
    k, found = plan.levels[e], [jnp.zeros((plan.levels[e], plan.effects[e], 0))]
    for f in range(first, len(plan.order)):
        block, where = own.coupling[f - e - 1], plan.steps[e].cells[f - e - 1]
        r, s, c = block.shape
        if c == k * plan.levels[f]:  # all levels meet, and cells are sorted
            blocks = block.reshape(r, s, k, plan.levels[f])
        else:
            blocks = jnp.zeros((r, s, k, plan.levels[f]))
            blocks = blocks.at[:, :, where.first, where.second].set(block, unique_indices=True)
        found.append(jnp.transpose(blocks, (2, 0, 3, 1)).reshape(k, r, plan.columns[f]))
    return jnp.concatenate(found, axis=2)


def _dense(system: System, plan: Elimination) -> Float[Array, "m m"]:
    """The part of M that is about the rest."""
    matrix = jnp.zeros((plan.num_rest, plan.num_rest))
    for f, offset in zip(plan.rest, plan.offsets, strict=True):
        level = jnp.arange(plan.levels[f])
        matrix = _placed(matrix, system.diagonal[f], (offset, level), (offset, level))
    starts = dict(zip(plan.rest, plan.offsets, strict=True))
    pairs = zip(pairs_of(plan.rest), system.rest_cells, plan.rest_cells, strict=True)
    for (f, g), block, where in pairs:
        places = (starts[f], where.first), (starts[g], where.second)
        matrix = _placed(matrix, block, *places)
        matrix = _placed(matrix, jnp.swapaxes(block, 0, 1), *places[::-1])
    return matrix


def _placed(
    matrix: Array, blocks: Float[Array, "r s c"], row: tuple[int, Array], column: tuple[int, Array]
) -> Array:
    r, s, _ = blocks.shape
    rows = row[0] + row[1] * r + jnp.arange(r)[:, None, None]
    columns = column[0] + column[1] * s + jnp.arange(s)[None, :, None]
    return matrix.at[rows, columns].set(blocks, unique_indices=True)


def _solve_cells(
    root: Float[Array, "r r k"], blocks: Float[Array, "r s c"], where: Cells, num_later: int
) -> Float[Array, "r s c"]:
    """R_k^-1 C_kj; ``num_later``: levels of the later factor."""
    r, s, c = blocks.shape
    k = root.shape[-1]
    if r > small.UNROLL:  # one inverse per level, not one per cell
        half = small.inverse_lower(root)
        if c == k * num_later:  # all levels meet: cells are sorted, and nothing has to be gathered
            solved = jnp.einsum("abk,bskj->askj", half, blocks.reshape(r, s, k, num_later))
            return solved.reshape(r, s, c)
        return jnp.einsum("abc,bsc->asc", half[:, :, where.first], blocks)
    roots = root[:, :, where.first]
    return jnp.stack([small.solve_lower(roots, column) for column in jnp.moveaxis(blocks, 1, 0)], 1)


def _times(
    blocks: Float[Array, "r s c"], vector: Float[Array, "r k"], level: Array
) -> Float[Array, "s c"]:
    """V' w of every cell."""
    return jnp.einsum("asc,ac->sc", blocks, vector[:, level])


def _sums(values: Float[Array, "*r c"], level: Array, number: int) -> Float[Array, "*r k"]:
    """Sums over the cells of every level."""
    return jnp.moveaxis(jax.ops.segment_sum(jnp.moveaxis(values, -1, 0), level, number), 0, -1)


def _products(left: Array, right: Array, update: Update, like: Array) -> Array:
    products = jnp.einsum("aic,ajc->ijc", left[..., update.left], right[..., update.right])
    return _sums(products, update.target, like.shape[-1])


def _flat(vectors: list[Float[Array, "r k"]]) -> Float[Array, " m"]:
    """Level by level, the effects of a level together."""
    return jnp.concatenate([vector.T.ravel() for vector in vectors] or [jnp.zeros(0)])


def _by_factor(flat: Float[Array, " m"], plan: Elimination) -> list[Float[Array, "r k"]]:
    """The inverse of :func:`_flat` for the rest."""
    return [
        flat[offset : offset + plan.columns[f]].reshape(-1, plan.effects[f]).T
        for f, offset in zip(plan.rest, plan.offsets, strict=True)
    ]


def condition(reduced: Reduced) -> Conditional:
    """The conditional distribution of all effects."""
    return Conditional(reduced.eliminated, *_factorise(reduced.matrix, reduced.right))


def backwards(
    conditional: Conditional, plan: Elimination, noise: list[Float[Array, "r k"]], rest: Array
) -> tuple[Float[Array, "r k"], ...]:
    """Effects from standard normals, in the order of elimination."""
    found: list[Array] = []
    if plan.num_rest:
        right = conditional.forward + rest
        solved = solve_triangular(conditional.root, right, trans=1, lower=True)
        found = _by_factor(solved, plan)
    for e in reversed(range(len(plan.steps))):
        own = conditional.eliminated[e]
        right = own.forward + noise[e] - coupled(own, plan.steps[e], found)
        found = [small.solve_lower(own.root, right, transpose=True), *found]
    return tuple(found)


def coupled(own: Eliminated, step: Step, later: list[Array]) -> Float[Array, "r k"]:
    """sum_j V_kj u_j of every level."""
    total = jnp.zeros_like(own.forward)
    for block, where, effects in zip(own.coupling, step.cells, later, strict=True):
        products = jnp.einsum("asc,sc->ac", block, effects[:, where.second])
        total += _sums(products, where.first, total.shape[-1])
    return total


def mean(conditional: Conditional, plan: Elimination) -> tuple[Float[Array, "r k"], ...]:
    """Conditional means of the whitened effects."""
    noise = [jnp.zeros_like(each.forward) for each in conditional.eliminated]
    return backwards(conditional, plan, noise, jnp.zeros_like(conditional.forward))


def sample(
    key: Key, conditional: Conditional, plan: Elimination, sign: float | Scalar = 1.0
) -> tuple[Float[Array, "r k"], ...]:
    """An exact draw of all whitened effects; ``sign``: of its deviation from the mean."""
    keys = jax.random.split(key, len(plan.steps) + 1)
    noise = [
        sign * flat_normal(k, each.forward.shape)
        for k, each in zip(keys[1:], conditional.eliminated, strict=True)
    ]
    rest = sign * flat_normal(keys[0], conditional.forward.shape)
    return backwards(conditional, plan, noise, rest)


def log_density(
    conditional: Conditional, plan: Elimination, effects: tuple[Float[Array, "r k"], ...]
) -> Scalar:
    """log p(u | theta, y) of all whitened effects."""
    noise, log_det = [], jnp.zeros(())
    for e, own in enumerate(conditional.eliminated):
        others = coupled(own, plan.steps[e], list(effects[e + 1 :]))
        noise.append(jnp.einsum("jik,jk->ik", own.root, effects[e]) + others - own.forward)
        log_det += jnp.sum(small.half_log_det(own.root))
    rest = _flat(list(effects[plan.first_rest :]))
    if plan.num_rest:
        noise.append(conditional.root.T @ rest - conditional.forward)
        log_det += jnp.sum(jnp.log(jnp.diagonal(conditional.root)))
    size = sum(each.size for each in noise)
    squares = sum(jnp.sum(each**2) for each in noise)
    return log_det - 0.5 * squares - 0.5 * size * jnp.log(2 * jnp.pi)


def level_covariances(system: System, plan: Elimination) -> tuple[Float[Array, "r r k"], ...]:
    """Conditional covariance of every level's whitened effects.

    Minus two times the derivative of ``-log|M| / 2`` by M's diagonal blocks: no more than those
    blocks of the inverse, and what belongs to cells, is ever computed.
    """

    def evidence(diagonal: tuple[Array, ...]) -> Scalar:
        right = tuple(map(jnp.zeros_like, system.right))
        reduced = reduce(system._replace(diagonal=diagonal, right=right), plan)
        return log_marginal(reduced, jnp.zeros(()), 0.0, jnp.ones(()))

    # A factorisation reads one triangle, so that the derivative may be found in either.
    return tuple(-(d + jnp.swapaxes(d, 0, 1)) for d in jax.grad(evidence)(system.diagonal))


class Covariance(NamedTuple):
    """Conditional covariances of the whitened effects, those of one level one after the other.

    All of those of later factors, and of the first one's levels each with itself and with the
    later ones: two levels of one factor are never in one row, and the first has the most.
    """

    own: Float[Array, "k r r"]
    cross: Float[Array, "k r m"]
    others: Float[Array, "m m"]


def covariance(conditional: Conditional, plan: Elimination) -> Covariance:
    """All that rows need, whichever levels they combine: ``first x other`` columns of numbers."""
    others = jnp.zeros((0, 0))
    if plan.num_rest:
        others = lapack.inverse(conditional.root[None])[0]
    for e in reversed(range(1, len(plan.steps))):
        inverse, down = _through(conditional, plan, e)
        rows = -down @ others
        among = _block_diagonal(inverse) - down @ rows.T
        others = jnp.block([[among, rows], [rows.T, others]])
    inverse, down = _through(conditional, plan, 0)
    shape = (plan.levels[0], plan.effects[0], len(others))
    cross = (-down @ others).reshape(shape)
    own = jnp.moveaxis(inverse, -1, 0) - jnp.einsum("kim,kjm->kij", down.reshape(shape), cross)
    return Covariance(own, cross, others)


def _through(
    conditional: Conditional, plan: Elimination, e: int
) -> tuple[Float[Array, "r r k"], Float[Array, "kr m"]]:
    """D_k^-1 and R_k^-T V_k of all levels: how later effects move those of factor e."""
    own = conditional.eliminated[e]
    whole = _whole(plan, e, e + 1, own)
    half = small.inverse_lower(own.root)
    down = jnp.einsum("aik,kam->kim", half, whole)
    return small.inverse(own.root), down.reshape(plan.columns[e], -1 if whole.size else 0)


def _block_diagonal(blocks: Float[Array, "r r k"]) -> Float[Array, "kr kr"]:
    r, _, k = blocks.shape
    level = jnp.arange(k)
    return _placed(jnp.zeros((k * r, k * r)), blocks, (0, level), (0, level))
