"""Repeated inputs: the network runs on distinct rows, the likelihood on counts and sums.

With distinct inputs x_t, features h_t, fixed part u_t = h_t'beta, and counts n_kt and sums s_kt of
the responses of group k at x_t::

    Z_k'Z_k = sum_t n_kt z_t z_t'      Z_k'e_k = sum_t (s_kt - n_kt u_t) z_t
    e'e     = sum y^2 - 2 sum_kt s_kt u_t + sum_kt n_kt u_t^2

This is exact for a Gaussian response (:class:`Panel`). For other responses rows are kept, equal
ones once with their count, or as cells (:class:`nghvi.data.grouped.CellRows`).

With several grouping factors (:class:`CrossedPanel`), rows that share inputs and the levels of all
factors differ only in their responses. If there are n_i of them, with mean response m_i and
features h_i::

    sum of Z'Z = sum_i n_i z_i z_i'     sum of Z'e = sum_i n_i z_i (m_i - h_i'beta)
    e'e = sum_i n_i (m_i - h_i'beta)^2 + sum (y - m)^2

This is exact for a Gaussian response, and the last sum is a constant.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from nghvi.data.elimination import pairs_of
from nghvi.data.factors import CrossedRows, FactorRows, Sums
from nghvi.data.grouped import (
    CellRows,
    Columns,
    Features,
    FeatureSums,
    Grouped,
    Moments,
    Observations,
    Rows,
    select,
)

WORTHWHILE, SEVERAL = 4, 2
"""How often inputs must repeat on average before collapsing them pays off, and how many different
responses a cell must have on average before cells do."""


class Panel(Grouped):
    """Distinct inputs, and counts and sums of responses by group and input."""

    x: Float[Array, "t d"]
    counts: Float[Array, "k t"]
    sums: Float[Array, "k t"]
    square_total: Float[Array, ""]
    variance: Float[Array, ""]
    original_order: Int[Array, " k"]
    num_rows: Float[Array, ""]

    @property
    def num_groups(self) -> int:
        return self.counts.shape[0]

    def size(self, effects: int, by_row: int) -> int:
        return self.counts.size + self.num_groups * effects**2

    def moments(self, features: Features, coef: Float[Array, " q"], random: Columns) -> Moments:
        """Return moments at these features and coefficients."""
        h = features(self.x)
        fixed, design = h @ coef, select(h, random)
        r = len(random)
        outer = (design[:, :, None] * design[:, None, :]).reshape(len(design), r * r)
        gram = (outer.T @ self.counts.T).reshape(r, r, self.num_groups)
        cross = design.T @ (self.sums - self.counts * fixed).T
        by_input = jnp.sum(self.counts, axis=0), jnp.sum(self.sums, axis=0)
        square = self.square_total - 2 * by_input[1] @ fixed + by_input[0] @ fixed**2
        return Moments(gram, cross, square, self.num_rows)

    def feature_sums(self, features: Features, random: Columns) -> FeatureSums:
        """Return sums at these features; ``random`` has the effects' columns."""
        h = features(self.x)
        design = select(h, random)
        count, response = jnp.sum(self.counts, axis=0), jnp.sum(self.sums, axis=0)
        outer = (design[:, :, None] * h[:, None, :]).reshape(len(h), -1)
        by_group = (outer.T @ self.counts.T).reshape(len(random), h.shape[1], self.num_groups)
        return FeatureSums(
            h.T @ (count[:, None] * h),
            h.T @ response,
            by_group,
            design.T @ self.sums.T,
            self.square_total,
            self.num_rows,
        )


def collapse(rows: Rows, *, sums_suffice: bool, merge: bool = True) -> Rows | Panel:
    """Store repeated inputs once if that pays off; otherwise return the rows as they are.

    ``sums_suffice`` says that the likelihood depends on the responses at an input only through
    their count, sum and sum of squares, as with a Gaussian response. ``merge`` allows equal
    responses of a group at one input to become one row with their count.
    """
    observed = rows.observations()
    first, index = distinct_rows(observed.x)
    if WORTHWHILE * len(first) > len(index):
        return rows
    if sums_suffice and rows.num_groups * len(first) <= len(index):
        return _panel(rows, observed, first, index)
    return _indexed(rows, observed, first, index, merge)


def _panel(rows: Rows, observed: Observations, first: np.ndarray, index: np.ndarray) -> Panel:
    shape = rows.num_groups, len(first)
    cell = observed.group * len(first) + index

    def cells(values: np.ndarray) -> Array:
        return jax.device_put(np.bincount(cell, values, shape[0] * shape[1]).reshape(shape))

    weight, y = observed.weight, observed.y
    return Panel(
        x=jax.device_put(observed.x[first]),
        counts=cells(weight),
        sums=cells(weight * y),
        square_total=jax.device_put(weight @ y**2),
        variance=jax.device_put(np.cov(y, aweights=weight, ddof=0)),
        original_order=rows.original_order,
        num_rows=jax.device_put(np.float64(rows.num_rows)),
    )


def _indexed(
    rows: Rows, observed: Observations, first: np.ndarray, index: np.ndarray, merge: bool
) -> Rows:
    """Return rows that refer to their inputs, or cells if these have several responses each."""
    inputs = observed.x[first]
    if merge:
        kept, merged = distinct_rows(np.column_stack([observed.group, index, observed.y]))
        weight = np.bincount(merged, observed.weight)
        x, y, group, _ = (part[kept] for part in observed)
        observed, index = Observations(x, y, group, weight), index[kept]
    laid_out: Rows
    if merge and SEVERAL * len(np.unique(observed.group * len(first) + index)) <= len(index):
        laid_out = CellRows.make(inputs, index, observed, rows.num_groups)
    else:
        laid_out = Rows.indexed(inputs, index, *observed[1:3], rows.num_groups, observed.weight)
    return laid_out.numbered_by(rows.original_order)


