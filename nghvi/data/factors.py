"""Rows with several grouping factors, as they are or reduced to sums over levels and cells."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from nghvi.data.elimination import (
    Elimination,
    Pattern,
    check_dense,
    eliminate,
    pairs_of,
    patterns_of,
    with_most_columns,
)
from nghvi.data.grouped import Rows
from nghvi.data.linear import LinearStatistics


class FactorRows(eqx.Module):
    """Rows with one level of every factor."""

    x: Float[np.ndarray, "n d"]
    y: Float[np.ndarray, " n"]
    codes: Int[np.ndarray, "n f"]
    weight: Float[np.ndarray, " n"] | None
    num_levels: tuple[int, ...] = eqx.field(static=True)

    def of_factor(self, factor: int) -> Rows:
        """Lay the rows out by the levels of one factor."""
        codes = self.codes[:, factor]
        return Rows.from_arrays(self.x, self.y, codes, self.num_levels[factor], self.weight)

    def product(self, first: int, second: int) -> Float[np.ndarray, " n"]:
        """Return the weighted product of two columns."""
        weight = 1.0 if self.weight is None else self.weight
        return weight * self.x[:, first] * self.x[:, second]


class CellSums(NamedTuple):
    """Z_f'Z_g of every pair of levels of two factors that meet."""

    pattern: Pattern
    gram: Float[np.ndarray, "r s c"]

    @staticmethod
    def of(
        first: Int[np.ndarray, " n"],
        second: Int[np.ndarray, " n"],
        num_second: int,
        shape: tuple[int, int],
        product: Callable[[int, int], Float[np.ndarray, " n"]],
    ) -> "CellSums":
        """Add up the products of every two effects over the entries with the same two levels."""
        pattern = Pattern.of(first, second, num_second)
        place = pattern.place(first, second)
        r, s = shape
        sums = [[np.bincount(place, product(i, j)) for j in range(s)] for i in range(r)]
        return CellSums(pattern, np.array(sums))

    def turned(self, num_first: int) -> "CellSums":
        """Return the same sums with the second factor first."""
        pattern, gram = self.pattern.turned(num_first), self.gram.swapaxes(0, 1)
        at = pattern.place(self.pattern.second, self.pattern.first)
        return CellSums(pattern, gram[..., np.argsort(at)])


class Sums(NamedTuple):
    """Sums over rows that the likelihood needs given the fixed part, in elimination order."""

    gram: tuple[Float[Array, "r r k"], ...]
    """Z_f'Z_f of every level."""
    cells: tuple[tuple[Float[Array, "r s c"], ...], ...]
    """Z_f'Z_g of every eliminated factor with every later one."""
    rest_cells: tuple[Float[Array, "r s c"], ...]
    """Z_f'Z_g of every two factors of the rest."""
    cross: tuple[Float[Array, "r k"], ...]
    """Z_f'e of every level."""
    square: Float[Array, ""]
    num_rows: float | Float[Array, ""]


