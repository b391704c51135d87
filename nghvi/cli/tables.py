"""Tables in files: CSV and Parquet; every complaint names the file and, in a CSV, the line."""

import csv
import pathlib
import re
import warnings
from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from nghvi.cli.parts import UsageError, one_line
from nghvi.data import parquet
from nghvi.data.frame import suggest

PARQUET = parquet.SUFFIXES
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
MEASURED, FEW, MOSTLY = 20, 4, 0.5
"""A column is no category if it has more different whole numbers than the first, or more than the
second in most of its rows."""


def read_table(path: pathlib.Path) -> pd.DataFrame:
    """A table; malformed files are bad input, not a traceback."""
    suffix = path.suffix.lower()
    if suffix not in (".csv", *PARQUET):
        raise UsageError(f"{path}: give a file that ends in .csv or .parquet.")
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file; check the path.")
    try:
        table = pd.read_parquet(path) if suffix in PARQUET else _read_csv(path)
    except ImportError:
        raise UsageError(f"{path}: Parquet needs pyarrow; install it, or give a CSV.") from None
    except pd.errors.EmptyDataError:
        raise UsageError(f"{path}: the file is empty; it needs a line of names and rows.") from None
    except pd.errors.ParserError as error:
        raise UsageError(f"{path}: {_malformed(error)}") from None
    except UnicodeDecodeError:
        raise UsageError(
            f"{path}, line {_undecodable_line(path)}: the text is not UTF-8; save the file as "
            "CSV in UTF-8."
        ) from None
    except (OSError, ValueError) as error:
        reason = one_line(error).rstrip(".")
        raise UsageError(f"{path}: the file cannot be read ({reason}); check the file.") from None
    if table.empty:
        raise UsageError(f"{path}: there are names but no rows; add the rows.")
    return table


def read_parts(
    path: pathlib.Path, names: list[str], labels: Iterable[str | None], size: int
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
            check_cells(file, rows, labels, before)
            yield file, before, rows
            before += len(rows)


def check_column(path: pathlib.Path, table: pd.DataFrame, name: str, flag: str) -> None:
    """A column that an argument names."""
    if name not in table.columns:
        known = suggest(name, table.columns)
        raise UsageError(f"{path}: there is no column {name!r} ({flag}); {known}.")


def check_cells(
    path: pathlib.Path, table: pd.DataFrame, labels: Iterable[str | None], before: int = 0
) -> None:
    """No empty cells, no infinite numbers, and no stray words except in columns of labels.

    ``before``: rows of the file before these.
    """

    def complain(column: pd.Series, bad: pd.Series, problem: str, remedy: str) -> None:
        if bad.any():
            where, total = place(path, before + int(bad.to_numpy().argmax())), int(bad.sum())
            raise UsageError(
                f"{where}: column {column.name!r} {problem} there ({total} in all); {remedy}."
            )

    for name in table.columns:
        column = table[name]
        complain(column, column.isna(), "has no value", "fill the cells in or drop the rows")
        if pd.api.types.is_numeric_dtype(column):
            infinite = pd.Series(np.isinf(column.to_numpy(float)))
            complain(column, infinite, "is infinite", "correct the cells or drop the rows")
        elif name not in labels:
            _check_words(path, column)


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


def _read_csv(path: pathlib.Path) -> pd.DataFrame:
    with warnings.catch_warnings():
        # Rows with a field more than there are names would lose it, or shift, without a word.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            table = pd.read_csv(path, index_col=False, low_memory=False)
        except pd.errors.ParserWarning:
            raise UsageError(
                f"{path}: rows have more fields than line 1 has names; name every column, and "
                "leave no comma at the end of the rows."
            ) from None
    names = _names(path)
    found = [sep for sep in SEPARATORS if len(names) == 1 and sep in names[0]]
    if found:
        raise UsageError(
            f"{path}, line 1: columns are separated by {SEPARATORS[found[0]]}; save the file with "
            "commas between columns and points in numbers."
        )
    repeated = [name for i, name in enumerate(names) if name and name in names[:i]]
    if repeated:
        raise UsageError(f"{path}, line 1: the name {repeated[0]!r} occurs twice; rename one.")
    return table


def _names(path: pathlib.Path) -> list[str]:
    with open(path, newline="", encoding="utf-8-sig") as file:
        return next(cells for cells in csv.reader(file) if cells)


def _malformed(error: Exception) -> str:
    if found := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error)):
        expected, line, saw = found.groups()
        return f"line {line} has {saw} fields where the others have {expected}; correct it."
    if found := re.search(r"EOF inside string starting at row (\d+)", str(error)):
        return f"a quote that opens in line {int(found[1]) + 1} is not closed; close it."
    return f"the file is not a CSV ({one_line(error)}); save it as one."


def _undecodable_line(path: pathlib.Path) -> int:
    content = path.read_bytes()
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return content.count(b"\n", 0, error.start) + 1
    return 1


def _check_words(path: pathlib.Path, column: pd.Series) -> None:
    """A column of measurements with a few words in it would silently become categories."""
    numbers = pd.to_numeric(column.astype(str), errors="coerce")
    known = numbers.dropna()
    different = known.nunique()
    many = different > min(MEASURED, max(MOSTLY * len(column), FEW))
    measured = many or (known % 1 != 0).any()
    if measured and MOSTLY < len(known) / len(column) < 1:
        row = int(numbers.isna().to_numpy().argmax())
        raise UsageError(
            f"{place(path, row)}: {column.iloc[row]!r} in column {column.name!r} is not a number, "
            "as most others are; correct it."
        )
