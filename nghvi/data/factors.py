"""Rows with several grouping factors, and their reduction to sums over levels and cells."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from nghvi.data.elimination import Elimination, Pattern, eliminate, pairs_of
from nghvi.data.grouped import Moments, Rows
from nghvi.data.linear import LinearStatistics


class FactorRows(eqx.Module):
    """Rows, each with a level of every factor."""

    x: Float[np.ndarray, "n d"]
    y: Float[np.ndarray, " n"]
    codes: Int[np.ndarray, "n f"]
    weight: Float[np.ndarray, " n"] | None
    num_levels: tuple[int, ...] = eqx.field(static=True)

    def of_factor(self, factor: int) -> Rows:
        """The rows laid out by the levels of one factor."""
        codes = self.codes[:, factor]
        return Rows.from_arrays(self.x, self.y, codes, self.num_levels[factor], self.weight)


class CrossedStatistics(eqx.Module):
    """Cross products of a linear model's columns by level and by cell: no rows are left.

    ``factors`` are in the order in which they were given, all about the same least squares fit;
    everything else is in the order of elimination. Levels are in the factors' memory order.
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
        """``random``: columns with effects of every factor; ``known``: the last coefficients."""
        factors: list[LinearStatistics] = []
        for f, columns in enumerate(random):
            centre = np.asarray(factors[0].centre) if factors else None
            laid_out = rows.of_factor(f)
            factors.append(LinearStatistics.from_rows(laid_out, columns, centre, known))
        codes = np.column_stack(
            [np.asarray(f.original_order)[c] for f, c in zip(factors, rows.codes.T, strict=True)]
        )
        plan, patterns = eliminate(codes, rows.num_levels, tuple(map(len, random)))
        weight = np.ones(len(rows.y)) if rows.weight is None else rows.weight

        def grams(f: int, g: int) -> Float[Array, "r s c"]:
            pattern: Pattern = patterns[f, g]
            first, second = plan.order[f], plan.order[g]
            place = pattern.place(codes[:, first], codes[:, second])
            sums = [
                [np.bincount(place, weight * rows.x[:, i] * rows.x[:, j]) for j in random[second]]
                for i in random[first]
            ]
            return jax.device_put(np.array(sums))

        places = range(len(plan.order))
        return CrossedStatistics(
            tuple(factors),
            plan,
            tuple(tuple(grams(e, f) for f in places[e + 1 :]) for e in range(plan.first_rest)),
            tuple(grams(f, g) for f, g in pairs_of(plan.rest)),
        )

    @property
    def centre(self) -> Float[Array, " q"]:
        return self.factors[0].centre

    @property
    def square_total(self) -> Float[Array, ""]:
        return self.factors[0].square_total

    @property
    def effects_square(self) -> Float[Array, " r"]:
        """Mean square of the columns with effects, of all factors."""
        return jnp.concatenate([factor.effects_square for factor in self.factors])

    @property
    def num_groups(self) -> int:
        """Levels of all factors."""
        return sum(factor.num_groups for factor in self.factors)

    @property
    def num_rows(self) -> Float[Array, ""]:
        return self.factors[0].num_rows

    @property
    def variance(self) -> Float[Array, ""]:
        return self.factors[0].variance

    @property
    def in_order(self) -> tuple[LinearStatistics, ...]:
        """The factors in the order of elimination."""
        return tuple(self.factors[f] for f in self.plan.order)

    def moments(self, coef: Float[Array, " q"]) -> tuple[Moments, ...]:
        """Moments of every factor at these coefficients, in the order of elimination."""
        return tuple(factor.moments(_as_they_are, coef, ()) for factor in self.in_order)

    def in_given_order(self, values: tuple) -> tuple:
        """Values of factors from the order of elimination to that in which they were given."""
        place = {factor: at for at, factor in enumerate(self.plan.order)}
        return tuple(values[place[factor]] for factor in range(len(values)))


def _as_they_are(x: Array) -> Array:
    return x
