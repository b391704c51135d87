"""Factor files: Kenneth French's published layout, or a plain table with a column of months.

French's files have some lines of text, a header that begins with a comma, a block of months
(yyyymm, percent, -99.99 or -999 where missing), then blocks of years, which are left out. A file
of five factors has its own SMB and HML: they are called ``smb5`` and ``hml5``.
"""

import pathlib
from collections.abc import Iterable

import numpy as np
import pandas as pd

from nghvi.data.frame import DataError
from nghvi.paper.finance.text import months, numbers, read_file

MISSING = (-99.99, -999.0)
FIVE_FACTORS = {"smb": "smb5", "hml": "hml5"}
AGREE = 0.005
"""Percent: two files may differ by less than their rounding."""


def read_factors(paths: Iterable[pathlib.Path]) -> pd.DataFrame:
    """Factors of all files by month, in percent; where files overlap they must agree."""
    found = pd.DataFrame(index=pd.PeriodIndex([], freq="M", name="month"))
    for path in paths:
        new = _read(path)
        for name in new.columns.intersection(found.columns):
            differ = (new[name] - found[name]).abs() > AGREE
            if differ.any():
                raise DataError(
                    f"{path}: {name} of {differ[differ].index[0]} is not that of the files before; "
                    "give factor files of one vintage."
                )
        found = found.combine_first(new)
    return found


def is_factors(path: pathlib.Path) -> bool:
    """Whether a CSV holds the market factor by month, in either layout."""
    lines = _lines(path)
    header = lines[0] if _is_plain(lines) else "".join(lines[i] for i in _headers(lines))
    return "mkt_rf" in _names(header)


def _read(path: pathlib.Path) -> pd.DataFrame:
    if not path.is_file():
        raise DataError(f"{path}: there is no such file.")
    lines = _lines(path)
    return _plain(path) if _is_plain(lines) else _french(path, lines)


def _lines(path: pathlib.Path) -> list[str]:
    return path.read_text(encoding="utf-8-sig", errors="replace").splitlines()


def _is_plain(lines: list[str]) -> bool:
    return bool(lines) and lines[0].split(",")[0].strip().lower() in ("month", "date")


def _headers(lines: list[str]) -> list[int]:
    return [i for i, line in enumerate(lines) if line.lstrip().startswith(",")]


def _names(header: str) -> list[str]:
    return [name.strip().lower().replace("-", "_") for name in header.split(",")[1:]]


def _plain(path: pathlib.Path) -> pd.DataFrame:
    table = read_file(path)
    month = months(path, table.iloc[:, 0])
    if month.duplicated().any():
        row = int(month.duplicated().to_numpy().argmax())
        raise DataError(f"{path}, line {row + 2}: month {month[row]} occurs twice; keep one.")
    columns = {
        name: numbers(path, table[name], ("", "NA", "nan"), "leave missing values empty.")
        for name in table.columns[1:]
    }
    return _without_codes(pd.DataFrame(columns).set_axis(pd.PeriodIndex(month, name="month")))


def _french(path: pathlib.Path, lines: list[str]) -> pd.DataFrame:
    headers = _headers(lines)
    if not headers:
        raise DataError(
            f"{path}: no header line that begins with a comma (',Mkt-RF,SMB,HML,RF'): not a CSV of "
            "French's library; unzip the CSV version and leave it as it is."
        )
    first = headers[0]
    names = _names(lines[first])
    if "rmw" in names:
        names = [FIVE_FACTORS.get(name, name) for name in names]
    index: list[pd.Period] = []
    values: list[list[float]] = []
    for number, line in enumerate(lines[first + 1 :], first + 2):
        date, *fields = (field.strip() for field in line.split(","))
        if not date.isdigit() or len(date) == 4:  # a blank line, or the block of years
            break
        month = _month(path, number, date)
        if index and month != index[-1] + 1:
            raise DataError(
                f"{path}, line {number}: {month} follows {index[-1]}; months are missing or out of "
                "order: get the file again."
            )
        index.append(month)
        values.append(_fields(path, number, fields, names))
    if not index:
        raise DataError(f"{path}, line {first + 2}: no month (yyyymm) follows the header.")
    found = pd.DataFrame(values, pd.PeriodIndex(index, freq="M", name="month"), names)
    return _without_codes(found)


def _month(path: pathlib.Path, number: int, date: str) -> pd.Period:
    if len(date) == 8:
        raise DataError(f"{path}, line {number}: {date} is a day; get the monthly file.")
    if len(date) != 6 or not 1 <= int(date[4:]) <= 12:
        raise DataError(f"{path}, line {number}: {date!r} is not a month (yyyymm).")
    return pd.Period(year=int(date[:4]), month=int(date[4:]), freq="M")


def _fields(path: pathlib.Path, number: int, fields: list[str], names: list[str]) -> list[float]:
    if len(fields) != len(names):
        raise DataError(
            f"{path}, line {number}: {len(fields)} values for {len(names)} columns; the line is "
            "cut off or edited: get the file again."
        )
    found = []
    for name, field in zip(names, fields, strict=True):
        try:
            found.append(float(field))
        except ValueError:
            raise DataError(
                f"{path}, line {number}, column {name!r}: {field!r} is not a number; missing "
                "values are -99.99."
            ) from None
    return found


def _without_codes(values: pd.DataFrame) -> pd.DataFrame:
    return values.mask(np.isclose(values.to_numpy()[..., None], MISSING).any(axis=-1))
