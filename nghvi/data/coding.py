"""Inputs as they come, coded as columns of numbers; what is learnt at the fit is kept.

    numbers, truth values       x
    a category a, b, c          x[T.b], x[T.c]: 1 where the cell holds that level
    one with many levels        no column: where it is pooled, its levels are groups
    a cell without a value      a filling, and missing(x) = 1 (see Gaps)

The first category of a linear model without an intercept has a column for every level, ``x[a]`` to
``x[c]``. It is the coding of ``C(x)`` in a formula.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nghvi._core.errors import DataError, warn
from nghvi.data.frame import Cells, Table, check_finite
from nghvi.data.labels import encode_groups, one_kind
from nghvi.data.missing import AFTERWARDS, AT_FIT, NO_GAPS, Gaps, check_there, missing
from nghvi.data.text import misread

MANY_LEVELS, FEW_ROWS = 20, 10
"""A category of more levels, with fewer rows per level, is one of many levels."""
MOST_LEVELS = 200
"""And so is one of more levels than these, however many rows there are."""
SHOWN = 5


class Coding(NamedTuple):
    """How the columns of a table become those of a model."""

    inputs: tuple[str, ...]
    """Columns of the data, without those of groups and facts."""
    levels: dict[str, np.ndarray]
    """Of the categories among them that have columns."""
    full: str | None = None
    """The category whose first level has a column, too."""
    gaps: Gaps = NO_GAPS
    pooled: tuple[str, ...] = ()
    """Categories whose levels are groups."""

    @staticmethod
    def learn(cells: Cells, *, indicator: bool, intercept: bool, pool: bool) -> "Coding":
        """From training data.

        ``indicator``: whether gaps are filled and told; ``intercept``: whether one makes a column
        of the first level superfluous; ``pool``: whether categories of many levels are groups.
        """
        columns = cells.inputs
        if not indicator:
            check_there(columns, AT_FIT)
        levels, pooled = {}, []
        for name, values in columns.items():
            if not is_category(values):
                continue
            found = _levels(values, name)
            if _are_many(len(found), cells.num_rows):
                _check_many(name, found, cells.num_rows, pool)
                remedy = f"give them a label (data[{name!r}].fillna('unknown'))"
                check_there({name: values}, remedy)
                pooled.append(name)
            else:
                levels[name] = found
        full = None if intercept else next(iter(levels), None)
        gaps = NO_GAPS
        if indicator:
            gaps = Gaps.learn(columns)
        return Coding(tuple(columns), levels, full, gaps, tuple(pooled))

    def table(self, cells: Cells, *, by_name: bool) -> Table:
        """Columns of numbers, and labels of all groups.

        ``by_name``: whether columns are known by their names, or by their places.
        """
        in_order = zip(self.inputs, cells.inputs.values(), strict=True)
        columns = self._chosen(cells) if by_name else dict(in_order)
        check_there(columns, AFTERWARDS, self.gaps.fillings)
        for name, values in columns.items():
            _check_kind(name, values, name in self.levels or name in self.pooled)
        labels = [one_kind(np.asarray(columns.pop(name)), name) for name in self.pooled]
        coded: dict[str, np.ndarray] = {}
        for name, values in self.gaps.fill(columns).items():
            coded |= self.coded(name, values)
        names = tuple(coded)
        if len(names) < len(self.gaps.names) + sum(map(len, map(self.names_of, columns))):
            raise DataError(
                f"columns of {', '.join(map(repr, self.levels))} are called as others are: rename "
                "the column that has brackets in its name."
            )
        matrix = np.column_stack([*coded.values()]) if coded else np.zeros((cells.num_rows, 0))
        check_finite(matrix, names)
        return Table(matrix, names, _joined(cells.group, labels), cells.named)

    def names_of(self, column: str) -> tuple[str, ...]:
        """The columns of the model that are made of one of the data, its indicator apart."""
        if column not in self.levels:
            return (column,)
        levels = self.levels[column]
        if column == self.full:
            return tuple(f"{column}[{level}]" for level in levels)
        return tuple(f"{column}[T.{level}]" for level in levels[1:])

    def coded(self, name: str, values: Any) -> dict[str, np.ndarray]:
        """The columns of the model that are made of complete cells of one column."""
        if name not in self.levels:
            return {name: np.asarray(values, float)}
        levels = self.levels[name]
        labels = one_kind(np.asarray(values), name)
        codes = encode_groups(labels, levels)
        if (codes < 0).any():
            new = ", ".join(map(repr, pd.unique(labels[codes < 0])[:SHOWN].tolist()))
            known = ", ".join(map(repr, levels[: 2 * SHOWN].tolist()))
            raise DataError(
                f"column {name!r} holds {new}, which the fit has not seen (it has seen {known}): "
                "correct these cells, leave the rows out, or fit again with them."
            )
        chosen = range(len(levels)) if name == self.full else range(1, len(levels))
        held = [(codes == code).astype(float) for code in chosen]
        return dict(zip(self.names_of(name), held, strict=True))

    def _chosen(self, cells: Cells) -> dict[str, Any]:
        """The columns of the fit, in its order; others are not looked at."""
        lacking = [name for name in self.inputs if name not in cells.inputs]
        if lacking:
            said = f"missing {', '.join(map(repr, lacking))}"
            if cells.others:
                said += f" and unexpected {', '.join(map(repr, cells.others[:SHOWN]))}"
            raise DataError(f"the columns differ from those of the fit: {said}.")
        return {name: cells.inputs[name] for name in self.inputs}


def is_category(values: Any) -> bool:
    """Whether a column holds levels: text, or what pandas or polars call a category."""
    return isinstance(values, pd.Categorical) or values.dtype.kind != "f"


def _levels(values: Any, name: str) -> np.ndarray:
    """In the order of a category that has one, otherwise sorted."""
    known = values[~missing(values)]
    if isinstance(values, pd.Categorical):
        return one_kind(known.remove_unused_categories().categories.to_numpy(), name)
    if said := misread(known, name):
        raise DataError(
            f"{said} If a category is meant, make it one (data[{name!r}].astype('category'))."
        )
    found = np.unique(one_kind(known, name))
    if len(found) == 1:
        warn(f"column {name!r} holds {str(found[0])!r} in every row: it is left out of the model.")
    return found


def _are_many(number: int, num_rows: int) -> bool:
    return number > MOST_LEVELS or number > max(MANY_LEVELS, num_rows / FEW_ROWS)


def _check_many(name: str, levels: np.ndarray, num_rows: int, pool: bool) -> None:
    shown = ", ".join(map(repr, levels[:3].tolist()))
    said = (
        f"column {name!r} is a category of {len(levels)} levels ({shown}, ...) in {num_rows} rows"
    )
    if len(levels) > num_rows / 2:
        raise DataError(
            f"{said}, nearly one for every row: leave the column out, or make of it what matters "
            "for the response."
        )
    if not pool:
        raise DataError(
            f"{said}, and every level would have a coefficient of its own: let its levels be "
            f"groups (group={name!r}, or a list such as group=['school', {name!r}]), merge levels, "
            "or leave the column out."
        )


def _check_kind(name: str, values: Any, expected: bool) -> None:
    """A column that held numbers holds numbers, and a category is one."""
    if is_category(values) and not expected:
        raise DataError(
            f"column {name!r} held numbers at the fit and holds text now: give numbers "
            f"(pandas.to_numeric(data[{name!r}]))."
        )


def _joined(group: Any, pooled: list[np.ndarray]) -> Any:
    if not pooled:
        return group
    own = group if isinstance(group, tuple) else () if group is None else (group,)
    every = (*own, *pooled)
    return every if len(every) > 1 else every[0]
