"""Cells that cannot be used: those without a value, huge ones, and text that was meant as numbers.

Without a value are None, NaN, NaT, pandas' NA, and masked cells of an array. They are either
refused, or filled in and marked by a further column (:class:`nghvi.data.coding.Gaps`).

A stray word, decimal commas or written dates turn a column of numbers into text. A model would
treat it as a category, with a coefficient for nearly every cell.
"""

import numbers
import re
from collections.abc import Container, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

from nghvi._core.errors import DataError, row_name, row_names

SHOWN = 3
"""How many examples a message shows."""
MOSTLY = 0.8
"""The share of cells that must read as numbers (or dates) for the column to be meant as such."""
FEW = 10
"""How many different whole numbers, or dates, may well be the levels of a category."""
LARGEST = 1e70
"""The largest size of values: beyond it variances of coefficients, squared ratios, overflow."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
WHOLE = re.compile(r"([+-]?)0*(\d+)(?:\.0*)?")
COMMA = re.compile(r"[+-]?\d+,\d+")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")
SIGN = r"[%$€£¥]"
SIGNED = re.compile(rf"[+-]?{SIGN}\s*[+-]?\d[\d.,]*|[+-]?\d[\d.,]*\s*{SIGN}")
DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([ T].*)?")


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


def as_numbers(values: np.ndarray) -> np.ndarray:
    """Return objects that are numbers as an array of numbers, and anything else unchanged.

    Database drivers and Parquet files give decimal numbers as Python objects.
    """
    if values.dtype.kind != "O":
        return values
    empty = missing(values)
    there = values[~empty]
    kinds = {type(v) for v in there.tolist()}
    if not kinds or not all(issubclass(k, numbers.Real | Decimal) and k is not bool for k in kinds):
        return values
    if not empty.any() and all(issubclass(k, numbers.Integral) for k in kinds):
        whole = np.array(values.tolist())
        # Labels beyond 64 bits would not survive as floats.
        return whole if whole.dtype.kind in "iu" else values
    found = np.full(values.shape, np.nan)
    found[~empty] = there.astype(float)
    return found


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
LABELLED = (
    "leave such rows out (missing='drop' in a fit), or label them: a label that was not in the fit "
    "is predicted as a new group"
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


def check_sizes(largest: np.ndarray, names: Sequence[str]) -> None:
    """Raise an error if squares or ratios of values could overflow or underflow.

    ``largest`` holds the largest absolute value of every column.
    """
    for name, size in zip(names, largest, strict=True):
        if (size > LARGEST) or 0 < size < 1 / LARGEST:
            raise DataError(
                f"column {name!r} has values of size {size:.1g}, whose squares exceed the range of "
                f"floating point numbers; measure it in another unit, such as {size:.1g} of this "
                "one."
            )


def misread(values: Sequence[Any] | np.ndarray, name: str) -> str | None:
    """Return what is wrong with a column of text that was meant as numbers or dates, or None.

    Some of the cells may be numbers already. The sentence includes the remedy.
    """
    number, texts = pd.factorize(np.array([_text(v) for v in values], object))
    times = np.bincount(number, minlength=len(texts))

    def cells(pattern: re.Pattern) -> np.ndarray:
        return np.array([pattern.fullmatch(text) is not None for text in texts])

    def mostly(found: np.ndarray) -> bool:
        return bool(times[found].sum() > MOSTLY * times.sum())

    many = min(FEW, len(number) / 2)
    column = f"column {name!r}"
    plain, dates = cells(NUMBER), cells(DATE) & ~cells(NUMBER)
    if mostly(plain):
        # Leading zeros show that cells are codes, such as postcodes, not numbers.
        codes = any(re.match(r"0\d", text) for text in texts)
        if not ((plain & ~cells(WHOLE)).any() or plain.sum() > many) or codes:
            return None
        if plain.all():
            return (
                f"{column} holds numbers as text ({_examples(texts, number, plain)}); convert it "
                f"to numbers (data[{name!r}].astype(float))."
            )
        return (
            f"{column} holds numbers except in {times[~plain].sum()} of {len(number)} cells "
            f"({_examples(texts, number, ~plain)}); correct these, or make them missing "
            f"(pandas.to_numeric(data[{name!r}], errors='coerce')) and drop or impute them."
        )
    comma, thousands = cells(COMMA), cells(THOUSANDS)
    if mostly(plain | comma) and (comma & ~thousands).any():
        shown = _examples(texts, number, comma)
        return (
            f"{column} holds numbers with decimal commas, which are text ({shown}); read the file "
            "with decimal=',', or replace the commas by points."
        )
    if mostly(plain | thousands):
        shown = _examples(texts, number, thousands)
        return (
            f"{column} holds numbers with commas between thousands, which are text ({shown}); read "
            "the file with thousands=',', or remove the commas."
        )
    signed = cells(SIGNED)
    if mostly(plain | signed) and signed.sum() > many:
        return (
            f"{column} holds numbers with a sign of their unit, which are text "
            f"({_examples(texts, number, signed)}); remove it and convert the rest to numbers "
            f"(pandas.to_numeric(data[{name!r}].str.strip('%$€£¥ ')))."
        )
    if mostly(dates) and dates.sum() > many:
        shown = _examples(texts, number, dates)
        return f"{column} holds dates as text ({shown}); {dates_remedy(name)}"
    return None


def dates_remedy(name: str) -> str:
    """Return what to do about a column of dates."""
    return (
        "convert them to a number, such as the days since the first one "
        f"((d - d.min()).dt.days with d = pandas.to_datetime(data[{name!r}])), or to a category "
        "with few levels, such as the month."
    )


def _text(value: Any) -> str:
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return repr(float(value))
    return str(value).strip()


def _examples(texts: np.ndarray, number: np.ndarray, chosen: np.ndarray) -> str:
    """Return some of the chosen cells with their rows, in words."""
    places = np.flatnonzero(chosen[number])[:SHOWN]
    return ", ".join(f"{texts[number[i]]!r} in {row_name(i)}" for i in places)
