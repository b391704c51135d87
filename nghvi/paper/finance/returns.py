"""Monthly returns of firms: a CRSP extract, or a long panel that is merged already.

A CRSP extract has ``permno, date, ret, siccd`` and returns as fractions; letters and the numbers
-66, -77, -88, -99 stand for returns that are missing, ``dlret`` (if there) is compounded into the
month of delisting. A merged panel has ``ticker`` (or ``firm``), ``month``, ``ret`` and ``sic``
and returns in percent.
"""

import pathlib
from typing import NamedTuple

import numpy as np
import pandas as pd

from nghvi.data.frame import DataError
from nghvi.paper.finance.text import months, numbers, place, read_file

CRSP = ("permno", "date", "ret", "siccd")
MERGED = ("firm", "month", "ret", "sic")
LETTERS = ("", ".", *"ABCDEPST")
"""Why CRSP has no return: not traded, no earlier price, halted, ..."""
CODES = (-44.0, -55.0, -66.0, -77.0, -88.0, -99.0)
NO_SIC = ("", ".", "0", "0000", "nan", "None", "<NA>", "Z")


class Returns(NamedTuple):
    """One row a firm and month: ``firm``, ``month``, ``ret`` (percent or NaN), ``sic`` or NaN."""

    table: pd.DataFrame
    repeated: int
    """Rows of the file that only repeated another one."""


def is_returns(path: pathlib.Path) -> bool:
    """Whether a file holds returns of firms."""
    columns = set(_header(path))
    return columns >= set(CRSP) or columns >= set(MERGED)


def read_returns(path: pathlib.Path) -> Returns:
    """Read one file of either kind."""
    table = _named(read_file(path))
    crsp = "permno" in table.columns
    expected = CRSP if crsp else MERGED
    lacking = [name for name in expected if name not in table.columns]
    if lacking:
        raise DataError(
            f"{path}: column {', '.join(map(repr, lacking))} is missing; a CRSP extract has "
            f"{', '.join(CRSP)}, a merged panel {', '.join(MERGED)} (or ticker for firm)."
        )
    firm, date, _, sic = (table[name] for name in expected)
    percent = _crsp_percent(path, table) if crsp else _percent(path, table["ret"])
    found = pd.DataFrame(
        {
            "firm": firm.astype(str).str.strip(),
            "month": months(path, date),
            "ret": percent,
            "sic": _sic(path, sic),
        }
    )
    return _distinct(path, found)


def _header(path: pathlib.Path) -> list[str]:
    if path.suffix == ".parquet":
        return list(_named(read_file(path)).columns)
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        names = [name.strip().lower() for name in file.readline().split(",")]
    return list(_named(pd.DataFrame(columns=names)).columns)


def _named(table: pd.DataFrame) -> pd.DataFrame:
    return table if "firm" in table.columns else table.rename(columns={"ticker": "firm"})


def _crsp_percent(path: pathlib.Path, table: pd.DataFrame) -> pd.Series:
    remedy = f"CRSP writes {', '.join(LETTERS[2:])} or leaves it empty where there is no return."
    fraction = _without_codes(numbers(path, table["ret"], LETTERS, remedy))
    if "dlret" in table.columns:
        delisting = _without_codes(numbers(path, table["dlret"], LETTERS, remedy))
        both = (1 + fraction.fillna(0)) * (1 + delisting) - 1
        fraction = fraction.where(delisting.isna(), both)
    return _percent(path, (100 * fraction).rename("ret"))


def _without_codes(values: pd.Series) -> pd.Series:
    return values.mask(values.isin(CODES))


def _percent(path: pathlib.Path, values: pd.Series) -> pd.Series:
    percent = numbers(path, values, ("", "NA", "nan"), "leave missing returns empty.")
    wrong = (percent < -100) | np.isinf(percent)
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise DataError(
            f"{place(path, row, 'ret')}: a return of {percent.iloc[row]:g} % cannot be; CRSP's are "
            "fractions (0.05), those of a merged panel are in percent (5)."
        )
    return percent


def _sic(path: pathlib.Path, values: pd.Series) -> pd.Series:
    text = values.astype(str).str.strip().str.removesuffix(".0")
    text = text.mask(text.isin(NO_SIC))
    wrong = text.notna() & ~text.str.fullmatch(r"\d{1,4}", na=False)
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise DataError(
            f"{place(path, row, str(values.name))}: {text.iloc[row]!r} is not a SIC code of up to "
            "four digits; leave it empty where there is none."
        )
    return text.str.zfill(4)


def _distinct(path: pathlib.Path, found: pd.DataFrame) -> Returns:
    """One row a firm and month.

    Rows with the same return are repetitions (CRSP adds one for every event of the month) and the
    last one's SIC code counts; two different returns are an error.
    """
    key = ["firm", "month"]
    again = found.duplicated(key, keep=False)
    if again.any():
        returns = found[again].groupby(key)["ret"]
        differ = returns.transform("min") != returns.transform("max")
        differ &= ~returns.transform("count").eq(0)
        if differ.any():
            firm, month, *_ = found[again].iloc[int(differ.to_numpy().argmax())]
            rows = found.index[(found["firm"] == firm) & (found["month"] == month)]
            lines = " and ".join(str(row + 2) for row in rows)
            raise DataError(
                f"{path}, lines {lines}, column 'ret': firm {firm} has different returns in "
                f"{month}; keep one of the rows."
            )
    kept = found.sort_values("ret", na_position="first", kind="stable")
    kept = kept.drop_duplicates(key, keep="last").sort_index()
    return Returns(kept, len(found) - len(kept))
