"""How much memory a table needs, told before it is read, and how much there is.

A number takes 8 bytes, in about four copies: the table, the design, its standardised columns and
the arrays of the fit.
"""

import os
import pathlib

from nghvi.cli.parts import UsageError
from nghvi.data import parquet

COPIES = 4
SHARE = 0.5
"""Of the free memory that a table may take if nothing is said."""
GIGABYTE = 1e9


def budget(asked: float | None) -> float:
    """Bytes that a table may take."""
    if asked is None:
        return SHARE * _free()
    if not asked > 0:
        raise UsageError(f"--memory {asked:g}: give a positive number of GB.")
    return asked * GIGABYTE


def needed(path: pathlib.Path, columns: list[str] | None = None) -> float:
    """Bytes that the columns (all, if None) of a file take; 0 for what cannot be told."""
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


def shown(size: float) -> str:
    """In words."""
    return f"{size / GIGABYTE:.2g} GB"


def _free() -> float:
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError):  # not known on this system
        return float("inf")
