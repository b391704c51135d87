"""Tables in CSV and Parquet files; every error names the file and, in a CSV, the line.

The memory that a table needs is estimated before it is read. A number takes 8 bytes, in about four
copies: the table, the design, its standardised columns and the arrays of the fit.
"""

import argparse
import contextlib
import csv
import os
import pathlib
import re
import sys
import warnings
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from nghvi._core.errors import naming_rows, suggest
from nghvi.cli import UsageError, one_line
from nghvi.data import parquet

if TYPE_CHECKING:
    from nghvi.estimators._base import MixedEstimator

PARQUET = parquet.SUFFIXES
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
MEASURED, FEW, MOSTLY = 20, 4, 0.5
"""A column is not a category if it has more different whole numbers than the first, or more than
the second in most of its rows."""


REMEDY = (
    "fill the cells in, leave such rows out with --missing drop, or fit with --missing indicator"
)
LONGEST_CELL = 2**31 - 1
"""Characters; the csv module's own limit is 131,072."""


class Csv(NamedTuple):
    """The signs with which a CSV file is written."""

    sep: str = ","
    decimal: str = "."
    thousands: str | None = None

    @staticmethod
    def of(asked: Mapping[str, Any]) -> "Csv":
        """Return the signs that the arguments of a command state."""
        form = Csv(asked.get("sep") or ",", asked.get("decimal") or ".", asked.get("thousands"))
        if form.decimal == form.sep or form.thousands in (form.sep, form.decimal):
            raise UsageError(
                f"--sep {form.sep!r}, --decimal {form.decimal!r} and --thousands "
                f"{form.thousands!r}: they must differ; with decimal commas, columns are usually "
                "separated by semicolons (--sep ';')."
            )
        return form


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments about the signs in a CSV, and about rows with empty cells."""
    parser.add_argument(
        "--sep", type=_character, help="column separator of a CSV, by default , (tab: '\\t')"
    )
    parser.add_argument("--decimal", type=_character, help="decimal sign of a CSV, by default .")
    parser.add_argument(
        "--thousands", type=_character, help="thousands separator of a CSV, by default none"
    )
    parser.add_argument(
        "--missing",
        choices=("error", "drop", "indicator"),
        default="error",
        help="what to do with rows that have an empty cell in a column that is used: refuse them "
        "(error), leave them out (drop), or fill in the cells and add a column that marks them "
        "(indicator, at a fit; predictions remember it)",
    )


def _character(text: str) -> str:
    sign = {"\\t": "\t", "tab": "\t"}.get(text, text)
    if len(sign) != 1 or sign.isalnum() or sign in "\"'\n\r-+":
        raise argparse.ArgumentTypeError(f"{text!r}: give a single character, such as ';' or ','")
    return sign


def without_missing(path: pathlib.Path, table: pd.DataFrame, missing: str) -> pd.DataFrame:
    """Return the complete rows if others are to be dropped, and print how many are."""
    if missing != "drop":
        return table
    empty = table.isna()
    lost = empty.any(axis=1)
    if lost.all():
        raise UsageError(f"{path}: every row has an empty cell; --missing drop leaves none.")
    if lost.any():
        columns = ", ".join(f"{name!r} {n}" for name, n in empty.sum().items() if n)
        print(
            f"nghvi: {path}: {int(lost.sum())} of {len(table)} rows are left out because they have "
            f"empty cells (in {columns})",
            file=sys.stderr,
        )
    return table[~lost]


def read_table(
    path: pathlib.Path, form: Csv = Csv(), columns: list[str] | None = None
) -> pd.DataFrame:
    """Return a table; a malformed file is bad input and raises no other error.

    ``columns``: those to read from Parquet; a CSV is read whole.
    """
    suffix = path.suffix.lower()
    if suffix not in (".csv", *PARQUET):
        raise UsageError(f"{path}: give a file that ends in .csv or .parquet.")
    if not path.is_file():
        there = "it is not a regular file" if path.exists() else "there is no such file"
        raise UsageError(f"{path}: {there}; check the path.")
    try:
        parquet_file = suffix in PARQUET
        table = pd.read_parquet(path, columns=columns) if parquet_file else _read_csv(path, form)
    except ImportError:
        raise UsageError(f"{path}: Parquet needs pyarrow; install it, or give a CSV.") from None
    except pd.errors.EmptyDataError:
        raise UsageError(
            f"{path}: the file is empty; it needs a line of column names, and rows."
        ) from None
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
        raise UsageError(f"{path}: the file has column names but no rows; add the rows.")
    return table.reset_index(drop=True)


def read_checked(
    path: pathlib.Path,
    form: Csv,
    names: list[str],
    role: str,
    estimator: "MixedEstimator",
    missing: str,
) -> pd.DataFrame:
    """Return the named columns of a table, checked as a model reads them.

    Rows may be left out. ``role`` is what messages call the columns.
    """
    table = read_table(path, form)
    for name in names:
        check_column(path, table, name, role)
    table, reader = without_missing(path, table[names], missing), estimator.reader_
    check_cells(
        path, table, estimator.group_columns_, bounds=reader.bounds, may_lack=reader.may_lack
    )
    return table


def read_parts(
    path: pathlib.Path,
    names: list[str],
    labels: Iterable[str | None],
    size: int,
    missing: str = "error",
    bounds: Iterable[str] = (),
    may_lack: Container[str] = (),
) -> Iterator[tuple[pathlib.Path, int, pd.DataFrame]]:
    """Yield some rows of Parquet files: the file, how many rows came before, and the rows."""
    for file in parquet.files_of(path):
        source, before = parquet.open_file(file), 0
        for name in names:
            if name not in source.schema_arrow.names:
                known = suggest(name, source.schema_arrow.names)
                raise UsageError(f"{file}: there is no column {name!r}. {known}")
        for batch in source.iter_batches(size, columns=names):
            rows = batch.to_pandas().reset_index(drop=True)
            number, rows = len(rows), without_missing(file, rows, missing)
            check_cells(file, rows, labels, before, bounds, may_lack)
            yield file, before, rows
            before += number


def check_column(path: pathlib.Path, table: pd.DataFrame, name: str, flag: str) -> None:
    """Raise an error unless a table has the column that an argument names."""
    if name not in table.columns:
        known = suggest(name, table.columns)
        raise UsageError(f"{path}: there is no column {name!r} ({flag}). {known}")


def check_cells(
    path: pathlib.Path,
    table: pd.DataFrame,
    labels: Iterable[str | None],
    before: int = 0,
    bounds: Iterable[str] = (),
    may_lack: Container[str] = (),
) -> None:
    """Raise an error if there are empty cells, infinite numbers or stray words.

    ``before``: rows of the file before these. Words are allowed in the columns ``labels``, infinite
    numbers in ``bounds``, and empty cells in ``may_lack``.
    """

    def complain(column: pd.Series, bad: pd.Series, problem: str, remedy: str) -> None:
        if bad.any():
            row = int(table.index[int(bad.to_numpy().argmax())])  # rows may have been left out
            where, total = place(path, before + row), int(bad.sum())
            raise UsageError(
                f"{where}: column {column.name!r} {problem} there ({total} in all); {remedy}."
            )

    for name in table.columns:
        column = table[name]
        if name not in may_lack:
            complain(column, column.isna(), "has no value", REMEDY)
        if pd.api.types.is_numeric_dtype(column):
            if name in bounds:
                continue
            infinite = pd.Series(np.isinf(column.to_numpy(float)))
            complain(column, infinite, "is infinite", "correct the cells or drop the rows")
        elif name not in labels:
            _check_words(path, column.dropna(), before)


def num_ordered_levels(path: pathlib.Path, column: pd.Series) -> int:
    """Return how many levels an ordered category has, or had when Parquet was written; else 0."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return len(column.dtype.categories) if column.dtype.ordered else 0
    parquet_file = path.suffix.lower() in PARQUET
    return parquet.num_ordered_levels(path, str(column.name)) if parquet_file else 0


