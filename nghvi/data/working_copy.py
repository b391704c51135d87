"""A working copy of Parquet rows on disk, sorted into pieces that are read one at a time.

Rows of a group may be anywhere in the files. A first pass has counted the groups
(:mod:`nghvi.data.parquet`), so the place of every row in the copy is known when it comes by; rows
are first thrown into buckets, each a range of the copy that fits into memory, then every bucket is
put in order and appended to the copy. Memory is bounded by a bucket and by the number of groups.

A row is a record of doubles: the inputs, the response, and 1 (0 where a group is padded).
"""

import errno
import hashlib
import json
import os
import pathlib
import secrets
import shutil
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nghvi.data.blocks import rank_within
from nghvi.data.frame import DataError
from nghvi.data.parquet import Index, Selection, fingerprint, index, read
from nghvi.data.pieces import Deal, deal

FORMAT = 1
DESCRIPTION, RECORDS = "copy.json", "records.bin"
BUCKET_BYTES = 2**28
ROWS_A_PIECE = 20_000


class WorkingCopy(NamedTuple):
    """Where the copy is, and what is in it."""

    directory: pathlib.Path
    identity: str
    """Tells one copy from another: of other files, columns or pieces."""
    index: Index
    dealt: Deal

    @property
    def slots(self) -> np.ndarray:
        """Padded size of each group of a piece, in memory order."""
        counts, sizes = zip(*self.dealt.blocks, strict=True)
        return np.repeat(sizes, counts)

    @property
    def record(self) -> int:
        """Numbers in a record."""
        return len(self.index.mean) + 1

    def piece(self, number: int) -> np.ndarray:
        """The records of one piece: one contiguous read."""
        rows = int(self.slots.sum())
        flat = np.fromfile(
            self.directory / RECORDS,
            count=rows * self.record,
            offset=8 * number * rows * self.record,
        )
        if flat.size < rows * self.record:
            raise DataError(
                f"{self.directory}: {RECORDS} is truncated; remove the copy, fit again."
            )
        return flat.reshape(rows, self.record)

    def starts(self) -> np.ndarray:
        """Number of the first record of every group, in the order of the levels."""
        slots, members = self.slots, self.dealt.members
        piece, slot = np.nonzero(members >= 0)
        starts = np.empty(len(self.index.levels), int)
        starts[members[piece, slot]] = piece * int(slots.sum()) + (np.cumsum(slots) - slots)[slot]
        return starts

    def rows_of(self, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Records of these groups, and which of them (0, 1, ...) each belongs to."""
        sizes, starts = self.index.sizes[groups], self.starts()[groups]
        which = np.repeat(np.arange(len(groups)), sizes)
        within = np.arange(len(which)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        records = np.memmap(self.directory / RECORDS, float, "r").reshape(-1, self.record)
        position = starts[which] + within
        order = np.argsort(position)  # neighbours on disk are read together
        taken = np.empty((len(position), self.record))
        taken[order] = records[position[order]]
        return taken, which


def make(
    files: Sequence[pathlib.Path],
    chosen: Selection,
    directory: pathlib.Path,
    groups_a_piece: int | None,
    seed: int,
) -> WorkingCopy:
    """The copy in ``directory``; an earlier one is used if it is of the same files as they are now.

    ``groups_a_piece=None`` leaves the size of the pieces to the data.
    """
    before = fingerprint(files)
    asked = {"format": FORMAT, "files": before, "pieces": groups_a_piece, "seed": seed}
    identity = hashlib.sha256(json.dumps([asked, list(chosen)]).encode()).hexdigest()
    if _identity_in(directory) == identity:
        return open_copy(directory, identity)
    found = index(files, chosen)
    if chosen.classes and len(found.classes) != 2:
        shown = ", ".join(map(str, found.classes))
        raise DataError(
            f"{files[0]}: the response {chosen.response!r} has classes {shown}: a binary response "
            "needs exactly two."
        )
    if len(found.levels) < 2:
        raise DataError(f"{files[0]}: group column {chosen.group!r} has one level only.")
    dealt = deal(found.sizes, pieces_for(found.sizes, groups_a_piece), seed)
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


def pieces_for(sizes: np.ndarray, groups_a_piece: int | None) -> int:
    """Number of pieces with about so many groups; None: with about ROWS_A_PIECE rows."""
    if groups_a_piece is None:
        return max(1, round(float(sizes.sum()) / ROWS_A_PIECE))
    return max(1, round(len(sizes) / groups_a_piece))


def open_copy(directory: pathlib.Path, identity: str) -> WorkingCopy:
    """A copy that was made before."""
    if _identity_in(directory) != identity:
        raise DataError(
            f"{directory}: the working copy of the fit is not there any more, and known groups are "
            "predicted from their rows; put it back, or fit again."
        )
    described = json.loads((directory / DESCRIPTION).read_text())
    parts = [np.load(directory / f"{name}.npy") for name in Index._fields]
    blocks = tuple((int(count), int(size)) for count, size in described["blocks"])
    return WorkingCopy(
        directory, identity, Index(*parts), Deal(blocks, np.load(directory / "members.npy"))
    )


def remove(directory: pathlib.Path) -> None:
    """Delete a copy; a directory that holds anything else is left alone."""
    if _identity_in(directory) is not None:
        shutil.rmtree(directory)


def _identity_in(directory: pathlib.Path) -> str | None:
    try:
        return json.loads((directory / DESCRIPTION).read_text())["identity"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _check_directory(directory: pathlib.Path) -> None:
    occupied = directory.exists() and (not directory.is_dir() or any(directory.iterdir()))
    if occupied and _identity_in(directory) is None:
        raise DataError(
            f"{directory}: it holds something else than a working copy; give another place "
            "(workdir=)."
        )


def _check_space(copy: WorkingCopy) -> None:
    rows = len(copy.dealt.members) * int(copy.slots.sum()) + copy.index.num_rows
    needed, free = 8 * copy.record * rows, shutil.disk_usage(copy.directory).free
    if needed > free:
        raise DataError(
            f"{copy.directory.parent}: the working copy needs {needed / 2**30:.1f} GB of disk while "
            f"it is made, and {free / 2**30:.1f} GB are free; choose another place (workdir=)."
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
    for name, values in copy.index._asdict().items():
        np.save(copy.directory / f"{name}.npy", values, allow_pickle=False)
    np.save(copy.directory / "members.npy", copy.dealt.members)
    described = {"identity": copy.identity, "blocks": copy.dealt.blocks}
    (copy.directory / DESCRIPTION).write_text(json.dumps(described))


def _spread(
    copy: WorkingCopy, files: Sequence[pathlib.Path], chosen: Selection, bucket_rows: int
) -> np.ndarray:
    """Throw the rows into buckets, each with its place instead of the 1; the record of padding."""
    levels, starts = copy.index.levels, copy.starts()
    seen, blank = np.zeros(len(levels), int), None
    for part in read(files, chosen):
        codes = np.minimum(
            np.searchsorted(levels, part.labels.astype(levels.dtype)), len(levels) - 1
        )
        if not np.array_equal(levels[codes], part.labels.astype(levels.dtype)):
            raise _changed(files)
        y = (part.y == copy.index.classes[1]).astype(float) if chosen.classes else part.y
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
    if blank is None or not np.array_equal(seen, copy.index.sizes):
        raise _changed(files)
    return blank


def _changed(files: Sequence[pathlib.Path]) -> DataError:
    return DataError(f"{files[0]}: the data were changed while they were read; fit again.")


def _bucket(directory: pathlib.Path, number: int) -> pathlib.Path:
    return directory / f"bucket-{number}.bin"
