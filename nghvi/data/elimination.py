"""Several grouping factors: the order in which their effects are eliminated, and what meets what.

The precision matrix of all effects has a block for every level and one for every cell, a pair of
levels of two factors that meet in a row. The factor with the most columns goes first: its levels
do not touch each other. What is left is coupled wherever two levels met the same one of it. A
factor in which the eliminated one is nested still has no coupled levels, and is eliminated next;
the others, the rest, end up in one matrix, which is dense unless it is large. Nested factors leave
no rest.

Everything here is about places and is found once, on the host.
"""

from collections.abc import Iterable
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Int

from nghvi._core.errors import DataError

PRODUCT = 50
"""A dense product of all columns takes as long per number as so many sums of single pairs."""
SMALL = 10**6
"""Products below this size are made whole, whatever they hold."""
MOST_COLUMNS, MOST_PAIRS = 3_000, 10**8
"""Of a dense rest, and of the pairs that one elimination adds up: beyond, nobody waits."""
PRODUCTS = 100
"""Products with a rest that is not dense, of an evaluation."""


class Cells(eqx.Module):
    """Pairs of levels of two factors, sorted by those of the first."""

    first: Int[Array, " c"]
    second: Int[Array, " c"]


class Update(eqx.Module):
    """Products of two cells of the eliminated factor, and the cell that each is taken off."""

    left: Int[Array, " p"]
    right: Int[Array, " p"]
    target: Int[Array, " p"]


class Step(eqx.Module):
    """The elimination of one factor; tuples have an entry for every later factor."""

    cells: tuple[Cells, ...]
    among_later: tuple[tuple[Update | None, ...], ...]
    """Between every two later factors of which the first is eliminated too; None for itself."""
    among_rest: Update | None
    """Between columns of a dense rest; None where a product of all of them is made."""


class Elimination(eqx.Module):
    """Steps, in order, and the rest."""

    order: tuple[int, ...] = eqx.field(static=True)
    """Factors as they were given, first those that are eliminated."""
    levels: tuple[int, ...] = eqx.field(static=True)
    """How many levels each has, in that order."""
    effects: tuple[int, ...] = eqx.field(static=True)
    """How many effects each level has."""
    steps: tuple[Step, ...]
    rest_cells: tuple[Cells, ...]
    """Of every two factors of the rest, in the order of :func:`pairs_of`."""

    @property
    def first_rest(self) -> int:
        """Place of the first factor that is not eliminated."""
        return len(self.steps)

    @property
    def columns(self) -> tuple[int, ...]:
        """How many effects each factor has in all."""
        return tuple(k * r for k, r in zip(self.levels, self.effects, strict=True))

    @property
    def num_rest(self) -> int:
        """Columns of the dense rest."""
        return sum(self.columns[self.first_rest :])

    @property
    def dense(self) -> bool:
        """Whether the rest is a matrix; a larger one is only multiplied with."""
        return self.num_rest <= MOST_COLUMNS

    @property
    def offsets(self) -> tuple[int, ...]:
        """The first column of each factor of the rest."""
        return tuple(sum(self.columns[self.first_rest : f]) for f in self.rest)

    @property
    def rest(self) -> range:
        """Places of the factors that are not eliminated."""
        return range(self.first_rest, len(self.order))

    def in_given_order(self, values: tuple) -> tuple:
        """Values of factors from the order of elimination to that in which they were given."""
        place = {factor: at for at, factor in enumerate(self.order)}
        return tuple(values[place[factor]] for factor in range(len(values)))

    @property
    def size(self) -> int:
        """Numbers touched by one evaluation, those of the dense factorisation by their cost."""
        pairs = sum(
            step.among_rest.left.size if step.among_rest is not None else 0 for step in self.steps
        )
        cells = sum(c.first.size for step in self.steps for c in step.cells)
        if not self.dense:
            cells += sum(c.first.size for c in self.rest_cells)
            return PRODUCTS * (sum(self.columns) + 2 * cells)
        return sum(self.columns) + cells + pairs + self.num_rest**2 + self.num_rest**3 // PRODUCT


def pairs_of(places: range) -> list[tuple[int, int]]:
    """Every two of these places."""
    return [(f, g) for f in places for g in places if f < g]