def check_classes(path: pathlib.Path, column: pd.Series) -> None:
    """Raise an error if a class of an ordered category has no row.

    Parquet records that a category of numbers is ordered, but not in which order; a message says
    so.
    """
    number, there = num_ordered_levels(path, column), np.unique(column)
    if isinstance(column.dtype, pd.CategoricalDtype) or not number:
        return
    if number > len(there):
        raise UsageError(
            f"{path}: column {column.name!r} is an ordered category that has {number} classes, of "
            f"which only {len(there)} occur ({', '.join(map(str, there))}): the data do not say "
            "where the others begin and end; remove them (cat.remove_unused_categories in pandas), "
            "or merge each with a neighbour."
        )
    print(
        f"nghvi: {path}: column {column.name!r} is an ordered category of numbers, whose order "
        f"Parquet does not record; it is assumed to be {' < '.join(map(str, there))}. To state "
        "another, make its classes text (cat.rename_categories in pandas).",
        file=sys.stderr,
    )


def place(path: pathlib.Path, row: int) -> str:
    """Return the file and the line of a row of the table, in words."""
    return f"{path}, {_line(path, row)}"


def named_as_in(
    path: pathlib.Path, table: pd.DataFrame | None
) -> contextlib.AbstractContextManager[None]:
    """Make messages inside call the rows of the table as the file has them.

    Some rows of the file may have been left out: the index of the table says which row of the file
    each is. None stands for rows that stay on disk.
    """
    return naming_rows(lambda row: _line(path, row if table is None else int(table.index[row])))