def distinct_rows(values: Float[np.ndarray, "n d"]) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of distinct rows, and which of them each row equals.

    Sorts one hash per row instead of whole rows, and sorts rows only if two of them share a hash.
    """
    values = np.ascontiguousarray(values + 0.0)  # -0.0 and 0.0 are one input
    if values.shape[1] == 0:
        return np.zeros(1, int), np.zeros(len(values), int)
    bits = values.view(np.uint64)
    odd = np.random.default_rng(0).integers(0, 2**63, values.shape[1], dtype=np.uint64) * 2 + 1
    mixed = (bits ^ (bits >> np.uint64(29))) * odd
    hashed = np.bitwise_xor.reduce(mixed ^ (mixed >> np.uint64(32)), axis=1)
    _, first, index = np.unique(hashed, return_index=True, return_inverse=True)
    if not np.array_equal(values[first][index], values):
        _, first, index = np.unique(values, axis=0, return_index=True, return_inverse=True)
    return first, index.reshape(-1)


class CrossedPanel(CrossedRows):
    """Rows that differ in inputs or levels, with mean responses and the squares about these."""

    within: Float[Array, ""]
    """Sum of squares of the responses about the means of their rows."""

    @staticmethod
    def from_rows(rows: FactorRows, random: tuple[Columns, ...]) -> "CrossedPanel":
        """Merge rows with the same inputs and levels; ``random`` are every factor's columns."""
        first, index = distinct_rows(rows.x)
        inputs = rows.x[first]
        kept, same = distinct_rows(np.column_stack([index, rows.codes]).astype(float))
        weight = np.ones(len(rows.y)) if rows.weight is None else rows.weight
        number = np.bincount(same, weight)
        mean = np.bincount(same, weight * rows.y) / number
        within = np.sum(weight * (rows.y - mean[same]) ** 2)
        repeated = WORTHWHILE * len(first) <= len(kept)
        merged = dataclasses.replace(
            rows,
            x=index[kept, None].astype(float) if repeated else rows.x[kept],
            y=mean,
            codes=rows.codes[kept],
            weight=number,
        )
        crossed = CrossedRows.from_rows(merged, random)
        if repeated:
            named = np.asarray(crossed.rows.x[:, 0], int)
            crossed = eqx.tree_at(
                lambda each: (each.rows.x, each.rows.index),
                crossed,
                (jax.device_put(inputs), jax.device_put(named)),
                is_leaf=lambda leaf: leaf is None,
            )
        fields = {each.name: getattr(crossed, each.name) for each in dataclasses.fields(crossed)}
        return CrossedPanel(**fields, within=jax.device_put(within))

    def with_rows(self, more: FactorRows, random: tuple[Columns, ...]) -> "CrossedPanel":
        found = CrossedPanel.from_rows(self._followed_by(more), random)
        return dataclasses.replace(found, within=found.within + self.within)

    @property
    def x(self) -> Float[Array, "t d"]:
        """The inputs, each stored once if they repeat."""
        return self.rows.x

    @property
    def variance(self) -> Float[Array, ""]:
        return super().variance + self.within / self.num_rows

    @property
    def rows_read(self) -> int:
        """How many rows every evaluation of a model reads."""
        return len(self.rows.y)

    def moments(
        self, features: Features, coef: Float[Array, " q"], random: Columns
    ) -> tuple[Moments, ...]:
        """Return moments as if each factor were the only one, in the order they were given in."""
        each = [rows.moments(features, coef, random) for rows in self.by_factor(lambda x: x)]
        return tuple(found._replace(square=found.square + self.within) for found in each)

    def sums(
        self, features: Features, coef: Float[Array, " q"], random: tuple[Columns, ...]
    ) -> Sums:
        """Return sums at these features and coefficients.

        ``random`` has the features with effects of every factor, in the order they were given in.
        """
        rows, plan = self.rows, self.plan
        distinct = features(rows.x)
        h = rows.features(lambda _: distinct)
        error = rows.weighted(rows.y - h @ coef)
        design = [select(h, random[f]) for f in plan.order]
        counted = [rows.weighted(each) for each in design]
        first = rows.moments(lambda _: distinct, coef, random[plan.order[0]])
        later = [(f, self.later[f - 1], plan.levels[f]) for f in range(1, len(plan.order))]

        def cells(f: int, g: int, place: Array, number: int) -> Float[Array, "r s c"]:
            return _products(counted[f], design[g], place, number)

        return Sums(
            (first.gram, *(cells(f, f, level, number) for f, level, number in later)),
            tuple(
                tuple(
                    cells(e, e + 1 + i, place, step.cells[i].first.size)
                    for i, place in enumerate(places)
                )
                for e, (step, places) in enumerate(zip(plan.steps, self.places, strict=True))
            ),
            tuple(
                cells(*pair, place, where.first.size)
                for pair, place, where in zip(
                    pairs_of(plan.rest), self.rest_places, plan.rest_cells, strict=True
                )
            ),
            (
                first.cross,
                *(
                    jax.ops.segment_sum(design[f] * error[:, None], level, number).T
                    for f, level, number in later
                ),
            ),
            first.square + self.within,
            first.num_rows,
        )


def _products(
    left: Float[Array, "n r"], right: Float[Array, "n s"], place: Int[Array, " n"], number: int
) -> Float[Array, "r s c"]:
    """Sum l r' over the rows of every place, one column of l at a time: n s numbers of memory."""
    columns = jnp.split(left, left.shape[1], axis=1)
    return jnp.stack([jax.ops.segment_sum(one * right, place, number).T for one in columns])
