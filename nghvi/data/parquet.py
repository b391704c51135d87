"""Reads Parquet files a few rows at a time, and sorts them into a working copy.

A first pass (:func:`index`) learns what a fit needs to know beforehand: the groups and their sizes,
means and variances, and the classes of a binary response. Memory grows with the number of groups,
not of rows. Every error names the file and the column.

The rows of a group may be anywhere in the files. Once the groups are counted, the place of every
row in the working copy (:mod:`nghvi.data.working_copy`) is known as soon as the row is read.
:func:`make_copy` first distributes the rows over buckets, each a range of the copy that fits into
memory; it then sorts each bucket and appends it to the copy. Its memory is bounded by the size of a
bucket and the number of groups.
"""

import errno
import hashlib
import json
import os
import pathlib
import secrets
import shutil
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from nghvi._core.errors import DataError, row_name, suggest
from nghvi.data.blocks import rank_within
from nghvi.data.cells import check_sizes
from nghvi.data.labels import read_labels
from nghvi.data.pieces import deal, pieces_for
from nghvi.data.working_copy import (
    DESCRIPTION,
    RECORDS,
    Index,
    WorkingCopy,
    identity_in,
    open_copy,
)

SUFFIXES = (".parquet", ".pq")
ROWS_AT_ONCE = 131_072
"""How many rows are read at a time."""
REMEMBERED_CLASSES = 3
"""Reading stops at so many classes, one more than a binary response may have."""


class Selection(NamedTuple):
    """The columns to read, by their role."""

    inputs: tuple[str, ...]
    group: str
    response: str | None
    """None if rows are to be predicted."""
    classes: bool = False
    """Whether the response is the label of one of two classes instead of a number."""

    @property
    def numeric(self) -> tuple[str, ...]:
        """The columns that have to hold numbers."""
        return (
            self.inputs if self.classes or self.response is None else (*self.inputs, self.response)
        )


class Part(NamedTuple):
    """Some rows of one file."""

    x: np.ndarray
    labels: np.ndarray
    y: np.ndarray


def files_of(path: str | os.PathLike) -> tuple[pathlib.Path, ...]:
    """Return the Parquet files at a path: the file itself, or all in a folder, sorted by name."""
    place = pathlib.Path(path)
    if place.is_dir():
        found = tuple(sorted(p for p in place.rglob("*") if p.suffix.lower() in SUFFIXES))
        if not found:
            raise DataError(f"{place}: the folder holds no Parquet files (*.parquet or *.pq).")
        return found
    if not place.is_file():
        raise DataError(f"{place}: there is no such file or folder; check the path.")
    return (place,)


def fingerprint(files: Sequence[pathlib.Path]) -> list[list[Any]]:
    """Return names, sizes and times of the files, which show whether they have changed."""
    facts = ((str(f.resolve()), f.stat()) for f in files)
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in facts]


def column_names(files: Sequence[pathlib.Path]) -> list[str]:
    """Return the names of the columns of the first file."""
    return list(open_file(files[0]).schema_arrow.names)


def num_ordered_levels(file: pathlib.Path, name: str) -> int:
    """Levels that an ordered category of pandas had when it was written; 0 of another column."""
    described = (open_file(file).schema_arrow.pandas_metadata or {}).get("columns", [])
    known = {each["field_name"]: each["metadata"] or {} for each in described}.get(name, {})
    return int(known.get("num_categories", 0)) if known.get("ordered") else 0


def ordered_levels(file: pathlib.Path, name: str) -> np.ndarray | None:
    """Return the levels of an ordered category of text in their order; None of another column."""
    source = open_file(file)
    if not getattr(source.schema_arrow.field(name).type, "ordered", False):
        return None
    first = next(source.iter_batches(1, columns=[name]), None)
    if first is None:
        return None
    return read_labels(first.column(name).dictionary.to_numpy(zero_copy_only=False), name)


def index_names(files: Sequence[pathlib.Path]) -> set[str]:
    """Return the columns that hold the index of a pandas frame, which is not an input."""
    described = open_file(files[0]).schema_arrow.pandas_metadata or {}
    return {name for name in described.get("index_columns", []) if isinstance(name, str)}


def read(files: Sequence[pathlib.Path], chosen: Selection) -> Iterator[Part]:
    """Yield all rows in the order of the files, a batch at a time."""
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
            raise DataError(f"{file}: the file cannot be read ({error}); write it again.") from None


