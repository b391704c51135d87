"""Parquet files read a few rows at a time; every complaint names the file and the column.

One pass (:func:`index`) learns what a fit needs to know beforehand: the groups and their sizes,
means and variances, and the classes of a binary response. Memory grows with the number of groups,
not of rows.
"""

import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from nghvi._core.errors import DataError
from nghvi.data.frame import check_sizes, suggest
from nghvi.data.labels import read_labels
from nghvi.data.working_copy import Index

SUFFIXES = (".parquet", ".pq")
ROWS_AT_ONCE = 131_072
REMEMBERED_CLASSES = 3
"""One more than a binary response may have."""


class Selection(NamedTuple):
    """Which columns are read, and as what."""

    inputs: tuple[str, ...]
    group: str
    response: str | None
    """None where rows are to be predicted."""
    classes: bool = False
    """Whether the response is a label of two classes instead of a number."""

    @property
    def numeric(self) -> tuple[str, ...]:
        """Columns that hold numbers."""
        return (
            self.inputs if self.classes or self.response is None else (*self.inputs, self.response)
        )


class Part(NamedTuple):
    """Some rows of one file."""

    x: np.ndarray
    labels: np.ndarray
    y: np.ndarray


def files_of(path: str | os.PathLike) -> tuple[pathlib.Path, ...]:
    """The Parquet files that a path means: itself, or those in a folder, by name."""
    place = pathlib.Path(path)
    if place.is_dir():
        found = tuple(sorted(p for p in place.rglob("*") if p.suffix.lower() in SUFFIXES))
        if not found:
            raise DataError(f"{place}: the folder holds no Parquet file (*.parquet).")
        return found
    if not place.is_file():
        raise DataError(f"{place}: there is no such file or folder; check the path.")
    return (place,)


def fingerprint(files: Sequence[pathlib.Path]) -> list[list[Any]]:
    """Names, sizes and times of the files: tells whether they are still the same."""
    facts = ((str(f.resolve()), f.stat()) for f in files)
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in facts]


def column_names(files: Sequence[pathlib.Path]) -> list[str]:
    """Columns of the first file."""
    return list(open_file(files[0]).schema_arrow.names)


def index_names(files: Sequence[pathlib.Path]) -> set[str]:
    """Columns that hold the index of a pandas frame, which is not an input."""
    described = open_file(files[0]).schema_arrow.pandas_metadata or {}
    return {name for name in described.get("index_columns", []) if isinstance(name, str)}


def read(files: Sequence[pathlib.Path], chosen: Selection) -> Iterator[Part]:
    """All rows in the order of the files, some at a time."""
    for file in files:
        source = open_file(file)
        _check_columns(file, source.schema_arrow, chosen)
        names = [*chosen.inputs, chosen.group, *filter(None, [chosen.response])]
        first = 1
        try:
            for batch in source.iter_batches(ROWS_AT_ONCE, columns=list(dict.fromkeys(names))):
                yield _part(file, batch, chosen, first)
                first += batch.num_rows
        except OSError as error:
            raise DataError(f"{file}: the file cannot be read ({error}).") from None


def index(files: Sequence[pathlib.Path], chosen: Selection) -> Index:
    """One pass over all rows."""
    groups, classes = _Counted(), _Counted()
    moments = _Moments(len(chosen.inputs) + 1)
    largest = np.zeros(len(chosen.inputs) + 1)
    for part in read(files, chosen):
        groups.add(part.labels)
        numbers = part.y
        if chosen.classes:
            classes.add(part.y)
            numbers = np.zeros(len(part.y))
        values = np.column_stack([part.x, numbers])
        largest = np.maximum(largest, np.abs(values).max(axis=0, initial=0.0))
        with np.errstate(all="ignore"):  # sizes are checked at the end
            moments.add(values)
        if chosen.classes and len(classes.merged()[0]) >= REMEMBERED_CLASSES:
            break
    if not moments.number:
        raise DataError(f"{files[0]}: there are columns but no rows.")
    check_sizes(largest, [*chosen.inputs, str(chosen.response)])
    found = classes.merged()[0] if chosen.classes else np.array([])
    levels, sizes = groups.merged()
    if levels.dtype.kind == "O":
        raise DataError(
            f"{files[0]}: labels in column {chosen.group!r} end in NUL characters, or are very "
            "long: give the groups shorter labels."
        )
    return Index(levels, sizes, moments.mean, moments.square / moments.number, found)


