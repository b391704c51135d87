"""Observations laid out by group, and the sums over groups that inference needs.

With a Gaussian response, all that the likelihood needs from group k is ``Z_k'Z_k``, ``Z_k'e_k``
and ``e'e`` with ``e = y - H beta`` (:class:`Moments`). :class:`Rows` computes them from features
that change with theta; ``LinearStatistics`` and ``Panel`` compute them from sums over rows that are
taken once.

Observations that share group and inputs form a cell, which is one row of :class:`CellRows`. What
depends on the inputs alone, predictor and design, is computed once per cell; only the likelihood is
evaluated at every observation. This is exact for any response, whereas sums of responses suffice
only for a Gaussian one. Sums over groups then run over cells.
"""

import abc
from collections.abc import Callable
from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from nghvi.data.blocks import lay_out

Features = Callable[[Float[Array, "t d"]], Float[Array, "t q"]]
"""A function that computes the features of inputs."""
Columns = tuple[int, ...]
"""Which of the features have effects."""


class Moments(NamedTuple):
    """Sums over the rows of each group given the fixed part, with the groups as last axis."""

    gram: Float[Array, "r r k"]
    cross: Float[Array, "r k"]
    square: Float[Array, ""]
    num_rows: float | Float[Array, ""]


class FeatureSums(NamedTuple):
    """Sums over rows of products of all features H, of those with effects, Z, and the response."""

    gram: Float[Array, "q q"]
    """H'H over all groups."""
    cross: Float[Array, " q"]
    """H'y over all groups."""
    group_gram: Float[Array, "r q k"]
    """Z_k'H_k of every group."""
    group_cross: Float[Array, "r k"]
    """Z_k'y_k of every group."""
    square: Float[Array, ""]
    num_rows: float | Float[Array, ""]


class Grouped(eqx.Module):
    """Data of many groups, in one of several forms; groups are in memory order.

    Every form also has ``num_groups``, and ``variance``, the variance of the response. ``num_rows``
    is an array if no shape depends on it, so that one program serves any number of rows.
    """

    original_order: eqx.AbstractVar[Int[Array, " k"]]
    num_rows: eqx.AbstractVar[float | Float[Array, ""]]

    @abc.abstractmethod
    def moments(self, features: Features, coef: Float[Array, " q"], random: Columns) -> Moments:
        """Return moments at these features and coefficients; ``random`` has effects' columns."""

    @abc.abstractmethod
    def size(self, effects: int, by_row: int) -> int:
        """Return how many numbers an evaluation of a model touches.

        ``effects``: their number; ``by_row``: how many numbers there are per row, if rows are read.
        """

    @property
    def num_present(self) -> int | Int[Array, ""]:
        """Number of groups, without the absent ones that fill up a piece."""
        return len(self.original_order)

    def over_groups(self, values: Float[Array, "k ..."]) -> Float[Array, "..."]:
        """Sum values with one entry per group over all groups."""
        return jnp.sum(values, axis=0)

    def in_original_order(self, values: Float[Array, "k ..."]) -> Float[Array, "k ..."]:
        """Return values by group in the order of the group codes instead of memory order."""
        return values[self.original_order]


class Observations(NamedTuple):
    """Observed rows without padding; groups are numbered in memory order."""

    x: Float[np.ndarray, "n d"]
    y: Float[np.ndarray, " n"]
    group: Int[np.ndarray, " n"]
    weight: Float[np.ndarray, " n"]


