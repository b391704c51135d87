"""A working copy of rows on disk, in pieces that are read one at a time.

A row is a record of doubles: the inputs, the response, and 1 (0 where a group is padded). How the
copy is made is in :mod:`nghvi.data.copying`.
"""

import json
import pathlib
import shutil
from typing import NamedTuple

import numpy as np

from nghvi._core.errors import DataError
from nghvi.data.pieces import Deal

DESCRIPTION, RECORDS = "copy.json", "records.bin"
ROWS_PER_PIECE = 20_000
"""Rows of a piece unless its number of groups is given."""


class Index(NamedTuple):
    """What one pass over the files has learnt."""

    levels: np.ndarray
    """Labels of the groups, sorted."""
    sizes: np.ndarray
    """Rows of each group."""
    mean: np.ndarray
    """Of the inputs and, last, the response."""
    variance: np.ndarray
    classes: np.ndarray
    """The two classes, sorted; empty where the response is a number."""

    @property
    def num_rows(self) -> int:
        """Rows of all groups."""
        return int(self.sizes.sum())


class WorkingCopy(NamedTuple):
    """Where the copy is, and what is in it."""

    directory: pathlib.Path
    identity: str
    """Tells one copy from another: of other files, columns or pieces."""
    learnt: Index
    dealt: Deal

    @property
    def slots(self) -> np.ndarray:
        """Padded size of each group of a piece, in memory order."""
        counts, sizes = zip(*self.dealt.blocks, strict=True)
        return np.repeat(sizes, counts)

    @property
    def record(self) -> int:
        """Numbers in a record."""
        return len(self.learnt.mean) + 1

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
        starts = np.empty(len(self.learnt.levels), int)
        starts[members[piece, slot]] = piece * int(slots.sum()) + (np.cumsum(slots) - slots)[slot]
        return starts

    def rows_of(self, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Records of these groups, and which of them (0, 1, ...) each belongs to."""
        sizes, starts = self.learnt.sizes[groups], self.starts()[groups]
        which = np.repeat(np.arange(len(groups)), sizes)
        within = np.arange(len(which)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        records = np.memmap(self.directory / RECORDS, float, "r").reshape(-1, self.record)
        position = starts[which] + within
        order = np.argsort(position)  # neighbours on disk are read together
        taken = np.empty((len(position), self.record))
        taken[order] = records[position[order]]
        return taken, which


def pieces_for(sizes: np.ndarray, groups_per_piece: int | None) -> int:
    """Number of pieces with about so many groups; None: with about ROWS_PER_PIECE rows."""
    if groups_per_piece is None:
        return max(1, round(float(sizes.sum()) / ROWS_PER_PIECE))
    return max(1, round(len(sizes) / groups_per_piece))


def open_copy(directory: pathlib.Path, identity: str) -> WorkingCopy:
    """A copy that was made before."""
    if identity_in(directory) != identity:
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
    if identity_in(directory) is not None:
        shutil.rmtree(directory)


def identity_in(directory: pathlib.Path) -> str | None:
    """Which copy is in a directory, if one is."""
    try:
        return json.loads((directory / DESCRIPTION).read_text())["identity"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