class Pattern(NamedTuple):
    """Cells of two factors as sorted numbers ``level * (levels of the other) + other level``."""

    keys: np.ndarray
    num_second: int

    @staticmethod
    def of(first: np.ndarray, second: np.ndarray, num_second: int) -> "Pattern":
        """Those of rows, or of cells, with these levels."""
        return Pattern(np.unique(first.astype(np.int64) * num_second + second), num_second)

    @property
    def first(self) -> np.ndarray:
        """Levels of the first factor."""
        return self.keys // self.num_second

    @property
    def second(self) -> np.ndarray:
        """Levels of the second factor."""
        return self.keys % self.num_second

    def place(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Where cells are."""
        return np.searchsorted(self.keys, first.astype(np.int64) * self.num_second + second)

    @property
    def nested(self) -> bool:
        """Whether every level of the first factor meets one level of the second."""
        return len(np.unique(self.first)) == len(self.keys)

    def cells(self) -> Cells:
        """For the device."""
        return Cells(_places(self.first), _places(self.second))


def eliminate(
    codes: Int[np.ndarray, "n f"], levels: tuple[int, ...], effects: tuple[int, ...]
) -> tuple[Elimination, dict[tuple[int, int], Pattern]]:
    """The elimination, and the patterns of its cells by places in its order."""
    order, num_steps = _order(codes, levels, effects)
    codes = codes[:, order]
    levels, effects = (tuple(each[f] for f in order) for each in (levels, effects))
    places = range(len(order))
    patterns = {
        (f, g): Pattern.of(codes[:, f], codes[:, g], levels[g]) for f, g in pairs_of(places)
    }
    bare = Elimination(
        order, levels, effects, (_NO_STEP,) * num_steps, _rest_cells(patterns, num_steps, places)
    )
    steps = tuple(_step(bare, patterns, e) for e in range(num_steps))
    return eqx.tree_at(lambda made: made.steps, bare, steps), patterns


def with_most_columns(
    levels: tuple[int, ...], effects: tuple[int, ...], among: Iterable[int]
) -> int:
    """The factor that goes first."""
    return max(among, key=lambda f: (levels[f] * effects[f], -f))


def _order(
    codes: np.ndarray, levels: tuple[int, ...], effects: tuple[int, ...]
) -> tuple[tuple[int, ...], int]:
    """Factors in the order of elimination, and how many of them are eliminated.

    Most columns first, among factors whose levels are not coupled yet. Levels of f are coupled by
    the elimination of e where one level of e meets several of f. Cells of a factor that is not
    coupled stay what they are: whatever the eliminated level met, its one level of f met as well.
    """
    free, order, coupled = list(range(len(levels))), list[int](), list[int]()
    while free:
        e = with_most_columns(levels, effects, free)
        order.append(e)
        free.remove(e)
        for f in list(free):
            if not Pattern.of(codes[:, e], codes[:, f], levels[f]).nested:
                free.remove(f)
                coupled.append(f)
    return (*order, *coupled), len(order)


def check_dense(plan: Elimination) -> None:
    """Refuse a rest that is not dense, for what needs one."""
    if not plan.dense:
        raise DataError(
            f"the effects of all factors but the one with most levels are {plan.num_rest:,}, and "
            f"{MOST_COLUMNS:,} is the most for crossed factors with hidden layers or a response "
            "that is not Gaussian: leave the effects of one of them out, or make its levels "
            "coarser. Nested factors may have any number."
        )


def _rest_cells(
    patterns: dict[tuple[int, int], Pattern], num_steps: int, places: range
) -> tuple[Cells, ...]:
    return tuple(patterns[pair].cells() for pair in pairs_of(range(num_steps, len(places))))


def _step(plan: Elimination, patterns: dict[tuple[int, int], Pattern], e: int) -> Step:
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


def _among_rest(
    plan: Elimination, patterns: dict[tuple[int, int], Pattern], e: int
) -> Update | None:
    """Pairs of entries of the rest that meet in a level of factor e; None if they are too many.

    Entries are laid out as :func:`entries` has them.
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
            f"the levels of the factors meet in {number:.3g} pairs, and {MOST_PAIRS:.0e} is the "
            "most: leave the effects of one factor out, or make its levels coarser."
        )
    left, right = _meeting(level, level)
    lower = column[left] >= column[right]
    left, right = left[lower], right[lower]
    return _sorted_update(left, right, column[left] * plan.num_rest + column[right])


def entries(plan: Elimination, cells: list[Cells]) -> tuple[np.ndarray, np.ndarray]:
    """Level of the eliminated factor and column of the rest of every number of these cells.

    A cell of r effects has r numbers, which come one effect after the other, not cell by cell.
    """
    level, column = [], []
    for f, offset, each in zip(plan.rest, plan.offsets, cells, strict=True):
        for effect in range(plan.effects[f]):
            level.append(np.asarray(each.first))
            column.append(offset + np.asarray(each.second) * plan.effects[f] + effect)
    return np.concatenate(level), np.concatenate(column)


def _meeting(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of positions with the same value in both."""
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
