"""Codes the inputs of a table as columns of numbers, and keeps what it learnt at the fit.

    numbers, truth values       x
    a category a, b, c          x[T.b], x[T.c]: 1 where the cell holds that level
    one with many levels        no column: if it is pooled, its levels are groups
    a cell without a value      a filling, and missing(x) = 1 (see Gaps)

In a linear model without an intercept, the first category has a column for every level, ``x[a]`` to
``x[c]``. A formula codes ``C(x)`` in the same way.
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
"""A category has many levels if it has more than 20 and, on average, fewer than 10 rows each."""
MOST_LEVELS = 200
"""A category with more levels than this has many, however many rows there are."""
SHOWN = 5
"""How many unknown levels a message shows."""


class Coding(NamedTuple):
    """How the columns of a table become the columns of a model."""

    inputs: tuple[str, ...]
    """Columns of the data, except for groups and facts."""
    levels: dict[str, np.ndarray]
    """Levels of the inputs that are categories with columns of their own."""
    full: str | None = None
    """The category whose first level has a column as well, if there is one."""
    gaps: Gaps = NO_GAPS
    pooled: tuple[str, ...] = ()
    """Inputs that are categories whose levels are groups."""

    @staticmethod
    def learn(cells: Cells, *, indicator: bool, intercept: bool, pool: bool) -> "Coding":
        """Learn the coding from training data.

        ``indicator`` fills missing cells and marks them; ``intercept`` says that the model has one,
        which makes columns of first levels redundant; ``pool`` makes the levels of categories with
        many levels groups.
        """
        columns = cells.inputs
        if not indicator:
            check_there(columns, AT_FIT)
        levels, pooled = {}, []
        for name, values in columns.items():
            if not is_category(values):
                continue
            found = _levels(values, name)
            most = min(MOST_LEVELS, max(MANY_LEVELS, cells.num_rows / FEW_ROWS))
            if len(found) > most:
                _check_many(name, found, cells.num_rows, pool)
                remedy = f"label them (data[{name!r}].fillna('unknown'))"
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
        """Return the coded columns and the labels of all groups.

        Columns are found by their names if ``by_name``, otherwise by their positions.
        """
        in_order = zip(self.inputs, cells.inputs.values(), strict=True)
        columns = self._chosen(cells) if by_name else dict(in_order)
        check_there(columns, AFTERWARDS, self.gaps.fillings)
        for name, values in columns.items():
            if is_category(values) and name not in self.levels and name not in self.pooled:
                raise DataError(
                    f"column {name!r} held numbers at the fit and holds text now; convert it "
                    f"(pandas.to_numeric(data[{name!r}]))."
                )
        labels = [one_kind(np.asarray(columns.pop(name)), name) for name in self.pooled]
        coded: dict[str, np.ndarray] = {}
        for name, values in self.gaps.fill(columns).items():
            coded |= self.coded(name, values)
        names = tuple(coded)
        if len(names) < len(self.gaps.names) + sum(map(len, map(self.names_of, columns))):
            raise DataError(
                f"coded columns of {', '.join(map(repr, self.levels))} have the same names as "
                "other columns; rename the column that has brackets in its name."
            )
        matrix = np.column_stack([*coded.values()]) if coded else np.zeros((cells.num_rows, 0))
        check_finite(matrix, names)
        return Table(matrix, names, _joined(cells.group, labels), cells.named)

    def names_of(self, column: str) -> tuple[str, ...]:
        """Return the names of the model's columns for one input, without its indicator."""
        if column not in self.levels:
            return (column,)
        levels = self.levels[column]
        if column == self.full:
            return tuple(f"{column}[{level}]" for level in levels)
        return tuple(f"{column}[T.{level}]" for level in levels[1:])

    def coded(self, name: str, values: Any) -> dict[str, np.ndarray]:
        """Code the complete cells of one input as columns of the model, by name."""
        if name not in self.levels:
            return {name: np.asarray(values, float)}
        levels = self.levels[name]
        labels = one_kind(np.asarray(values), name)
        codes = encode_groups(labels, levels)
        if (codes < 0).any():
            new = ", ".join(map(repr, pd.unique(labels[codes < 0])[:SHOWN].tolist()))
            known = ", ".join(map(repr, levels[: 2 * SHOWN].tolist()))
            raise DataError(
                f"column {name!r} holds {new}, which did not occur in the training data (it had "
                f"{known}): correct these cells, leave the rows out, or refit with them."
            )
        chosen = range(len(levels)) if name == self.full else range(1, len(levels))
        held = [(codes == code).astype(float) for code in chosen]
        return dict(zip(self.names_of(name), held, strict=True))

    def _chosen(self, cells: Cells) -> dict[str, Any]:
        """Return the columns of the fit in its order; further columns are ignored."""
        lacking = [name for name in self.inputs if name not in cells.inputs]
        if lacking:
            said = f"missing {', '.join(map(repr, lacking))}"
            if cells.others:
                said += f" and unexpected {', '.join(map(repr, cells.others[:SHOWN]))}"
            raise DataError(f"the columns differ from those of the fit: {said}.")
        return {name: cells.inputs[name] for name in self.inputs}


def is_category(values: Any) -> bool:
    """Return whether a column holds levels: text, or a categorical type of pandas or polars."""
    return isinstance(values, pd.Categorical) or values.dtype.kind != "f"


def _levels(values: Any, name: str) -> np.ndarray:
    """Return the levels of a category in its own order if it has one, otherwise sorted."""
    known = values[~missing(values)]
    if isinstance(values, pd.Categorical):
        return one_kind(known.remove_unused_categories().categories.to_numpy(), name)
    if said := misread(known, name):
        raise DataError(
            f"{said} If a category is meant, convert it (data[{name!r}].astype('category'))."
        )
    found = np.unique(one_kind(known, name))
    if len(found) == 1:
        warn(f"column {name!r} holds {str(found[0])!r} in every row and is left out of the model.")
    return found


def _check_many(name: str, levels: np.ndarray, num_rows: int, pool: bool) -> None:
    shown = ", ".join(map(repr, levels[:3].tolist()))
    said = (
        f"column {name!r} is a category with {len(levels)} levels ({shown}, ...) in {num_rows} rows"
    )
    if len(levels) > num_rows / 2:
        raise DataError(
            f"{said}, nearly one per row; leave the column out, or derive from it what matters for "
            "the response."
        )
    if not pool:
        raise DataError(
            f"{said}, and each level would get its own coefficient. Make its levels groups "
            f"(group={name!r}, or a list such as group=['school', {name!r}]), merge levels, or "
            "leave the column out."
        )


def _joined(group: Any, pooled: list[np.ndarray]) -> Any:
    if not pooled:
        return group
    own = group if isinstance(group, tuple) else () if group is None else (group,)
    every = (*own, *pooled)
    return every if len(every) > 1 else every[0]
