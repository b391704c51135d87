"""Cells without a value: None, NaN, NaT, pandas' NA, and what a masked array hides."""

from typing import Any

import numpy as np
import pandas as pd

from nghvi._core.errors import DataError

SHOWN = 3


def unmasked(values: Any) -> np.ndarray:
    """An array in which masked cells are None, so that they are not taken for their fillings."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        found = values.data.astype(object)
        found[np.ma.getmaskarray(values)] = None
        return found
    try:
        return np.asarray(values)
    except ValueError as error:  # rows of unequal length, or cells that are lists
        raise DataError(f"the data are not a table ({error}): give rows of equal length.") from None


def missing(values: np.ndarray) -> np.ndarray:
    """Which cells have no value."""
    return np.asarray(pd.isna(values), bool)


def unusable(values: np.ndarray) -> np.ndarray:
    """Which cells have no value, or an infinite one."""
    if values.dtype.kind == "f":
        return ~np.isfinite(values)
    if values.dtype.kind == "O":
        infinite = [isinstance(v, float) and np.isinf(v) for v in values]
        return missing(values) | np.array(infinite, bool)
    return missing(values)


def count(mask: np.ndarray) -> str:
    """How many rows."""
    number = int(mask.sum())
    return f"{number} row" if number == 1 else f"{number} rows"


def places(mask: np.ndarray) -> str:
    """Which rows, by position: the first is 0."""
    found = np.flatnonzero(mask)
    shown = ", ".join(map(str, found[:SHOWN])) + (", ..." if len(found) > SHOWN else "")
    return f"{'position' if len(found) == 1 else 'positions'} {shown}"
