"""Gaussian response, several grouping factors: effects integrate out block by block.

With whitened effects u_f = L_f' alpha_f of every factor, Omega_f^-1 = L_f L_f', noise variance v,
whitened designs Z_f and residuals e::

    u | y ~ N(M^-1 b, M^-1),     M = I + Z'Z / v,     b = Z'e / v
    log p(y) = -n/2 log(2 pi v) - e'e / (2 v) + (b' M^-1 b - log|M|) / 2

M has a block D_k = R_k R_k' for every level k of the factor that is eliminated, and C_kj where it
meets level j of a later one. With V_kj = R_k^-1 C_kj and w_k = R_k^-1 b_k the later factors have

    M_jl - sum_k V_kj' V_kl,     b_j - sum_k V_kj' w_k

which are eliminated in turn, in the order found by :mod:`nghvi.data.elimination`, until a dense
rest or nothing is left. Backwards, u_k = R_k^-T (w_k - sum_j V_kj u_j + noise).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from nghvi._core.draws import flat_normal
from nghvi._linalg import small
from nghvi._typing import Key, Scalar
from nghvi.data.elimination import Cells, Elimination, Step, Update, pairs_of


class System(NamedTuple):
    """The matrix M and the vector b; factors in the order of their elimination, levels last."""

    diagonal: tuple[Float[Array, "r r k"], ...]
    cells: tuple[tuple[Float[Array, "r s c"], ...], ...]
    """Blocks of every eliminated factor with every later one."""
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
        """Return the system for whitened effects, from sums over rows.

        ``gram``, ``cells``, ``rest_cells``: Z'Z of levels and cells; ``cross``: Z'e.
        """
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
    """The distribution u_k | later u, y ~ N(R_k^-T (forward_k - sum_j V_kj u_j), (R_k R_k')^-1)."""

    root: Float[Array, "r r k"]
    forward: Float[Array, "r k"]
    coupling: tuple[Float[Array, "r s c"], ...]
    """The blocks of V at the cells with every later factor."""


class Reduced(NamedTuple):
    """A system after the elimination of all factors but the rest, if there is one."""

    eliminated: tuple[Eliminated, ...]
    matrix: Float[Array, "m m"]
    """Lower triangle of the rest, whose upper triangle is never read; empty if it is too large."""
    right: Float[Array, " m"]


class Conditional(NamedTuple):
    """The conditional distribution of all whitened effects."""

    eliminated: tuple[Eliminated, ...]
    root: Float[Array, "m m"]
    forward: Float[Array, " m"]


def _factorise(
    matrix: Float[Array, "m m"], right: Float[Array, " m"]
) -> tuple[Float[Array, "m m"], Float[Array, " m"]]:
    """Return R with M = R R', and R^-1 b, by one factorisation of M bordered by b.

    What an elimination leaves of I + Z'Z / v has no eigenvalue below 1, so the corner exceeds
    b'M^-1 b.
    """
    corner = 1 + right @ right
    beside = jnp.zeros_like(right)
    bordered = jnp.block([[matrix, beside[:, None]], [right[None], corner[None, None]]])
    lower = small.lapack_cholesky(bordered[None])[0]
    return lower[:-1, :-1], lower[-1, :-1]


def reduce(system: System, plan: Elimination) -> Reduced:
    """Eliminate all factors but the rest, one after another."""
    diagonal, right = list(system.diagonal), list(system.right)
    cells = [list(blocks) for blocks in system.cells]
    dense = _dense(system, plan) if plan.dense else jnp.zeros((0, 0))
    rest_right = flat([right[f] for f in plan.rest])
    done = []
    for e, step in enumerate(plan.steps):
        root = small.cholesky(diagonal[e])
        forward = small.solve_lower(root, right[e])
        coupling = tuple(
            solve_cells(root, block, where, plan.levels[e + 1 + i])
            for i, (block, where) in enumerate(zip(cells[e], step.cells, strict=True))
        )
        done.append(Eliminated(root, forward, coupling))
        for i, updates in enumerate(step.among_later):  # later factors that are also eliminated
            f, where = e + 1 + i, step.cells[i]
            mine = coupling[i]
            levels = plan.levels[f]
            own = jnp.einsum("aic,ajc->ijc", mine, mine)
            diagonal[f] -= sums(own, where.second, levels)
            right[f] -= sums(times(mine, forward, where.first), where.second, levels)
            for j, update in enumerate(updates):
                if update is not None:
                    # Entry 0 of cells is with the factor right after their own.
                    cells[f][j - 1] -= _products(mine, coupling[i + j], update, cells[f][j - 1])
        if plan.num_rest and plan.dense:
            dense, rest_right = _reduce_rest(plan, step, e, done[-1], dense, rest_right)
        elif plan.num_rest:
            rest_right -= flat(onto_rest(plan, e, done[-1], forward))
    return Reduced(tuple(done), dense, rest_right)


def _reduce_rest(
    plan: Elimination, step: Step, e: int, own: Eliminated, dense: Array, right: Array
) -> tuple[Float[Array, "m m"], Float[Array, " m"]]:
    if step.among_rest is None:
        rows = whole(plan, e, plan.first_rest, own).reshape(-1, plan.num_rest)
        return dense - rows.T @ rows, right - rows.T @ own.forward.T.ravel()
    values, level, column = entries(plan, e, own)
    m, update = plan.num_rest, step.among_rest
    taken = jax.ops.segment_sum(jnp.sum(values * own.forward[:, level], axis=0), column, m)
    pairs = jnp.sum(values[:, update.left] * values[:, update.right], axis=0)
    summed = jax.ops.segment_sum(pairs, update.target, m * m, indices_are_sorted=True)
    return dense - summed.reshape(m, m), right - taken


def onto_rest(
    plan: Elimination, e: int, own: Eliminated, vector: Float[Array, "r k"]
) -> list[Float[Array, "r k"]]:
    """Return V' w of factor e, separately for each factor of the rest."""
    found = []
    for f in plan.rest:
        block, where = own.coupling[f - e - 1], plan.steps[e].cells[f - e - 1]
        found.append(sums(times(block, vector, where.first), where.second, plan.levels[f]))
    return found


def entries(plan: Elimination, e: int, own: Eliminated) -> tuple[Float[Array, "r n"], Array, Array]:
    """Return V of factor e and the rest, each number with its level and its column.

    The order is that of :func:`nghvi.data.elimination.entries`.
    """
    values, level, column = [], [], []
    for f, offset in zip(plan.rest, plan.offsets, strict=True):
        block, where, r = own.coupling[f - e - 1], plan.steps[e].cells[f - e - 1], plan.effects[f]
        values.append(block.reshape(len(block), -1))
        level.append(jnp.tile(where.first, r))
        column += [offset + where.second * r + effect for effect in range(r)]
    return jnp.concatenate(values, axis=1), jnp.concatenate(level), jnp.concatenate(column)


def whole(plan: Elimination, e: int, first: int, own: Eliminated) -> Float[Array, "k r m"]:
    """Return V of factor e and all factors from ``first`` on, zero where levels do not meet."""
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
    """Return the lower triangle of the rest's part of M."""
    matrix = jnp.zeros((plan.num_rest, plan.num_rest))
    for f, offset in zip(plan.rest, plan.offsets, strict=True):
        level = jnp.arange(plan.levels[f])
        matrix = _placed(matrix, system.diagonal[f], (offset, level), (offset, level))
    starts = dict(zip(plan.rest, plan.offsets, strict=True))
    pairs = zip(pairs_of(plan.rest), system.rest_cells, plan.rest_cells, strict=True)
    for (f, g), block, where in pairs:
        places = (starts[g], where.second), (starts[f], where.first)
        matrix = _placed(matrix, jnp.swapaxes(block, 0, 1), *places)
    return matrix


def _placed(
    matrix: Array, blocks: Float[Array, "r s c"], row: tuple[int, Array], column: tuple[int, Array]
) -> Array:
    r, s, _ = blocks.shape
    rows = row[0] + row[1] * r + jnp.arange(r)[:, None, None]
    columns = column[0] + column[1] * s + jnp.arange(s)[None, :, None]
    return matrix.at[rows, columns].set(blocks, unique_indices=True)


def solve_cells(
    root: Float[Array, "r r k"],
    blocks: Float[Array, "r s c"],
    where: Cells,
    num_later: int,
    *,
    transpose: bool = False,
) -> Float[Array, "r s c"]:
    """Return R_k^-1 C_kj, or R_k'^-1 C_kj; ``num_later``: number of levels of the later factor."""
    r, s, c = blocks.shape
    k = root.shape[-1]
    if r > small.UNROLL:  # one inverse per level, not one per cell
        half = small.inverse_lower(root)
        half = jnp.swapaxes(half, 0, 1) if transpose else half
        if c == k * num_later:  # all levels meet and cells are sorted: nothing to gather
            solved = jnp.einsum("abk,bskj->askj", half, blocks.reshape(r, s, k, num_later))
            return solved.reshape(r, s, c)
        return jnp.einsum("abc,bsc->asc", half[:, :, where.first], blocks)
    roots, columns = root[:, :, where.first], jnp.moveaxis(blocks, 1, 0)
    return jnp.stack([small.solve_lower(roots, x, transpose=transpose) for x in columns], 1)


def times(
    blocks: Float[Array, "r s c"], vector: Float[Array, "r k"], level: Array
) -> Float[Array, "s c"]:
    """Return V' w of every cell."""
    return jnp.einsum("asc,ac->sc", blocks, vector[:, level])


def sums(values: Float[Array, "*r c"], level: Array, number: int) -> Float[Array, "*r k"]:
    """Return the sums over the cells of every level."""
    return jnp.moveaxis(jax.ops.segment_sum(jnp.moveaxis(values, -1, 0), level, number), 0, -1)


def _products(left: Array, right: Array, update: Update, like: Array) -> Array:
    products = jnp.einsum("aic,ajc->ijc", left[..., update.left], right[..., update.right])
    return sums(products, update.target, like.shape[-1])


def flat(vectors: list[Float[Array, "r k"]]) -> Float[Array, " m"]:
    """Return one vector, level by level, with the effects of a level together."""
    return jnp.concatenate([vector.T.ravel() for vector in vectors] or [jnp.zeros(0)])


def by_factor(vector: Float[Array, " m"], plan: Elimination) -> list[Float[Array, "r k"]]:
    """Return the effects of each factor of the rest: the inverse of :func:`flat`."""
    return [
        vector[offset : offset + plan.columns[f]].reshape(-1, plan.effects[f]).T
        for f, offset in zip(plan.rest, plan.offsets, strict=True)
    ]


def condition(reduced: Reduced) -> Conditional:
    """Return the conditional distribution of all effects."""
    return Conditional(reduced.eliminated, *_factorise(reduced.matrix, reduced.right))


def backwards(
    conditional: Conditional, plan: Elimination, noise: list[Float[Array, "r k"]], rest: Array
) -> tuple[Float[Array, "r k"], ...]:
    """Return the effects that standard normals give, in the order of elimination."""
    found: list[Array] = []
    if plan.num_rest:
        right = conditional.forward + rest
        solved = solve_triangular(conditional.root, right, trans=1, lower=True)
        found = by_factor(solved, plan)
    eliminated = conditional.eliminated
    moved = [own.forward + e for own, e in zip(eliminated, noise, strict=True)]
    return substituted(eliminated, plan, moved, found)


def substituted(
    eliminated: tuple[Eliminated, ...],
    plan: Elimination,
    right: list[Float[Array, "r k"]],
    rest: list[Float[Array, "r k"]],
) -> tuple[Float[Array, "r k"], ...]:
    """Return R_k^-T (right_k - sum_j V_kj u_j) for all factors, given the effects of the rest."""
    found = list(rest)
    for e in reversed(range(len(plan.steps))):
        own = eliminated[e]
        moved = right[e] - coupled(own, plan.steps[e], found)
        found = [small.solve_lower(own.root, moved, transpose=True), *found]
    return tuple(found)


def coupled(own: Eliminated, step: Step, later: list[Array]) -> Float[Array, "r k"]:
    """Return sum_j V_kj u_j of every level."""
    total = jnp.zeros_like(own.forward)
    for block, where, effects in zip(own.coupling, step.cells, later, strict=True):
        products = jnp.einsum("asc,sc->ac", block, effects[:, where.second])
        total += sums(products, where.first, total.shape[-1])
    return total


def mean(conditional: Conditional, plan: Elimination) -> tuple[Float[Array, "r k"], ...]:
    """Return the conditional means of the whitened effects."""
    noise = [jnp.zeros_like(each.forward) for each in conditional.eliminated]
    return backwards(conditional, plan, noise, jnp.zeros_like(conditional.forward))


def sample(
    key: Key, conditional: Conditional, plan: Elimination, sign: float | Scalar = 1.0
) -> tuple[Float[Array, "r k"], ...]:
    """Return an exact draw of all whitened effects.

    ``sign``: what its deviation from the mean is multiplied by, 1 or -1.
    """
    keys = jax.random.split(key, len(plan.steps) + 1)
    noise = [
        sign * flat_normal(k, each.forward.shape)
        for k, each in zip(keys[1:], conditional.eliminated, strict=True)
    ]
    rest = sign * flat_normal(keys[0], conditional.forward.shape)
    return backwards(conditional, plan, noise, rest)


class Covariance(NamedTuple):
    """Conditional covariances of the whitened effects, with the effects of a level together.

    It holds all covariances among later factors (``others``), and those of each level of the first
    factor with itself (``own``) and with later ones (``cross``). Those between two levels of the
    first factor, which has the most, are not needed: a row has only one level of a factor.
    """

    own: Float[Array, "k r r"]
    cross: Float[Array, "k r m"]
    others: Float[Array, "m m"]


def covariance(conditional: Conditional, plan: Elimination) -> Covariance:
    """Return the covariances that rows need, whichever levels they combine.

    They take as many numbers as the first factor has columns times the columns of the others.
    """
    others = jnp.zeros((0, 0))
    if plan.num_rest:
        others = small.lapack_inverse(conditional.root[None])[0]
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
    """Return D_k^-1 and R_k^-T V_k of all levels: how later effects move those of factor e."""
    own = conditional.eliminated[e]
    coupling = whole(plan, e, e + 1, own)
    half = small.inverse_lower(own.root)
    down = jnp.einsum("aik,kam->kim", half, coupling)
    return small.inverse(own.root), down.reshape(plan.columns[e], -1 if coupling.size else 0)


def _block_diagonal(blocks: Float[Array, "r r k"]) -> Float[Array, "kr kr"]:
    r, _, k = blocks.shape
    level = jnp.arange(k)
    return _placed(jnp.zeros((k * r, k * r)), blocks, (0, level), (0, level))
