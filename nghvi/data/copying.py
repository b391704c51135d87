"""Making a working copy: rows of Parquet files sorted into pieces, memory bounded.

Rows of a group may be anywhere in the files. A first pass has counted the groups
(:mod:`nghvi.data.parquet`), so the place of every row in the copy is known when it comes by; rows
are first thrown into buckets, each a range of the copy that fits into memory, then every bucket is
put in order and appended to the copy. Memory is bounded by a bucket and by the number of groups.
"""

import errno
import hashlib
import json
import os
import pathlib
import secrets
import shutil
from collections.abc import Sequence

import numpy as np

from nghvi._core.errors import DataError
from nghvi.data.blocks import rank_within
from nghvi.data.parquet import Selection, fingerprint, index, read
from nghvi.data.pieces import deal
from nghvi.data.working_copy import (
    DESCRIPTION,
    RECORDS,
    WorkingCopy,
    identity_in,
    open_copy,
    pieces_for,
)

FORMAT = 1
BUCKET_BYTES = 2**28


def make(
    files: Sequence[pathlib.Path],
    chosen: Selection,
    directory: pathlib.Path,
    groups_per_piece: int | None,
    seed: int,
) -> WorkingCopy:
    """The copy in ``directory``; an earlier one is used if it is of the same files as they are now.

    ``groups_per_piece=None`` leaves the size of the pieces to the data.
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
            f"{files[0]}: the response {chosen.response!r} has classes {shown}: a binary response "
            "needs exactly two."
        )
    if len(found.levels) < 2:
        raise DataError(f"{files[0]}: group column {chosen.group!r} has only one level.")
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
            f"{directory}: the working copy cannot be written ({reason}); choose another place "
            "(workdir=) with enough space."
        ) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return copy._replace(directory=directory)


def _check_directory(directory: pathlib.Path) -> None:
    occupied = directory.exists() and (not directory.is_dir() or any(directory.iterdir()))
    if occupied and identity_in(directory) is None:
        raise DataError(
            f"{directory}: it holds something other than a working copy; give another place "
            "(workdir=)."
        )


def _check_space(copy: WorkingCopy) -> None:
    rows = len(copy.dealt.members) * int(copy.slots.sum()) + copy.learnt.num_rows
    needed, free = 8 * copy.record * rows, shutil.disk_usage(copy.directory).free
    if needed > free:
        raise DataError(
            f"{copy.directory.parent}: the working copy needs {needed / 2**30:.1f} GB of disk "
            f"while it is made, and {free / 2**30:.1f} GB are free; choose another place "
            "(workdir=)."
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
    """Throw the rows into buckets, each with its place instead of the 1; the record of padding."""
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
            # Padding repeats a real row rather than zeros, so every function stays finite on it.
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
    return DataError(f"{files[0]}: the data were changed while they were read; fit again.")


def _bucket(directory: pathlib.Path, number: int) -> pathlib.Path:
    return directory / f"bucket-{number}.bin"
