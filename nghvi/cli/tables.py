"""Tables in files: CSV and Parquet; every complaint names the file and, in a CSV, the line."""

import csv
import pathlib
import re
from collections.abc import Iterator

import pandas as pd

from nghvi.cli.parts import UsageError, one_line
from nghvi.data import parquet
from nghvi.data.frame import suggest

PARQUET = parquet.SUFFIXES
MEASURED = 20
"""A column with more different numbers than this is no category."""
MOSTLY = 0.9


def read_table(path: pathlib.Path) -> pd.DataFrame:
    """A table; malformed files are bad input, not a traceback."""
    suffix = path.suffix.lower()
    if suffix not in (".csv", *PARQUET):
        raise UsageError(f"{path}: give a file that ends in .csv or .parquet.")
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file; check the path.")
    try:
        table = pd.read_parquet(path) if suffix in PARQUET else pd.read_csv(path)
    except ImportError:
        raise UsageError(f"{path}: Parquet needs pyarrow; install it, or give a CSV.") from None
    except pd.errors.EmptyDataError:
        raise UsageError(f"{path}: the file is empty; it needs a line of names and rows.") from None
    except pd.errors.ParserError as error:
        raise UsageError(f"{path}: {_field_count(error)}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: the text is not UTF-8; convert the file.") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: the file cannot be read ({one_line(error)}).") from None
    if table.empty:
        raise UsageError(f"{path}: there are names but no rows.")
    if suffix == ".csv":
        _check_numbers(path, table)
    return table


def read_parts(
    path: pathlib.Path, names: list[str], size: int
) -> Iterator[tuple[pathlib.Path, int, pd.DataFrame]]:
    """Some rows of Parquet files at a time: the file, how many rows came before, the rows."""
    for file in parquet.files_of(path):
        source, before = parquet.open_file(file), 0
        for name in names:
            if name not in source.schema_arrow.names:
                known = suggest(name, source.schema_arrow.names)
                raise UsageError(f"{file}: there is no column {name!r}; {known}.")
        for batch in source.iter_batches(size, columns=names):
            rows = batch.to_pandas()
            check_complete(file, rows, before)
            yield file, before, rows
            before += len(rows)


def check_column(path: pathlib.Path, table: pd.DataFrame, name: str, flag: str) -> None:
    """A column that an argument names."""
    if name not in table.columns:
        known = suggest(name, table.columns)
        raise UsageError(f"{path}: there is no column {name!r} ({flag}); {known}.")


def check_complete(path: pathlib.Path, table: pd.DataFrame, before: int = 0) -> None:
    """No empty cells; ``before``: rows of the file before these."""
    lost = table.isna()
    for name in table.columns[lost.any()]:
        row = int(lost[name].to_numpy().argmax())
        raise UsageError(
            f"{place(path, before + row)}: column {name!r} has no value there "
            f"({int(lost[name].sum())} in all); fill the cells in or drop the rows."
        )


def place(path: pathlib.Path, row: int) -> str:
    """File and line of a row of the table."""
    if path.suffix.lower() != ".csv":
        return f"{path}, row {row + 1}"
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        filled = (reader.line_num for cells in reader if cells)
        for number, line in enumerate(filled):
            if number == row + 1:
                return f"{path}, line {line}"
    return f"{path}, row {row + 1}"


def _field_count(error: Exception) -> str:
    found = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
    if not found:
        return f"the file is not a CSV ({one_line(error)})."
    expected, line, saw = found.groups()
    return f"line {line} has {saw} fields where the others have {expected}; correct it."


def _check_numbers(path: pathlib.Path, table: pd.DataFrame) -> None:
    """A column of measurements with a few words in it would silently become categories."""
    for name in table.columns:
        column = table[name].dropna()
        if pd.api.types.is_numeric_dtype(column) or not len(column):
            continue
        numbers = pd.to_numeric(column, errors="coerce")
        if numbers.notna().mean() > MOSTLY and numbers.nunique() > MEASURED:
            bad = numbers[numbers.isna()].index[0]
            raise UsageError(
                f"{place(path, int(bad))}: {column[bad]!r} in column {name!r} is not a number, "
                "as nearly all others are; correct it."
            )