class Rows(Grouped):
    """Rows laid out in blocks of equally sized groups.

    ``weight`` is how often a row was observed, 0 for padding; None means 1 everywhere. ``index``
    says which row of ``x`` holds a row's inputs, so that a network runs only once on repeated
    inputs; None means that every row has its own.
    """

    x: Float[Array, "t d"]
    y: Float[Array, " n"]
    weight: Float[Array, " n"] | None
    index: Int[Array, " n"] | None
    original_order: Int[Array, " k"]
    blocks: tuple[tuple[int, int], ...] = eqx.field(static=True)
    num_rows: float = eqx.field(static=True)

    @staticmethod
    def from_arrays(
        x: np.ndarray,
        y: np.ndarray,
        group: np.ndarray,
        num_groups: int,
        weight: np.ndarray | None = None,
    ) -> "Rows":
        """Lay out rows in any order; group codes run from 0 to num_groups - 1."""
        layout = lay_out(np.asarray(group), int(num_groups))
        total = sum(count * size for count, size in layout.blocks)

        def place(values: np.ndarray) -> Array:
            # Padding repeats a real row instead of zeros, so that every function is finite there.
            out = np.broadcast_to(values[:1], (total, *values.shape[1:])).copy()
            out[layout.position] = values
            return jax.device_put(out)

        placed = np.zeros(total)
        placed[layout.position] = 1.0 if weight is None else weight
        return Rows(
            x=place(np.asarray(x, float)),
            y=place(np.asarray(y, float)),
            weight=None if (placed == 1).all() else jax.device_put(placed),
            index=None,
            original_order=jax.device_put(np.argsort(layout.group_order)),
            blocks=layout.blocks,
            num_rows=float(placed.sum()),
        )

    @staticmethod
    def indexed(
        inputs: Float[np.ndarray, "t d"],
        index: Int[np.ndarray, " n"],
        y: np.ndarray,
        group: np.ndarray,
        num_groups: int,
        weight: np.ndarray | None = None,
    ) -> "Rows":
        """Lay out rows whose inputs are ``inputs[index]``, storing each input once."""
        rows = Rows.from_arrays(index[:, None], y, group, num_groups, weight)
        return eqx.tree_at(
            lambda r: (r.x, r.index),
            rows,
            (jax.device_put(inputs), jax.device_put(np.asarray(rows.x[:, 0], int))),
            is_leaf=lambda leaf: leaf is None,
        )

    @property
    def num_groups(self) -> int:
        return sum(count for count, _ in self.blocks)

    def size(self, effects: int, by_row: int) -> int:
        return len(self.y) * by_row

    @property
    def variance(self) -> Float[Array, ""]:
        """Variance of the response."""
        centre = self.total(self.y) / self.num_rows
        return self.total((self.y - centre) ** 2) / self.num_rows

    def observations(self) -> Observations:
        """Return the rows without padding, as host arrays."""
        weight = np.ones(len(self.y)) if self.weight is None else np.asarray(self.weight)
        keep = weight > 0
        x = np.asarray(self.x) if self.index is None else np.asarray(self.x)[self.index]
        group = self.group_of_rows()[keep]
        return Observations(x[keep], np.asarray(self.y)[keep], group, weight[keep])

    def numbered_by(self, original_order: Int[Array, " k"]) -> Self:
        """Return the same rows, with groups that were numbered in the memory order of other data.

        ``original_order`` is that of the other data.
        """
        order = self.original_order[original_order]
        return eqx.tree_at(lambda rows: rows.original_order, self, order)

    def group_of_rows(self) -> Int[np.ndarray, " n"]:
        """Return the group of every row, including padding."""
        sizes = np.repeat([s for _, s in self.blocks], [c for c, _ in self.blocks])
        return np.repeat(np.arange(self.num_groups), sizes)

    def features(self, of: Features) -> Float[Array, "n q"]:
        """Return the features of every row, computed once for inputs that repeat."""
        computed = of(self.x)
        return computed if self.index is None else computed[self.index]

    def at_observations(self, values: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
        """Copy values of rows to their observations; here a row is one observation."""
        return values

    def by_row(self, values: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
        """Sum values of observations over each row; here a row is one observation."""
        return values

    def weighted(self, values: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
        """Multiply values by how often their row was observed, 0 for padding."""
        if self.weight is None:
            return values
        return values * self.weight.reshape(-1, *(1,) * (values.ndim - 1))

    def sum(self, values: Float[Array, "n ..."]) -> Float[Array, "k ..."]:
        """Sum values over the rows of each group, without padding."""
        # Products, since in a sum XLA would compute the values inside it, one after the other. With
        # a vector of ones all groups of a block are one product.
        parts = self.split(self.weighted(values))
        return jnp.concatenate(
            [jnp.einsum("kn...,n->k...", v, jnp.ones(v.shape[1], v.dtype)) for v in parts]
        )

    def total(self, values: Float[Array, " n"]) -> Float[Array, ""]:
        """Sum values over all rows, without padding."""
        return jnp.sum(values if self.weight is None else values * self.weight)

    def expand(self, values: Float[Array, "k ..."]) -> Float[Array, "n ..."]:
        """Copy values of groups to their rows."""
        parts, start = [], 0
        for count, size in self.blocks:
            block = values[start : start + count, None]
            shape = (count, size, *values.shape[1:])
            parts.append(jnp.broadcast_to(block, shape).reshape(count * size, *values.shape[1:]))
            start += count
        return jnp.concatenate(parts)

    def gram(
        self, design: Float[Array, "n r"], precision: Float[Array, " n"] | None = None
    ) -> Float[Array, "r r k"]:
        """Return Z_k' Z_k of every group, or Z_k' diag(precision) Z_k with precisions of rows."""
        scaled = design if precision is None else design * precision[:, None]
        pairs = zip(self.split(design), self.split(self.weighted(scaled)), strict=True)
        products = [jnp.einsum("kni,knj->kij", a, b) for a, b in pairs]
        return jnp.moveaxis(jnp.concatenate(products), 0, -1)

    def moments(self, features: Features, coef: Float[Array, " q"], random: Columns) -> Moments:
        h = self.features(features)
        design, error = select(h, random), self.y - h @ coef
        if not random:  # gradients of empty sums would be undefined rather than zero
            k = self.num_groups
            square = self.total(error**2)
            return Moments(jnp.zeros((0, 0, k)), jnp.zeros((0, k)), square, self.num_rows)
        gram, cross, square = _row_moments((design, error), self)
        return Moments(gram, cross, square, self.num_rows)

    def feature_sums(self, features: Features, random: Columns) -> FeatureSums:
        """Return sums at these features; ``random`` has the effects' columns."""
        h = self.features(features)
        if random == tuple(range(h.shape[1])):  # everything is a sum over groups
            found = self.moments(features, jnp.zeros(len(random)), random)
            gram, cross = jnp.sum(found.gram, axis=-1), jnp.sum(found.cross, axis=-1)
            return FeatureSums(gram, cross, *found)
        count, response = self._counts_and_responses()
        counted = h if count is None else h * count[:, None]
        both = jnp.concatenate([counted, response[:, None]], axis=1)
        parts = zip(self.split(select(h, random)), self.split(both), strict=True)
        products = [jnp.einsum("kni,knj->ijk", z, b) for z, b in parts]
        by_group = jnp.concatenate(products, axis=-1)
        return FeatureSums(
            h.T @ counted,
            h.T @ response,
            by_group[:, :-1],
            by_group[:, -1],
            self.total(self.y**2),
            self.num_rows,
        )

    def cut(self, h: Float[Array, "n q"], most: int) -> tuple["Part", "Part"]:
        """Return the groups in blocks of at most ``most`` rows, and the others."""
        short = sum(size <= most for _, size in self.blocks)  # blocks grow
        groups = sum(count for count, _ in self.blocks[:short])
        rows = sum(count * size for count, size in self.blocks[:short])

        def part(blocks: tuple, of_groups: slice, of_rows: slice) -> Part:
            weight = None if self.weight is None else self.weight[of_rows]
            y, order, own = self.y[of_rows], self.original_order[of_groups], h[of_rows]
            x, n = jax.lax.stop_gradient(own), float(len(y))
            rows = Rows(
                x=x, y=y, weight=weight, index=None, original_order=order, blocks=blocks, num_rows=n
            )
            return rows, own

        return (
            part(self.blocks[:short], slice(groups), slice(rows)),
            part(self.blocks[short:], slice(groups, None), slice(rows, None)),
        )

    def _counts_and_responses(self) -> tuple[Float[Array, " n"] | None, Float[Array, " n"]]:
        """Return how often every row was observed, and the sum of its responses."""
        return self.weight, self.weighted(self.y)

    def split(self, values: Float[Array, "n ..."]) -> list[Float[Array, "kb nb ..."]]:
        parts, start = [], 0
        for count, size in self.blocks:
            part = values[start : start + count * size]
            parts.append(part.reshape(count, size, *values.shape[1:]))
            start += count * size
        return parts


Part = tuple[Rows, Float[Array, "n q"]]
"""Rows of some of the groups, counted with their padding, and their features."""


def select(features: Float[Array, "n q"], columns: tuple[int, ...]) -> Float[Array, "n r"]:
    """Return these columns, as a slice if they are neighbours: a gather is slow to undo."""
    if not columns:
        return features[:, :0]
    first, last = columns[0], columns[-1] + 1
    if columns == tuple(range(first, last)):
        return features[:, first:last]
    return features[:, np.array(columns)]


@eqx.filter_custom_vjp
def _row_moments(varying: tuple[Array, Array], rows: Rows) -> tuple[Array, Array, Array]:
    """Return Z'Z and Z'e by group, and e'e, from (Z, e).

    Differentiated by hand: the gradient is one batched product, Z (dG + dG') + e dc', whereas
    automatic differentiation takes two products and several copies.
    """
    design, error = varying
    cross = [
        jnp.einsum("kni,kn->ki", z, e)
        for z, e in zip(rows.split(design), rows.split(rows.weighted(error)), strict=True)
    ]
    return rows.gram(design), jnp.concatenate(cross).T, rows.total(error**2)


@_row_moments.def_fwd
def _forward(perturbed: tuple, varying: tuple[Array, Array], rows: Rows) -> tuple:
    return _row_moments(varying, rows), None


@_row_moments.def_bwd
def _backward(
    residuals: None, cotangents: tuple, perturbed: tuple, varying: tuple[Array, Array], rows: Rows
) -> tuple[Array, Array]:
    design, error = varying
    # A cotangent is None if the result does not depend on that sum.
    k, r = rows.num_groups, design.shape[-1]
    shapes = (r, r, k), (r, k), ()
    d_gram, d_cross, d_square = (
        jnp.zeros(shape) if cotangent is None else cotangent
        for cotangent, shape in zip(cotangents, shapes, strict=True)
    )
    symmetric = jnp.moveaxis(d_gram + jnp.swapaxes(d_gram, 0, 1), -1, 0)
    d_design, d_error, start = [], [], 0
    for z, e in zip(rows.split(design), rows.split(error), strict=True):
        groups = slice(start, start + len(z))
        slope = d_cross.T[groups]
        d_design.append(z @ symmetric[groups] + e[..., None] * slope[:, None])
        d_error.append(jnp.einsum("kni,ki->kn", z, slope) + 2 * d_square * e)
        start += len(z)
    flat = [jnp.concatenate([p.reshape(-1, *p.shape[2:]) for p in d]) for d in (d_design, d_error)]
    return rows.weighted(flat[0]), rows.weighted(flat[1])


class CellRows(Rows):
    """Rows that are cells; ``y`` are their observations, in the memory order of ``within``."""

    within: Rows
    """The observations, grouped by cell and without inputs."""
    row_of: Int[Array, " c"]
    """The row of every group of ``within``."""
    cell_of: Int[Array, " n"]
    """The group of ``within`` of every row; arbitrary for padding."""

    @staticmethod
    def make(
        inputs: Float[np.ndarray, "t d"],
        index: Int[np.ndarray, " o"],
        observed: Observations,
        num_groups: int,
    ) -> "CellRows":
        """Make cells of observations whose inputs are ``inputs[index]``, not their own ``x``."""
        code = observed.group * len(inputs) + index
        cells, cell = np.unique(code, return_inverse=True)
        group, number = cells // len(inputs), cells % len(inputs)
        nothing = np.zeros((len(cell), 0))
        within = Rows.from_arrays(nothing, observed.y, cell, len(cells), observed.weight)
        # The numbers of the cells take the place of responses, to find where each cell is put.
        rows = Rows.indexed(inputs, number, np.arange(len(cells)), group, num_groups)
        placed = np.asarray(rows.y, int)
        there = np.ones(len(placed), bool) if rows.weight is None else np.asarray(rows.weight) > 0
        row = np.empty(len(cells), int)
        row[placed[there]] = np.flatnonzero(there)
        memory = np.asarray(within.original_order)
        return CellRows(
            x=rows.x,
            y=within.y,
            weight=rows.weight,
            index=rows.index,
            original_order=rows.original_order,
            blocks=rows.blocks,
            num_rows=within.num_rows,
            within=within,
            row_of=jax.device_put(row[np.argsort(memory)]),
            cell_of=jax.device_put(memory[placed]),
        )

    def at_observations(self, values: Float[Array, "n ..."]) -> Float[Array, "o ..."]:
        return self.within.expand(values[self.row_of])

    def by_row(self, values: Float[Array, "o ..."]) -> Float[Array, "n ..."]:
        return self.within.sum(values)[self.cell_of]

    def total(self, values: Float[Array, " o"]) -> Float[Array, ""]:
        return self.within.total(values)

    def moments(self, features: Features, coef: Float[Array, " q"], random: Columns) -> Moments:
        h = self.features(features)
        design, error = select(h, random), self.y - self.at_observations(h @ coef)
        gram = self.gram(design, self.by_row(jnp.ones_like(self.y)))
        cross = self.sum(design * self.by_row(error)[:, None]).T
        return Moments(gram, cross, self.total(error**2), self.num_rows)

    def _counts_and_responses(self) -> tuple[Float[Array, " n"] | None, Float[Array, " n"]]:
        return self.weighted(self.by_row(jnp.ones_like(self.y))), self.weighted(self.by_row(self.y))

    def observations(self) -> Observations:
        seen, index = self._seen()
        return seen._replace(x=np.asarray(self.x)[index])

    def apart(self) -> Rows:
        """Return rows with one observation each."""
        (_, y, group, weight), index = self._seen()
        rows = Rows.indexed(np.asarray(self.x), index, y, group, self.num_groups, weight)
        return rows.numbered_by(self.original_order)

    def _seen(self) -> tuple[Observations, Int[np.ndarray, " o"]]:
        """Return observations by group instead of by cell, and the row of ``x`` of each."""
        seen = self.within.observations()
        row = np.asarray(self.row_of)[seen.group]
        return seen._replace(group=self.group_of_rows()[row]), np.asarray(self.index)[row]