def index(files: Sequence[pathlib.Path], chosen: Selection) -> Index:
    """Learn groups, moments and classes in one pass over all rows."""
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
        raise DataError(f"{files[0]}: there are columns but no rows; check the file.")
    check_sizes(largest, [*chosen.inputs, str(chosen.response)])
    found = classes.merged()[0] if chosen.classes else np.array([])
    if chosen.classes and (order := ordered_levels(files[0], str(chosen.response))) is not None:
        found = order[np.isin(order, found)]
    levels, sizes = groups.merged()
    if levels.dtype.kind == "O":
        raise DataError(
            f"{files[0]}: labels in column {chosen.group!r} end in NUL characters or are very "
            "long; use shorter labels."
        )
    return Index(levels, sizes, moments.mean, moments.square / moments.number, found)


def open_file(file: pathlib.Path) -> Any:
    """Open a file for reading a few rows at a time."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"{file}: reading Parquet needs pyarrow; install nghvi[parquet].") from None
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
            raise DataError(f"{file}: there is no column {name!r} ({role}). {suggest(name, kinds)}")
        if schema.names.count(name) > 1:
            raise DataError(f"{file}: column name {name!r} occurs more than once; rename one.")
    for name in chosen.numeric:
        kind = kinds[name]
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if not (number or pa.types.is_boolean(kind) or pa.types.is_decimal(kind)):
            raise DataError(
                f"{file}: column {name!r} is not numeric ({kind}); convert it to numbers, or leave "
                "it out (columns=)."
            )


def _part(file: pathlib.Path, batch: Any, chosen: Selection, first: int) -> Part:
    """Return a batch as arrays; ``first`` is the number of its first row in the file."""
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
            f"{file}, {row_name(row)}: column {name!r} {what} there; drop such rows or fill in the "
            "cells."
        )


class _Counted:
    """Counts how often each label occurs, from labels that arrive in batches."""

    def __init__(self) -> None:
        self._levels: list[np.ndarray] = []
        self._counts: list[np.ndarray] = []

    def add(self, labels: np.ndarray) -> None:
        levels, counts = np.unique(labels, return_counts=True)
        self._levels.append(levels)
        self._counts.append(counts)
        waiting = sum(len(each) for each in self._levels[1:])
        # Merging only when as much waits as is merged takes n log n operations, not n^2.
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
    """Accumulates means and sums of squares about them by batch, without cancellation."""

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


FORMAT = 1
"""Version of the working copy's format; a copy of another version is made again."""
BUCKET_BYTES = 2**28
"""About how much memory a bucket takes."""


def make_copy(
    files: Sequence[pathlib.Path],
    chosen: Selection,
    directory: pathlib.Path,
    groups_per_piece: int | None,
    seed: int,
) -> WorkingCopy:
    """Return a working copy in ``directory``, which is made unless it is there and up to date.

    With ``groups_per_piece=None`` the size of the pieces follows from the number of rows. ``seed``
    deals the groups to pieces.
    """
    before = fingerprint(files)
    asked = {"format": FORMAT, "files": before, "pieces": groups_per_piece, "seed": seed}
    identity = hashlib.sha256(json.dumps([asked, list(chosen)]).encode()).hexdigest()
    if identity_in(directory) == identity:
        return open_copy(directory, identity)
    found = index(files, chosen)
    if chosen.classes and len(found.classes) != 2:
        shown = ", ".join(map(str, found.classes))
        raise DataError(
            f"{files[0]}: the response {chosen.response!r} has the classes {shown}, but a binary "
            "response needs exactly two."
        )
    if len(found.levels) < 2:
        raise DataError(
            f"{files[0]}: group column {chosen.group!r} has only one level, so that effects cannot "
            "vary; name another column as the group."
        )
    dealt = deal(found.sizes, pieces_for(found.sizes, groups_per_piece), seed)
    _check_directory(directory)
    beside = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}.tmp")
    copy = WorkingCopy(beside, identity, found, dealt)
    try:
        beside.mkdir(parents=True)
        _check_space(copy)
        _write(copy, files, chosen)
        if fingerprint(files) != before:
            raise _changed(files)
        if directory.exists():
            shutil.rmtree(directory)
        os.replace(beside, directory)
    except OSError as error:
        full = error.errno == errno.ENOSPC
        reason = "the disk is full" if full else error.strerror or str(error)
        raise DataError(
            f"{directory}: the working copy cannot be written ({reason}); choose another folder "
            "with enough space (workdir=)."
        ) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return copy._replace(directory=directory)


