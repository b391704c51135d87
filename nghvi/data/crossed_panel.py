"""Rows with several grouping factors for features that change with theta, as those of a network.

Rows with the same inputs and the same levels of all factors differ in their responses only. With
n_i of them, their mean response m_i and features h_i::

    sum of Z'Z = sum_i n_i z_i z_i'     sum of Z'e = sum_i n_i z_i (m_i - h_i'beta)
    e'e = sum_i n_i (m_i - h_i'beta)^2 + sum (y - m)^2

is exact for a Gaussian response, and the last sum is a constant. Inputs that repeat are stated
once, so that a network runs on the distinct ones.
"""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from nghvi.data.elimination import pairs_of
from nghvi.data.factors import CrossedRows, FactorRows, Sums
from nghvi.data.grouped import Moments, select
from nghvi.data.panel import WORTHWHILE, distinct_rows


class CrossedPanel(CrossedRows):
    """Rows that differ in inputs or levels, with mean responses, and the squares within them."""

    within: Float[Array, ""]
    """Sum of squares of the responses about the means of their rows."""

    @staticmethod
    def from_rows(rows: FactorRows, random: tuple[tuple[int, ...], ...]) -> "CrossedPanel":
        """``random``: features with effects of every factor."""
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

    @property
    def x(self) -> Float[Array, "t d"]:
        """The inputs, repeated ones once."""
        return self.rows.x

    @property
    def variance(self) -> Float[Array, ""]:
        return super().variance + self.within / self.num_rows

    @property
    def rows_read(self) -> int:
        """By every evaluation of a model."""
        return len(self.rows.y)

    def moments(
        self, features: Callable[[Array], Array], coef: Float[Array, " q"], random: tuple[int, ...]
    ) -> tuple[Moments, ...]:
        """As if each factor were the only one, in the order in which they were given."""
        each = [rows.moments(features, coef, random) for rows in self.by_factor(_as_is)]
        return tuple(found._replace(square=found.square + self.within) for found in each)

    def sums(
        self,
        features: Callable[[Array], Array],
        coef: Float[Array, " q"],
        random: tuple[tuple[int, ...], ...],
    ) -> Sums:
        """At these features and coefficients; ``random``: features with effects, as given."""
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
    """Sums of l r' over the rows of every place, one effect after the other: n s numbers each."""
    columns = jnp.split(left, left.shape[1], axis=1)
    return jnp.stack([jax.ops.segment_sum(one * right, place, number).T for one in columns])


def _as_is(x: Array) -> Array:
    return x
