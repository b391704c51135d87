"""The files of an asset pricing panel: monthly returns of firms, and factors.

Every error names the file, the line and the column.

A CRSP extract has ``permno, date, ret, siccd`` and returns as fractions; letters and the numbers
-66, -77, -88, -99 stand for missing returns, and ``dlret``, if present, is compounded into the
month of delisting. A merged panel has ``ticker`` (or ``firm``), ``month``, ``ret`` and ``sic``
and returns in percent.

Factors come in Kenneth French's published layout, or as a plain table with a column of months.
French's files have some lines of text, a header that begins with a comma, a block of months
(yyyymm, percent, -99.99 or -999 where missing), then blocks of years, which are left out. A file
of five factors has its own SMB and HML: they are called ``smb5`` and ``hml5``.
"""

import pathlib
from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from nghvi.data.frame import DataError

CRSP = ("permno", "date", "ret", "siccd")
MERGED = ("firm", "month", "ret", "sic")
LETTERS = ("", ".", *"ABCDEPST")
"""Why CRSP has no return: not traded, no earlier price, halted, ..."""
CODES = (-44.0, -55.0, -66.0, -77.0, -88.0, -99.0)
NO_SIC = ("", ".", "0", "0000", "nan", "None", "<NA>", "Z")


class Returns(NamedTuple):
    """One row per firm and month: ``firm``, ``month``, ``ret`` (percent or NaN), ``sic`` or NaN."""

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
            f"{place(path, row, 'ret')}: a return of {percent.iloc[row]:g} % is impossible; "
            "CRSP's are fractions (0.05), those of a merged panel are in percent (5)."
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
    """One row per firm and month.

    Rows with the same return are repetitions (CRSP adds one for every event of the month), of which
    the last one's SIC code is used; two different returns are an error.
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


MONTH_FORMATS = ("%Y-%m", "%Y-%m-%d", "%Y%m", "%Y%m%d", "%m/%d/%Y")


def read_file(path: pathlib.Path) -> pd.DataFrame:
    """A CSV as text or a Parquet file as it is, column names in lower case."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file.")
    try:
        if path.suffix == ".parquet":
            table = pd.read_parquet(path)
        else:
            table = pd.read_csv(path, dtype=str, keep_default_na=False, skip_blank_lines=False)
    except ImportError:
        raise DataError(f"{path}: Parquet needs pyarrow: install it or give a CSV.") from None
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: cannot be read as a table ({error}).") from None
    return table.rename(columns=lambda name: str(name).strip().lower())


def place(path: pathlib.Path, row: int, column: str) -> str:
    """Where a value stands: the first row of a CSV is line 2."""
    return f"{path}, line {row + 2}, column {column!r}"


def numbers(
    path: pathlib.Path, values: pd.Series, missing: Collection[str], remedy: str
) -> pd.Series:
    """Numbers, NaN where the text is one of ``missing``."""
    if pd.api.types.is_numeric_dtype(values):
        return values.astype(float)
    text = values.astype(str).str.strip()
    found = pd.to_numeric(text.where(~text.isin(missing)), errors="coerce")
    wrong = found.isna() & ~text.isin(missing)
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        where = place(path, row, str(values.name))
        raise DataError(f"{where}: {text.iloc[row]!r} is not a number; {remedy}")
    return found.astype(float)


def months(path: pathlib.Path, values: pd.Series) -> pd.Series:
    """Months of dates; a file writes them in one way throughout."""
    if pd.api.types.is_datetime64_any_dtype(values):
        return values.dt.to_period("M")
    text = values.astype(str).str.strip()
    levels = pd.Index(text.unique())
    tried = [pd.to_datetime(levels, format=form, errors="coerce") for form in MONTH_FORMATS]
    best = min(tried, key=lambda dates: int(dates.isna().sum()))
    if best.isna().any():
        bad = levels[best.isna()][0]
        row = int((text == bad).to_numpy().argmax())
        raise DataError(
            f"{place(path, row, str(values.name))}: {bad!r} is not a date like the others; write "
            "dates as 2005-01, 200501, 2005-01-31, 20050131 or 01/31/2005."
        )
    found = best.to_period("M")[levels.get_indexer(text)]
    return pd.Series(found, text.index, name=values.name)


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
    return _without_missing_codes(
        pd.DataFrame(columns).set_axis(pd.PeriodIndex(month, name="month"))
    )


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
    return _without_missing_codes(found)


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


def _without_missing_codes(values: pd.DataFrame) -> pd.DataFrame:
    return values.mask(np.isclose(values.to_numpy()[..., None], MISSING).any(axis=-1))
