"""Codes the inputs of a table as columns of numbers, and keeps what it learnt at the fit.

    numbers, truth values       x
    a category a, b, c          x[T.b], x[T.c]: 1 where the cell holds that level
    one with many levels        no column: if it is pooled, its levels are groups
    a cell without a value      a filling, and missing(x) = 1 (see Gaps)

In a linear model without an intercept, the first category has a column for every level, ``x[a]`` to
``x[c]``. A formula codes ``C(x)`` in the same way.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nghvi._core.errors import DataError, warn
from nghvi.data.cells import AFTERWARDS, AT_FIT, check_there, misread, missing
from nghvi.data.frame import Cells, Table, check_finite
from nghvi.data.labels import encode_groups, one_kind

MANY_LEVELS, FEW_ROWS = 20, 10
"""A category has many levels if it has more than 20 and, on average, fewer than 10 rows each."""
MOST_LEVELS = 200
"""A category with more levels than this has many, however many rows there are."""
SHOWN = 5
"""How many unknown levels a message shows."""


class Gaps(NamedTuple):
    """The values that replace missing cells, and the indicator columns that mark them.

    A missing cell is given its column's filling, and ``missing(x)`` is 1 in its row::

        numbers         the median (of an even number of cells, the lower middle one)
        categories      the first level, so that missing(x) acts as a level of its own
    """

    fillings: dict[str, Any]
    """Fillings of the columns that had gaps at the fit."""
    told: tuple[tuple[str, ...], ...]
    """Columns that share an indicator, because they lacked values in the same rows."""

    @staticmethod
    def learn(columns: Mapping[str, Any]) -> "Gaps":
        """Learn fillings from training data; columns are arrays or categories of pandas."""
        fillings: dict[str, Any] = {}
        told: dict[bytes, list[str]] = {}
        for name, values in columns.items():
            empty = missing(values)
            if empty.all():
                raise DataError(f"column {name!r} has no values at all; leave it out.")
            if empty.any():
                fillings[name] = _typical(values[~empty])
                told.setdefault(empty.tobytes(), []).append(name)
        return Gaps(fillings, tuple(map(tuple, told.values())))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the indicators."""
        return tuple(f"missing({', '.join(columns)})" for columns in self.told)

    def indicator_of(self, column: str) -> str | None:
        """Return the name of the indicator that marks a column's gaps, None if it has none."""
        each = zip(self.told, self.names, strict=True)
        return next((name for columns, name in each if column in columns), None)

    def fill(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns with gaps filled, followed by the indicators."""
        filled = {
            name: _filled(values, self.fillings[name]) if name in self.fillings else values
            for name, values in columns.items()
        }
        for name, members in zip(self.names, self.told, strict=True):
            if name in filled:
                raise DataError(
                    f"column {name!r} has the name of an indicator of missing cells; rename it."
                )
            empty = [missing(columns[member]) for member in members]
            filled[name] = np.logical_or.reduce(empty).astype(float)
        return filled


NO_GAPS = Gaps({}, ())


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


def _typical(known: Any) -> Any:
    """Return the median of numbers or truth values, the first level of anything else."""
    if isinstance(known, pd.Categorical):
        return known.remove_unused_categories().categories[0]
    values = np.asarray(known)
    if values.dtype.kind == "O":
        values = pd.Series(list(values)).infer_objects().to_numpy()
    ordered = np.sort(values if values.dtype.kind != "O" else values.astype(str))
    middle = (len(ordered) - 1) // 2 if ordered.dtype.kind in "biuf" else 0
    return ordered[middle].item() if ordered.dtype.kind in "biufU" else ordered[middle]


def _filled(values: Any, filling: Any) -> Any:
    empty = missing(values)
    if isinstance(values, pd.Categorical):
        known = values if filling in values.categories else values.add_categories([filling])
        return known.fillna(filling)
    if not empty.any():
        return values
    if values.dtype.kind == "f":
        return np.where(empty, filling, values)
    found = np.array(values, object)
    found[empty] = filling
    return pd.Series(list(found)).infer_objects().to_numpy()
