"""Cells without a value: None, NaN, NaT, pandas' NA, and masked cells of an array.

They are either refused, or filled in and marked by a further column (:class:`Gaps`).
"""

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nghvi._core.errors import DataError, row_names

SHOWN = 3
"""How many examples a message shows."""


def unmasked(values: Any) -> np.ndarray:
    """Return an array in which masked cells are None, so that their fill values are not read."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        found = values.data.astype(object)
        found[np.ma.getmaskarray(values)] = None
        return found
    try:
        return np.asarray(values)
    except ValueError as error:  # rows of unequal length, or cells that are lists
        raise DataError(f"the data are not a table ({error}); pass rows of equal length.") from None


def missing(values: Any) -> np.ndarray:
    """Return which cells have no value."""
    return np.asarray(pd.isna(values), bool)


def unusable(values: np.ndarray) -> np.ndarray:
    """Return which cells have no value or an infinite one."""
    if values.dtype.kind == "f":
        return ~np.isfinite(values)
    if values.dtype.kind == "O":
        infinite = [isinstance(v, float) and np.isinf(v) for v in values]
        return missing(values) | np.array(infinite, bool)
    return missing(values)


def count(mask: np.ndarray) -> str:
    """Return the number of rows in words, such as ``3 rows``."""
    number = int(mask.sum())
    return f"{number} row" if number == 1 else f"{number} rows"


def places(mask: np.ndarray) -> str:
    """Return the names of some rows, in words."""
    found = np.flatnonzero(mask)
    return row_names(found[:SHOWN]) + (", ..." if len(found) > SHOWN else "")


AT_FIT = (
    "fill the cells in, leave such rows out (missing='drop'), or let the model learn what a gap "
    "means (missing='indicator')"
)
KNOWN = (
    "offsets, trials, bounds and weights are never filled in, so leave such rows out "
    "(missing='drop' in a fit)"
)
AFTERWARDS = (
    "the fit has not learnt what a gap there means, so fill the cells in, leave the rows out, or "
    "fit with missing='indicator' to rows that have such gaps"
)


def check_there(columns: Mapping[str, Any], remedy: str, may_lack: Container[str] = ()) -> None:
    """Raise an error that names missing or infinite cells.

    ``remedy`` says what to do about missing ones; the columns ``may_lack`` may have them.
    """
    empty = {name: missing(v) for name, v in columns.items() if name not in may_lack}
    if found := _listed(empty):
        raise DataError(f"missing values (NaN or empty) in column {found}; {remedy}.")
    infinite = {name: unusable(np.asarray(v)) & ~missing(v) for name, v in columns.items()}
    if found := _listed(infinite):
        raise DataError(
            f"infinite values (inf) in column {found}; correct the cells or leave the rows out."
        )


def _listed(found: Mapping[str, np.ndarray]) -> str:
    return ", ".join(f"{n!r} ({count(m)}, {places(m)})" for n, m in found.items() if m.any())


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
