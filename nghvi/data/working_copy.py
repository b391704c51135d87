"""Rows that stay on disk: a working copy, read one piece at a time or by group.

A row is a record of doubles: the inputs, the response, and 1 (0 for the padding of a group).
:func:`nghvi.data.parquet.make_copy` makes the copy. :class:`StreamedRows` standardises its rows for
a model.
"""

import dataclasses
import functools
import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from nghvi._core.errors import DataError
from nghvi.data.blocks import rank_within
from nghvi.data.fingerprint import Fingerprint
from nghvi.data.linear import LinearStatistics
from nghvi.data.pieces import Deal, RowsPiece, in_pieces
from nghvi.data.scaling import Scaling, add_intercept

DESCRIPTION, RECORDS = "copy.json", "records.bin"


class Index(NamedTuple):
    """What one pass over the files learnt."""

    levels: np.ndarray
    """Labels of the groups, sorted."""
    sizes: np.ndarray
    """Number of rows of each group."""
    mean: np.ndarray
    """Means of the inputs and, last, of the response."""
    variance: np.ndarray
    """Variances of the same columns."""
    classes: np.ndarray
    """The two classes in their order; empty if the response is a number."""

    @property
    def num_rows(self) -> int:
        """Number of rows of all groups."""
        return int(self.sizes.sum())