class CrossedStatistics(eqx.Module):
    """Cross products of a linear model's columns by level and by cell, which replace the rows.

    ``factors`` are in the order in which they were given, all about the same least squares fit;
    everything else is in elimination order. Levels are in the memory order of their factor.
    """

    factors: tuple[LinearStatistics, ...]
    plan: Elimination
    cells: tuple[tuple[Float[Array, "r s c"], ...], ...]
    """Z_f'Z_g of every eliminated factor with every later one."""
    rest_cells: tuple[Float[Array, "r s c"], ...]

    @staticmethod
    def from_rows(
        rows: FactorRows, random: tuple[tuple[int, ...], ...], known: tuple[float, ...] = ()
    ) -> "CrossedStatistics":
        """Reduce rows to cross products.

        ``random`` has the columns with effects of every factor. ``known`` are the coefficients of
        the last columns, if these are not estimated.
        """
        factors: list[LinearStatistics] = []
        for f, columns in enumerate(random):
            centre = np.asarray(factors[0].centre) if factors else None
            laid_out = rows.of_factor(f)
            factors.append(LinearStatistics.from_rows(laid_out, columns, centre, known))
        codes = [
            np.asarray(f.original_order)[c] for f, c in zip(factors, rows.codes.T, strict=True)
        ]

        def summed(f: int, g: int) -> CellSums:
            own, other = random[f], random[g]
            return CellSums.of(
                *(codes[f], codes[g], rows.num_levels[g], (len(own), len(other))),
                lambda i, j: rows.product(own[i], other[j]),
            )

        cells = {pair: summed(*pair) for pair in pairs_of(range(len(random)))}
        return CrossedStatistics._of_sums(tuple(factors), cells, tuple(map(len, random)))

    @staticmethod
    def _of_sums(
        factors: tuple[LinearStatistics, ...],
        sums: dict[tuple[int, int], CellSums],
        effects: tuple[int, ...],
    ) -> "CrossedStatistics":
        """Plan the elimination; levels of cells are in the memory order of their factor."""
        levels = tuple(factor.num_groups for factor in factors)
        plan, _ = eliminate({pair: own.pattern for pair, own in sums.items()}, levels, effects)

        def grams(e: int, f: int) -> Float[Array, "r s c"]:
            first, second = plan.order[e], plan.order[f]
            turned = first > second
            own = sums[second, first].turned(levels[second]) if turned else sums[first, second]
            return jax.device_put(own.gram)

        places = range(len(plan.order))
        return CrossedStatistics(
            factors,
            plan,
            tuple(tuple(grams(e, f) for f in places[e + 1 :]) for e in range(plan.first_rest)),
            tuple(grams(f, g) for f, g in pairs_of(plan.rest)),
        )

    def with_rows(
        self, more: FactorRows, random: tuple[tuple[int, ...], ...]
    ) -> "CrossedStatistics":
        """Add further rows, whose levels may be new; ``random`` is as in :meth:`from_rows`.

        ``more.num_levels`` counts all levels, new ones last.
        """
        centre = np.asarray(self.centre)
        factors = tuple(
            own.joined(LinearStatistics.from_rows(more.of_factor(f), columns, centre))
            for f, (own, columns) in enumerate(zip(self.factors, random, strict=True))
        )
        labels = [np.argsort(np.asarray(factor.original_order)) for factor in self.factors]

        def summed(f: int, g: int, before: CellSums) -> CellSums:
            first = np.concatenate([labels[f][before.pattern.first], more.codes[:, f]])
            second = np.concatenate([labels[g][before.pattern.second], more.codes[:, g]])

            def product(i: int, j: int) -> Float[np.ndarray, " n"]:
                new = more.product(random[f][i], random[g][j])
                return np.concatenate([before.gram[i, j], new])

            shape = len(random[f]), len(random[g])
            return CellSums.of(first, second, more.num_levels[g], shape, product)

        cells = {pair: summed(*pair, before) for pair, before in self._cell_sums().items()}
        return CrossedStatistics._of_sums(factors, cells, tuple(map(len, random)))

    def _cell_sums(self) -> dict[tuple[int, int], CellSums]:
        """Return the sums of all cells by pair of factors, in the order they were given in."""
        plan, levels, found = self.plan, self.num_levels, {}
        last = len(plan.order)
        pairs = [(e, f) for e in range(plan.first_rest) for f in range(e + 1, last)]
        cells = [cell for step in plan.steps for cell in step.cells] + list(plan.rest_cells)
        grams = [gram for each in self.cells for gram in each] + list(self.rest_cells)
        for (e, f), cell, gram in zip([*pairs, *pairs_of(plan.rest)], cells, grams, strict=True):
            first, second = plan.order[e], plan.order[f]
            pattern = Pattern.of(np.asarray(cell.first), np.asarray(cell.second), levels[second])
            own = CellSums(pattern, np.asarray(gram))
            turned = first > second
            pair = (second, first) if turned else (first, second)
            found[pair] = own.turned(levels[first]) if turned else own
        return found

    @property
    def centre(self) -> Float[Array, " q"]:
        return self.factors[0].centre

    @property
    def square_total(self) -> Float[Array, ""]:
        return self.factors[0].square_total

    @property
    def effects_square(self) -> Float[Array, " r"]:
        """Mean squares of the columns with effects, factor by factor."""
        return jnp.concatenate([factor.effects_square for factor in self.factors])

    @property
    def num_groups(self) -> int:
        """Number of levels of all factors together."""
        return sum(factor.num_groups for factor in self.factors)

    @property
    def num_rows(self) -> Float[Array, ""]:
        return self.factors[0].num_rows

    @property
    def variance(self) -> Float[Array, ""]:
        return self.factors[0].variance

    @property
    def num_levels(self) -> tuple[int, ...]:
        """Number of levels of every factor, in the order in which they were given."""
        return tuple(factor.num_groups for factor in self.factors)

    def labelled(self, tables: tuple) -> tuple:
        """Return tables by level in the order of the labels; factors are in the given order."""
        pairs = zip(self.factors, tables, strict=True)
        return tuple(factor.in_original_order(each) for factor, each in pairs)

    @property
    def in_order(self) -> tuple[LinearStatistics, ...]:
        """The factors in elimination order."""
        return tuple(self.factors[f] for f in self.plan.order)

    def in_memory(self, levels: tuple) -> tuple:
        """Return the positions in memory of levels by label; factors are in the given order."""
        pairs = zip(self.factors, levels, strict=True)
        return tuple(factor.original_order[each] for factor, each in pairs)

    @property
    def rows_read(self) -> int:
        """How many rows every evaluation of a model reads."""
        return 0

    def sums(
        self,
        features: Callable[[Array], Array],
        coef: Float[Array, " q"],
        random: tuple[tuple[int, ...], ...],
    ) -> Sums:
        """Return sums at these coefficients; the features are the columns themselves."""
        moments = [factor.moments(features, coef, ()) for factor in self.in_order]
        return Sums(
            tuple(each.gram for each in moments),
            self.cells,
            self.rest_cells,
            tuple(each.cross for each in moments),
            moments[0].square,
            self.num_rows,
        )


