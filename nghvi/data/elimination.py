"""Several grouping factors: the order in which their effects are eliminated, and which levels meet.

The precision matrix of all effects has a block for every level and one for every cell, a pair of
levels of two factors that meet in a row. The factor with the most columns is eliminated first,
since its levels are not coupled to each other. Eliminating it couples all levels that met the same
level of it. If it is nested in another factor, the levels of that one stay uncoupled, and it is
eliminated next. The remaining factors, the rest, end up in one matrix, which is dense unless it is
large. Nested factors leave no rest.

Everything here concerns positions in arrays and is found once, on the host.
"""

from collections.abc import Iterable
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Int

from nghvi._core.errors import DataError

PRODUCT = 50
"""How many numbers of a dense product take as long as the sum of one single pair."""
SMALL = 10**6
"""Products below this size are always computed as a whole."""
MOST_COLUMNS, MOST_PAIRS = 3_000, 10**8
"""The most columns of a dense rest, and the most pairs that one elimination may add up: beyond
these an evaluation would take too long."""
PRODUCTS = 100
"""About how many products with a rest that is not dense an evaluation takes."""


class Cells(eqx.Module):
    """Pairs of levels of two factors that meet, sorted by the level of the first."""

    first: Int[Array, " c"]
    second: Int[Array, " c"]


class Update(eqx.Module):
    """Products of two cells of the eliminated factor, and the cell each is subtracted from."""

    left: Int[Array, " p"]
    right: Int[Array, " p"]
    target: Int[Array, " p"]


class Step(eqx.Module):
    """The elimination of one factor; tuples have one entry per later factor."""

    cells: tuple[Cells, ...]
    among_later: tuple[tuple[Update | None, ...], ...]
    """Updates between pairs of later factors of which the first is eliminated too; None for a
    factor with itself."""
    among_rest: Update | None
    """Update between columns of a dense rest; None if all of them are multiplied at once."""


class Elimination(eqx.Module):
    """The steps of an elimination in their order, and the rest."""

    order: tuple[int, ...] = eqx.field(static=True)
    """Numbers of the factors as they were given, beginning with those that are eliminated."""
    levels: tuple[int, ...] = eqx.field(static=True)
    """How many levels each factor has, in that order."""
    effects: tuple[int, ...] = eqx.field(static=True)
    """How many effects a level of each factor has, in that order."""
    steps: tuple[Step, ...]
    rest_cells: tuple[Cells, ...]
    """Cells of every two factors of the rest, in the order of :func:`pairs_of`."""

    @property
    def first_rest(self) -> int:
        """Position of the first factor that is not eliminated."""
        return len(self.steps)

    @property
    def columns(self) -> tuple[int, ...]:
        """How many effects each factor has in total: levels times effects per level."""
        return tuple(k * r for k, r in zip(self.levels, self.effects, strict=True))

    @property
    def num_rest(self) -> int:
        """Number of columns of the rest."""
        return sum(self.columns[self.first_rest :])

    @property
    def dense(self) -> bool:
        """Whether the rest is stored as a matrix; a larger one is only multiplied by vectors."""
        return self.num_rest <= MOST_COLUMNS

    @property
    def offsets(self) -> tuple[int, ...]:
        """The first column of each factor of the rest."""
        return tuple(sum(self.columns[self.first_rest : f]) for f in self.rest)

    @property
    def rest(self) -> range:
        """Positions of the factors that are not eliminated."""
        return range(self.first_rest, len(self.order))

    def in_given_order(self, values: tuple) -> tuple:
        """Return values by factor in the order they were given in, not that of elimination."""
        place = {factor: at for at, factor in enumerate(self.order)}
        return tuple(values[place[factor]] for factor in range(len(values)))

    @property
    def size(self) -> int:
        """Cost of one evaluation in numbers touched, the dense factorisation weighted by time."""
        pairs = sum(
            step.among_rest.left.size if step.among_rest is not None else 0 for step in self.steps
        )
        cells = sum(c.first.size for step in self.steps for c in step.cells)
        if not self.dense:
            cells += sum(c.first.size for c in self.rest_cells)
            return PRODUCTS * (sum(self.columns) + 2 * cells)
        return sum(self.columns) + cells + pairs + self.num_rest**2 + self.num_rest**3 // PRODUCT