class WorkingCopy(NamedTuple):
    """A working copy of rows on disk."""

    directory: pathlib.Path
    identity: str
    """A hash that differs between copies of different files, columns or pieces."""
    learnt: Index
    dealt: Deal

    @property
    def slots(self) -> np.ndarray:
        """Padded size of each group of a piece, in memory order."""
        counts, sizes = zip(*self.dealt.blocks, strict=True)
        return np.repeat(sizes, counts)

    @property
    def record(self) -> int:
        """How many numbers a record has."""
        return len(self.learnt.mean) + 1

    def piece(self, number: int) -> np.ndarray:
        """Return the records of one piece, by one contiguous read."""
        rows = int(self.slots.sum())
        flat = np.fromfile(
            self.directory / RECORDS,
            count=rows * self.record,
            offset=8 * number * rows * self.record,
        )
        if flat.size < rows * self.record:
            raise DataError(
                f"{self.directory}: {RECORDS} is truncated; remove the working copy and fit again."
            )
        return flat.reshape(rows, self.record)

    def starts(self) -> np.ndarray:
        """Return the number of every group's first record, in the order of the levels."""
        slots, members = self.slots, self.dealt.members
        piece, slot = np.nonzero(members >= 0)
        starts = np.empty(len(self.learnt.levels), int)
        starts[members[piece, slot]] = piece * int(slots.sum()) + (np.cumsum(slots) - slots)[slot]
        return starts

    def rows_of(self, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the records of these groups, and which of the groups (0, 1, ...) each is in."""
        sizes, starts = self.learnt.sizes[groups], self.starts()[groups]
        which = np.repeat(np.arange(len(groups)), sizes)
        within = np.arange(len(which)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        records = np.memmap(self.directory / RECORDS, float, "r").reshape(-1, self.record)
        position = starts[which] + within
        order = np.argsort(position)  # neighbours on disk are read together
        taken = np.empty((len(position), self.record))
        taken[order] = records[position[order]]
        return taken, which


def open_copy(directory: pathlib.Path, identity: str) -> WorkingCopy:
    """Open a copy that was made before, or raise an error if it has been removed or replaced."""
    if identity_in(directory) != identity:
        raise DataError(
            f"{directory}: the working copy of the fit is no longer there, but predictions for "
            "known groups read their rows from it; put it back, or fit again."
        )
    described = json.loads((directory / DESCRIPTION).read_text())
    parts = [np.load(directory / f"{name}.npy") for name in Index._fields]
    blocks = tuple((int(count), int(size)) for count, size in described["blocks"])
    return WorkingCopy(
        directory, identity, Index(*parts), Deal(blocks, np.load(directory / "members.npy"))
    )


def remove(directory: pathlib.Path) -> None:
    """Delete a working copy; a directory that holds anything else is left alone."""
    if identity_in(directory) is not None:
        shutil.rmtree(directory)


def identity_in(directory: pathlib.Path) -> str | None:
    """Return the identity of the working copy in a directory, None if there is none."""
    try:
        return json.loads((directory / DESCRIPTION).read_text())["identity"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclasses.dataclass(frozen=True, eq=False)
class StreamedRows:
    """Rows in a working copy on disk, standardised as they are read.

    A model file holds this object instead of the rows: it knows where they are, and by the identity
    whether they are still the same.
    """

    directory: str
    identity: str
    intercept: bool
    """Whether a column of ones comes first."""
    scaling: Scaling
    num_rows: float
    num_groups: int
    variance: float
    """Variance of the standardised response."""

    @functools.cached_property
    def copy(self) -> WorkingCopy:
        """The working copy; an error if it is no longer that of the fit."""
        return open_copy(pathlib.Path(self.directory), self.identity)

    @property
    def facts(self) -> tuple:
        """What distinguishes these rows from others, wherever they are stored."""
        return self.identity, *self.scaling

    @property
    def num_pieces(self) -> int:
        """Number of pieces in the copy."""
        return len(self.copy.dealt.members)

    @property
    def x(self) -> Any:
        """Inputs of the first piece, whose groups are random."""
        return self.piece(0).x

    def piece(self, number: int) -> RowsPiece:
        """Read one piece."""
        records: Any = self.copy.piece(number)
        present = self.copy.dealt.members[number] >= 0
        weight = records[:, -1].copy()
        x, y = self.standardised(records)
        return RowsPiece(
            x=x,
            y=y,
            weight=weight,
            index=None,
            original_order=cast(Any, np.arange(len(present))),
            blocks=self.copy.dealt.blocks,
            num_rows=weight.sum(),
            present=present,
            whole_variance=cast(Any, np.array(self.variance)),
        )

    def size(self, effects: int, by_row: int) -> int:
        """Return how many numbers an evaluation touches, as :class:`Grouped` data do."""
        return int(self.num_rows) * by_row

    def by_group(self, values: Callable[[RowsPiece], tuple]) -> tuple[np.ndarray, ...]:
        """Compute arrays with one entry per group, piece by piece."""
        whole: list[np.ndarray] = []
        for number, codes in enumerate(self.copy.dealt.members):
            found = [np.asarray(v) for v in values(self.piece(number))]
            whole = whole or [np.empty((self.num_groups, *v.shape[1:])) for v in found]
            for out, part in zip(whole, found, strict=True):
                out[codes[codes >= 0]] = part[codes >= 0]
        return tuple(whole)

    def some_groups(self, codes: np.ndarray) -> tuple[RowsPiece, np.ndarray]:
        """Read the rows of these groups (distinct codes); return the groups' positions as well.

        Absent groups fill up the blocks, so that few programs are compiled for many requests. If no
        group is asked for, no file is read and the result is one row of zeros as a placeholder.
        """
        if not len(codes):
            nothing = np.zeros((1, len(self.scaling.centre)))
            stack = in_pieces(
                Deal(((1, 1),), np.zeros((1, 1), int)), nothing, nothing[:, 0], np.zeros(1, int)
            )
            return jax.tree.map(lambda leaf: leaf[0], stack), codes
        sizes = np.array([size for _, size in self.copy.dealt.blocks])
        block = np.searchsorted(sizes, self.copy.learnt.sizes[codes])
        counts = np.bincount(block, minlength=len(sizes))
        room = 2 ** np.ceil(np.log2(np.maximum(counts, 1))).astype(int)
        position = (np.cumsum(room) - room)[block] + rank_within(block, len(sizes))
        members = np.full(room.sum(), -1)
        members[position] = np.arange(len(codes))
        blocks = tuple((int(r), int(s)) for r, s in zip(room, sizes, strict=True))
        records, which = self.copy.rows_of(codes)
        x, y = self.standardised(records)
        stack = in_pieces(Deal(blocks, members[None]), x, y, which, variance=self.variance)
        return jax.tree.map(lambda leaf: leaf[0], stack), position

    def sums(self, random: tuple[int, ...]) -> LinearStatistics:
        """Return the sums that a linear Gaussian model needs; it reads no rows afterwards."""
        members = self.copy.dealt.members
        return LinearStatistics.from_pieces(
            lambda: map(self.piece, range(len(members))), members, random
        )

    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint of all rows, computed piece by piece."""
        parts = []
        for number, members in enumerate(self.copy.dealt.members):
            records, codes = self.copy.piece(number), np.repeat(members, self.copy.slots)
            there = records[:, -1] > 0
            parts.append(Fingerprint.of(*self.standardised(records[there]), codes[there]))
        return Fingerprint.joined(parts)

    def standardised(self, records: np.ndarray) -> tuple[Any, Any]:
        """Return inputs and response of records as the model reads them."""
        x = add_intercept(records[:, :-2], self.intercept)
        return self.scaling.apply(x), self.scaling.apply_response(records[:, -2])
