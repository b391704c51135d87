"""Recognises text that was meant as numbers or dates: a stray word, decimal commas, written dates.

A model would treat such a column as a category, with a coefficient for nearly every cell.
"""

import numbers
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from nghvi._core.errors import row_name
from nghvi.data.labels import NUMBER, WHOLE
from nghvi.data.missing import SHOWN

MOSTLY = 0.8
"""The share of cells that must read as numbers (or dates) for the column to be meant as such."""
FEW = 10
"""How many different whole numbers, or dates, may well be the levels of a category."""
COMMA = re.compile(r"[+-]?\d+,\d+")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")
DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([ T].*)?")


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