def _check_directory(directory: pathlib.Path) -> None:
    occupied = directory.exists() and (not directory.is_dir() or any(directory.iterdir()))
    if occupied and identity_in(directory) is None:
        raise DataError(
            f"{directory}: the folder holds something other than a working copy; choose another "
            "one (workdir=)."
        )


def _check_space(copy: WorkingCopy) -> None:
    rows = len(copy.dealt.members) * int(copy.slots.sum()) + copy.learnt.num_rows
    needed, free = 8 * copy.record * rows, shutil.disk_usage(copy.directory).free
    if needed > free:
        raise DataError(
            f"{copy.directory.parent}: the working copy needs {needed / 2**30:.1f} GB of disk "
            f"space while it is made, but only {free / 2**30:.1f} GB are free; choose another "
            "folder (workdir=)."
        )


def _write(copy: WorkingCopy, files: Sequence[pathlib.Path], chosen: Selection) -> None:
    piece_rows = int(copy.slots.sum())
    bucket_rows = piece_rows * max(1, BUCKET_BYTES // (8 * piece_rows * copy.record))
    total = piece_rows * len(copy.dealt.members)
    blank = _spread(copy, files, chosen, bucket_rows)
    with open(copy.directory / RECORDS, "wb") as out:
        for start in range(0, total, bucket_rows):
            bucket = _bucket(copy.directory, start // bucket_rows)
            ordered = np.tile(blank, (min(bucket_rows, total - start), 1))
            if bucket.exists():
                spilled = np.fromfile(bucket).reshape(-1, copy.record)
                position = spilled[:, -1].view(np.int64) - start
                spilled[:, -1] = 1.0
                ordered[position] = spilled
                bucket.unlink()
            ordered.tofile(out)
        out.flush()
        os.fsync(out.fileno())
    for name, values in copy.learnt._asdict().items():
        np.save(copy.directory / f"{name}.npy", values, allow_pickle=False)
    np.save(copy.directory / "members.npy", copy.dealt.members)
    described = {"identity": copy.identity, "blocks": copy.dealt.blocks}
    (copy.directory / DESCRIPTION).write_text(json.dumps(described))


def _spread(
    copy: WorkingCopy, files: Sequence[pathlib.Path], chosen: Selection, bucket_rows: int
) -> np.ndarray:
    """Write the rows to buckets, each with its position in place of the 1.

    Returns the record that pads groups.
    """
    levels, starts = copy.learnt.levels, copy.starts()
    seen, blank = np.zeros(len(levels), int), None
    for part in read(files, chosen):
        codes = np.minimum(
            np.searchsorted(levels, part.labels.astype(levels.dtype)), len(levels) - 1
        )
        if not np.array_equal(levels[codes], part.labels.astype(levels.dtype)):
            raise _changed(files)
        y = (part.y == copy.learnt.classes[1]).astype(float) if chosen.classes else part.y
        if blank is None:
            # Padding repeats a real row instead of zeros, so that every function is finite there.
            blank = np.array([*part.x[0], y[0], 0.0])
        position = starts[codes] + seen[codes] + rank_within(codes, len(levels))
        seen += np.bincount(codes, minlength=len(levels))
        records = np.column_stack([part.x, y, position.view(float)])
        number = position // bucket_rows
        order = np.argsort(number, kind="stable")
        which, first = np.unique(number[order], return_index=True)
        for bucket, rows in zip(which, np.split(order, first[1:]), strict=True):
            with open(_bucket(copy.directory, int(bucket)), "ab") as out:
                records[rows].tofile(out)
    if blank is None or not np.array_equal(seen, copy.learnt.sizes):
        raise _changed(files)
    return blank


def _changed(files: Sequence[pathlib.Path]) -> DataError:
    return DataError(f"{files[0]}: the data changed while they were being read; fit again.")


def _bucket(directory: pathlib.Path, number: int) -> pathlib.Path:
    return directory / f"bucket-{number}.bin"
