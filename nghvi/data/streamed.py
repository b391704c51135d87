"""Pieces of grouped data for mini-batches: cut from rows in memory, or read from a working copy."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any, cast

import jax
import numpy as np

from nghvi.data.blocks import rank_within
from nghvi.data.fingerprint import Fingerprint
from nghvi.data.grouped import Rows
from nghvi.data.linear import LinearStatistics
from nghvi.data.pieces import Deal, RowsPiece, deal, in_pieces
from nghvi.data.scaling import Scaling, add_intercept
from nghvi.data.working_copy import WorkingCopy, open_copy, pieces_for


class StackedPieces:
    """Pieces of rows in memory."""

    def __init__(self, rows: Rows, groups_per_piece: int | None, seed: int) -> None:
        observed = rows.observations()
        # By the order of the group codes, so that a working copy of the same rows is dealt alike.
        group = np.argsort(rows.original_order)[observed.group]
        sizes = np.bincount(group, minlength=rows.num_groups)
        dealt = deal(sizes, pieces_for(sizes, groups_per_piece), seed)
        self.members, self.num_pieces = dealt.members, len(dealt.members)
        self._stack = in_pieces(dealt, *observed._replace(group=group))

    def piece(self, number: int) -> RowsPiece:
        """One of them."""
        return jax.tree.map(lambda leaf: leaf[number], self._stack)


@dataclasses.dataclass(frozen=True, eq=False)
class StreamedRows:
    """Rows in a working copy on disk, standardised as they are read.

    A model file holds this, not the rows: where they are, and how to tell whether they are still
    the same.
    """

    directory: str
    identity: str
    intercept: bool
    """Whether a column of ones comes first."""
    scaling: Scaling
    num_rows: float
    num_groups: int
    variance: float
    """Of the standardised response."""

    @functools.cached_property
    def copy(self) -> WorkingCopy:
        """The working copy, if it is still the one of the fit."""
        return open_copy(pathlib.Path(self.directory), self.identity)

    @property
    def facts(self) -> tuple:
        """What tells these rows from others, wherever they are."""
        return self.identity, *self.scaling

    @property
    def num_pieces(self) -> int:
        """Pieces of the copy."""
        return len(self.copy.dealt.members)

    @property
    def x(self) -> Any:
        """Inputs of the first piece: groups at random."""
        return self.piece(0).x

    def piece(self, number: int) -> RowsPiece:
        """One piece."""
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

    @property
    def y(self) -> range:
        """As many as there are rows: what an evaluation costs is read from it."""
        return range(int(self.num_rows))

    def by_group(self, values: Callable[[RowsPiece], tuple]) -> tuple[np.ndarray, ...]:
        """Arrays with one entry per group, computed piece by piece."""
        whole: list[np.ndarray] = []
        for number, codes in enumerate(self.copy.dealt.members):
            found = [np.asarray(v) for v in values(self.piece(number))]
            whole = whole or [np.empty((self.num_groups, *v.shape[1:])) for v in found]
            for out, part in zip(whole, found, strict=True):
                out[codes[codes >= 0]] = part[codes >= 0]
        return tuple(whole)

    def some_groups(self, codes: np.ndarray) -> tuple[RowsPiece, np.ndarray]:
        """Rows of these groups (distinct codes), and the position of each group among them.

        Absent groups fill the blocks up, so that few programs are compiled for many requests. Where
        none is asked for, no file is read: one absent group stands for all.
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
        """All that a linear Gaussian model needs: no batches, and no rows afterwards."""
        members = self.copy.dealt.members
        return LinearStatistics.from_pieces(
            lambda: map(self.piece, range(len(members))), members, random
        )

    def fingerprint(self) -> Fingerprint:
        """Of all rows, piece by piece."""
        parts = []
        for number, members in enumerate(self.copy.dealt.members):
            records, codes = self.copy.piece(number), np.repeat(members, self.copy.slots)
            there = records[:, -1] > 0
            parts.append(Fingerprint.of(*self.standardised(records[there]), codes[there]))
        return Fingerprint.joined(parts)

    def standardised(self, records: np.ndarray) -> tuple[Any, Any]:
        """Inputs and response of records, as the model reads them."""
        x = add_intercept(records[:, :-2], self.intercept)
        return self.scaling.apply(x), self.scaling.apply_response(records[:, -2])
