"""Columns of text to numbers and months; every complaint names file, line and column."""

import pathlib
from collections.abc import Collection

import pandas as pd

from nghvi.data.frame import DataError

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