def pairs_of(places: range) -> list[tuple[int, int]]:
    """Return all pairs of these positions."""
    return [(f, g) for f in places for g in places if f < g]


class Pattern(NamedTuple):
    """Cells of two factors, as sorted numbers ``level * (levels of the other) + other level``."""

    keys: np.ndarray
    num_second: int

    @staticmethod
    def of(first: np.ndarray, second: np.ndarray, num_second: int) -> "Pattern":
        """Return the cells that rows, or other cells, with these levels form."""
        return Pattern(np.unique(first.astype(np.int64) * num_second + second), num_second)

    @property
    def first(self) -> np.ndarray:
        """Level of the first factor in each cell."""
        return self.keys // self.num_second

    @property
    def second(self) -> np.ndarray:
        """Level of the second factor in each cell."""
        return self.keys % self.num_second

    def place(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return the positions of cells with these levels."""
        return np.searchsorted(self.keys, first.astype(np.int64) * self.num_second + second)

    def turned(self, num_first: int) -> "Pattern":
        """Return the same cells with the second factor first."""
        return Pattern.of(self.second, self.first, num_first)

    @property
    def nested(self) -> bool:
        """Whether every level of the first factor meets only one level of the second."""
        return len(np.unique(self.first)) == len(self.keys)

    def cells(self) -> Cells:
        """Return the cells as arrays on the device."""
        return Cells(_places(self.first), _places(self.second))


Patterns = dict[tuple[int, int], Pattern]
"""Cells by pair of factors; the smaller number comes first."""


def patterns_of(codes: Int[np.ndarray, "n f"], levels: tuple[int, ...]) -> Patterns:
    """Return the cells that rows with these levels form, for every two factors."""
    return {
        (f, g): Pattern.of(codes[:, f], codes[:, g], levels[g])
        for f, g in pairs_of(range(len(levels)))
    }


def eliminate(
    given: Patterns, levels: tuple[int, ...], effects: tuple[int, ...]
) -> tuple[Elimination, Patterns]:
    """Plan the elimination; return the patterns of its cells by pair of positions as well."""
    order, num_steps = _order(given, levels, effects)
    places = range(len(order))
    patterns = {(f, g): _between(given, levels, order[f], order[g]) for f, g in pairs_of(places)}
    levels, effects = (tuple(each[f] for f in order) for each in (levels, effects))
    bare = Elimination(
        order, levels, effects, (_NO_STEP,) * num_steps, _rest_cells(patterns, num_steps, places)
    )
    steps = tuple(_step(bare, patterns, e) for e in range(num_steps))
    return eqx.tree_at(lambda made: made.steps, bare, steps), patterns


def with_most_columns(
    levels: tuple[int, ...], effects: tuple[int, ...], among: Iterable[int]
) -> int:
    """Return the factor with the most columns, which is eliminated first."""
    return max(among, key=lambda f: (levels[f] * effects[f], -f))


def _between(given: Patterns, levels: tuple[int, ...], f: int, g: int) -> Pattern:
    """Return the cells of two factors, in either order."""
    return given[f, g] if f < g else given[g, f].turned(levels[g])


def _order(
    given: Patterns, levels: tuple[int, ...], effects: tuple[int, ...]
) -> tuple[tuple[int, ...], int]:
    """Return the factors in the order of elimination, and how many of them are eliminated.

    The factor with the most columns goes first, among those whose levels are not coupled yet.
    Eliminating e couples levels of f if one level of e meets several of f. An uncoupled factor f
    gains no cells: whatever a level of e met, its only level of f has met as well.
    """
    free, order, coupled = list(range(len(levels))), list[int](), list[int]()
    while free:
        e = with_most_columns(levels, effects, free)
        order.append(e)
        free.remove(e)
        for f in list(free):
            if not _between(given, levels, e, f).nested:
                free.remove(f)
                coupled.append(f)
    return (*order, *coupled), len(order)


def check_dense(plan: Elimination) -> None:
    """Raise an error if the rest is too large to be dense, for models that need it to be."""
    if not plan.dense:
        raise DataError(
            f"all factors but the largest have {plan.num_rest:,} effects, but at most "
            f"{MOST_COLUMNS:,} are allowed for crossed factors with hidden layers or a response "
            "that is not Gaussian. Leave the effects of one factor out, or merge its levels. "
            "Nested factors may have any number."
        )


def _rest_cells(patterns: Patterns, num_steps: int, places: range) -> tuple[Cells, ...]:
    return tuple(patterns[pair].cells() for pair in pairs_of(range(num_steps, len(places))))


def _step(plan: Elimination, patterns: Patterns, e: int) -> Step:
    later = range(e + 1, len(plan.order))

    def between(f: int, g: int) -> Update | None:
        if f == g:
            return None
        left, right = _meeting(patterns[e, f].first, patterns[e, g].first)
        target = patterns[f, g].place(patterns[e, f].second[left], patterns[e, g].second[right])
        return _sorted_update(left, right, target)

    return Step(
        tuple(patterns[e, f].cells() for f in later),
        tuple(tuple(between(f, g) for g in later if g >= f) for f in later if f < plan.first_rest),
        _among_rest(plan, patterns, e),
    )


def _among_rest(plan: Elimination, patterns: Patterns, e: int) -> Update | None:
    """Return pairs of entries of the rest that meet in a level of factor e.

    None means that one product of all columns is faster. Entries are laid out as by
    :func:`entries`.
    """
    if not plan.num_rest or not plan.dense:
        return None
    level, column = entries(plan, [patterns[e, f].cells() for f in plan.rest])
    each = np.bincount(level, minlength=plan.levels[e])
    number = float(np.sum(each * (each + 1.0) / 2))
    whole = float(plan.levels[e]) * plan.num_rest**2
    if whole <= SMALL or number * PRODUCT > whole:
        return None
    if number > MOST_PAIRS:
        raise DataError(
            f"the levels of the factors meet in {number:.3g} pairs, but at most {MOST_PAIRS:.0e} "
            "are allowed; leave the effects of one factor out, or merge its levels."
        )
    left, right = _meeting(level, level)
    lower = column[left] >= column[right]
    left, right = left[lower], right[lower]
    return _sorted_update(left, right, column[left] * plan.num_rest + column[right])


def entries(plan: Elimination, cells: list[Cells]) -> tuple[np.ndarray, np.ndarray]:
    """Return the level of the eliminated factor and the column of the rest of all cells' entries.

    A cell of r effects has r entries; entries are ordered by effect, then by cell.
    """
    level, column = [], []
    for f, offset, each in zip(plan.rest, plan.offsets, cells, strict=True):
        for effect in range(plan.effects[f]):
            level.append(np.asarray(each.first))
            column.append(offset + np.asarray(each.second) * plan.effects[f] + effect)
    return np.concatenate(level), np.concatenate(column)


def _meeting(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return all pairs of positions at which both arrays have the same value."""
    order = np.argsort(right, kind="stable")
    start = np.searchsorted(right[order], left, "left")
    number = np.searchsorted(right[order], left, "right") - start
    first = np.repeat(np.arange(len(left)), number)
    within = np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number)
    return first, order[np.repeat(start, number) + within]


def _sorted_update(left: np.ndarray, right: np.ndarray, target: np.ndarray) -> Update:
    order = np.argsort(target, kind="stable")
    return Update(*(_places(each[order]) for each in (left, right, target)))


def _places(index: np.ndarray) -> Int[Array, " n"]:
    return jax.device_put(index.astype(np.int32))


_NO_STEP = Step((), (), None)