def open_file(file: pathlib.Path) -> Any:
    """The file, for reading a few rows at a time."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"{file}: Parquet needs pyarrow; install nghvi[parquet].") from None
    try:
        return pyarrow.parquet.ParquetFile(file, pre_buffer=False)
    except (OSError, pyarrow.ArrowException) as error:
        said = " ".join(str(error).split())
        raise DataError(f"{file}: the file cannot be read as Parquet ({said}).") from None


def _check_columns(file: pathlib.Path, schema: Any, chosen: Selection) -> None:
    import pyarrow as pa

    kinds = {name: schema.field(name).type for name in dict.fromkeys(schema.names)}
    roles = [(chosen.group, "the group"), *((name, "an input") for name in chosen.inputs)]
    roles += [(chosen.response, "the response")] if chosen.response is not None else []
    for name, role in roles:
        if name not in kinds:
            raise DataError(
                f"{file}: there is no column {name!r} ({role}); {suggest(name, kinds)}."
            )
        if schema.names.count(name) > 1:
            raise DataError(f"{file}: column name {name!r} occurs more than once: rename one.")
    for name in chosen.numeric:
        kind = kinds[name]
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if not (number or pa.types.is_boolean(kind) or pa.types.is_decimal(kind)):
            raise DataError(
                f"{file}: column {name!r} is not numeric ({kind}): turn it into numbers first, or "
                "leave it out (columns=)."
            )


def _part(file: pathlib.Path, batch: Any, chosen: Selection, first: int) -> Part:
    """Rows as arrays; ``first``: number of the first of them in its file."""
    x = np.empty((batch.num_rows, len(chosen.inputs)))
    for j, name in enumerate(chosen.inputs):
        x[:, j] = _numbers(file, batch.column(name), name, first)
    label = batch.column(chosen.group)
    _check_valid(file, chosen.group, np.asarray(label.is_valid()), first, "has no group")
    labels = read_labels(label.to_numpy(zero_copy_only=False), chosen.group)
    if chosen.response is None:
        return Part(x, labels, np.zeros(0))
    response = batch.column(chosen.response)
    if not chosen.classes:
        return Part(x, labels, _numbers(file, response, chosen.response, first))
    _check_valid(file, chosen.response, np.asarray(response.is_valid()), first)
    return Part(x, labels, read_labels(response.to_numpy(zero_copy_only=False), chosen.response))


def _numbers(file: pathlib.Path, column: Any, name: str, first: int) -> np.ndarray:
    import pyarrow as pa

    values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    _check_valid(file, name, np.isfinite(values), first)
    return values


def _check_valid(
    file: pathlib.Path, name: str, valid: np.ndarray, first: int, what: str = "has no finite value"
) -> None:
    if not valid.all():
        row = first + int(np.argmin(valid))
        raise DataError(
            f"{file}, row {row}: column {name!r} {what} there; drop such rows or fill them in."
        )


class _Counted:
    """Distinct labels and how often each came, merged as they come."""

    def __init__(self) -> None:
        self._levels: list[np.ndarray] = []
        self._counts: list[np.ndarray] = []

    def add(self, labels: np.ndarray) -> None:
        levels, counts = np.unique(labels, return_counts=True)
        self._levels.append(levels)
        self._counts.append(counts)
        waiting = sum(len(each) for each in self._levels[1:])
        # Merging only when as much is waiting as is merged costs a logarithm, not a square.
        if waiting > len(self._levels[0]) + ROWS_AT_ONCE:
            self.merged()

    def merged(self) -> tuple[np.ndarray, np.ndarray]:
        kinds = {each.dtype.kind for each in self._levels}
        if len(kinds) > 1 and not kinds <= set("iuf"):
            self._levels = [each.astype(str) for each in self._levels]
        levels, position = np.unique(np.concatenate(self._levels), return_inverse=True)
        counts = np.bincount(position, np.concatenate(self._counts), len(levels)).astype(int)
        self._levels, self._counts = [levels], [counts]
        return levels, counts


class _Moments:
    """Means and sums of squares about them, batch by batch, so that nothing cancels."""

    def __init__(self, columns: int) -> None:
        self.number = 0
        self.mean, self.square = np.zeros(columns), np.zeros(columns)

    def add(self, values: np.ndarray) -> None:
        number = len(values)
        if not number:
            return
        mean = values.mean(axis=0)
        total = self.number + number
        moved = mean - self.mean
        self.square += ((values - mean) ** 2).sum(axis=0) + moved**2 * self.number * number / total
        self.mean += moved * number / total
        self.number = total