def _line(path: pathlib.Path, row: int) -> str:
    """Return the line of a row of a CSV in words; elsewhere the number of the row, from 1."""
    if path.suffix.lower() == ".csv":
        with _cells(path) as reader:
            filled = (reader.line_num for cells in reader if cells)
            for number, line in enumerate(filled):
                if number == row + 1:
                    return f"line {line}"
    return f"row {row + 1}"


@contextlib.contextmanager
def _cells(path: pathlib.Path, sep: str = ",") -> Iterator[Any]:
    """Open a CSV and return a reader of its rows that knows which line it is at."""
    before = csv.field_size_limit(LONGEST_CELL)
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            yield csv.reader(file, delimiter=sep)
    finally:
        csv.field_size_limit(before)


def _read_csv(path: pathlib.Path, form: Csv) -> pd.DataFrame:
    _check_names(path, form.sep)
    with warnings.catch_warnings():
        # Rows with a field more than there are names would lose it, or shift, without a word.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            return pd.read_csv(
                path,
                index_col=False,
                low_memory=False,
                sep=form.sep,
                decimal=form.decimal,
                thousands=form.thousands,
            )
        except pd.errors.ParserWarning:
            raise UsageError(
                f"{path}: rows have more fields than line 1 has names; name every column, and "
                f"put no {form.sep!r} at the end of the rows."
            ) from None


def _check_names(path: pathlib.Path, sep: str) -> None:
    """Raise an error unless the first line separates the columns and names them differently."""
    with _cells(path, sep) as reader:
        try:
            names: list[str] = next((cells for cells in reader if cells), [])
        except csv.Error as error:
            raise UsageError(
                f"{path}, line 1: this is not a CSV file ({error}); save it as one."
            ) from None
    found = [other for other in SEPARATORS if len(names) == 1 and other in names[0]]
    if found:
        raise UsageError(
            f"{path}, line 1: columns are separated by {SEPARATORS[found[0]]}; give --sep "
            f"{found[0]!r}, and --decimal , if numbers have decimal commas."
        )
    repeated = [name for name, number in Counter(names).items() if name and number > 1]
    if repeated:
        raise UsageError(f"{path}, line 1: the name {repeated[0]!r} occurs twice; rename one.")


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


def _shown(cell: object) -> str:
    text = repr(cell)
    return text if len(text) < 60 else f"{text[:50]}... ({len(text)} characters)"


def _check_words(path: pathlib.Path, column: pd.Series, before: int) -> None:
    """Raise an error if a column of measurements has a few words in it."""
    numbers = pd.to_numeric(column.astype(str), errors="coerce")
    known = numbers.dropna()
    different = known.nunique()
    many = different > min(MEASURED, max(MOSTLY * len(column), FEW))
    measured = many or (known % 1 != 0).any()
    if measured and MOSTLY < len(known) / len(column) < 1:
        bad = int(numbers.isna().to_numpy().argmax())
        where = place(path, before + int(column.index[bad]))
        raise UsageError(
            f"{where}: {_shown(column.iloc[bad])} in column {column.name!r} is not a number, as "
            "most others are; correct it."
        )


COPIES = 4
SHARE = 0.5
"""The part of the free memory that a table may take unless told otherwise."""
GIGABYTE = 1e9


def memory_budget(asked: float | None) -> float:
    """Return how many bytes a table may take."""
    if asked is None:
        return SHARE * _free()
    if not asked > 0:
        raise UsageError(f"--memory {asked:g}: give a positive number of GB.")
    return asked * GIGABYTE


def memory_needed(path: pathlib.Path, columns: list[str] | None = None) -> float:
    """Return how many bytes columns of a file (all, if None) take; 0 if that is unknown."""
    if not path.is_file():
        return 0
    if path.suffix.lower() not in parquet.SUFFIXES:
        return COPIES * path.stat().st_size
    described = parquet.open_file(path).metadata
    total = 0
    for i in range(described.num_row_groups):
        group = described.row_group(i)
        for j in range(group.num_columns):
            column = group.column(j)
            if columns is None or column.path_in_schema in columns:
                total += max(8 * group.num_rows, column.total_uncompressed_size)
    return COPIES * total


def in_gigabytes(size: float) -> str:
    """Return a number of bytes in words."""
    return f"{size / GIGABYTE:.2g} GB"


def _free() -> float:
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError):  # not known on this system
        return float("inf")