class CrossedRows(eqx.Module):
    """Rows laid out by the factor that is eliminated first.

    Tuples are in elimination order. Levels of the first factor are in memory order, those of the
    others in the order of their labels.
    """

    rows: Rows
    later: Int[Array, "f n"]
    """Every row's level of all factors but the first."""
    places: tuple[tuple[Int[Array, " n"], ...], ...]
    """Every row's cell, for every eliminated factor with every later one."""
    rest_places: tuple[Int[Array, " n"], ...]
    """Every row's cell, for every two factors of the rest."""
    plan: Elimination

    @staticmethod
    def from_rows(rows: FactorRows, random: tuple[tuple[int, ...], ...]) -> "CrossedRows":
        """Lay out rows; ``random`` has the columns with effects of every factor."""
        levels, effects = rows.num_levels, tuple(map(len, random))
        first = with_most_columns(levels, effects, range(len(levels)))
        codes = rows.codes.copy()
        order = np.asarray(rows.of_factor(first).original_order)
        codes[:, first] = order[codes[:, first]]
        plan, patterns = eliminate(patterns_of(codes, levels), levels, effects)
        check_dense(plan)
        beside = dataclasses.replace(rows, x=np.column_stack([rows.x, codes])).of_factor(first)
        split = rows.x.shape[1]
        codes = np.asarray(beside.x)[:, split:].astype(np.int32)[:, list(plan.order)]
        laid_out = eqx.tree_at(lambda each: each.x, beside, beside.x[:, :split])

        def place(f: int, g: int) -> Int[Array, " n"]:
            return jax.device_put(patterns[f, g].place(codes[:, f], codes[:, g]).astype(np.int32))

        places = range(len(plan.order))
        return CrossedRows(
            laid_out,
            jax.device_put(codes.T[1:]),
            tuple(tuple(place(e, f) for f in places[e + 1 :]) for e in range(plan.first_rest)),
            tuple(place(f, g) for f, g in pairs_of(plan.rest)),
            plan,
        )

    def with_rows(self, more: FactorRows, random: tuple[tuple[int, ...], ...]) -> "CrossedRows":
        """Add further rows, as :meth:`CrossedStatistics.with_rows` does."""
        return CrossedRows.from_rows(self._followed_by(more), random)

    def _followed_by(self, more: FactorRows) -> FactorRows:
        x, y, group, weight = self.rows.observations()
        label = np.argsort(np.asarray(self.rows.original_order))
        codes = self.plan.in_given_order((label[group], *self._later_codes()))
        new = np.ones(len(more.y)) if more.weight is None else more.weight
        return FactorRows(
            np.concatenate([x, more.x]),
            np.concatenate([y, more.y]),
            np.concatenate([np.column_stack(codes), more.codes]),
            np.concatenate([weight, new]),
            more.num_levels,
        )

    def _later_codes(self) -> Int[np.ndarray, "f n"]:
        """Return the levels of all factors but the first, without padding."""
        there = np.asarray(self.rows.weighted(jnp.ones(len(self.rows.y)))) > 0
        return np.asarray(self.later)[:, there]

    def by_factor(self, inputs: Callable[[Array], Array]) -> list[Rows]:
        """Lay the rows out by each factor, in the order in which the factors were given."""
        x, y, group, weight = self.rows.observations()
        codes = (group, *self._later_codes())
        found = tuple(
            Rows.from_arrays(np.asarray(inputs(jnp.asarray(x))), y, code, number, weight)
            for code, number in zip(codes, self.plan.levels, strict=True)
        )
        return list(self.plan.in_given_order(found))

    @property
    def num_rows(self) -> float:
        return self.rows.num_rows

    @property
    def num_groups(self) -> int:
        """Number of levels of all factors together."""
        return sum(self.plan.levels)

    @property
    def variance(self) -> Float[Array, ""]:
        return self.rows.variance

    @property
    def num_levels(self) -> tuple[int, ...]:
        """Number of levels of every factor, in the order in which they were given."""
        return self.plan.in_given_order(self.plan.levels)

    def labelled(self, tables: tuple) -> tuple:
        """Return tables by level in the order of the labels; factors are in the given order."""
        first = self.plan.order[0]
        return tuple(
            self.rows.in_original_order(table) if f == first else table
            for f, table in enumerate(tables)
        )

    def in_memory(self, levels: tuple) -> tuple:
        """Return the positions in memory of levels by label; factors are in the given order."""
        first, order = self.plan.order[0], self.rows.original_order
        return tuple(order[each] if f == first else each for f, each in enumerate(levels))
