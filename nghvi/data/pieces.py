"""Divides groups into pieces that share a static layout, so that one program serves every piece.

The log likelihood is a sum over groups, and hence over pieces. All pieces together are one pytree
whose leaves have a leading axis; a single piece is what ``jax.vmap`` or ``jax.shard_map`` sees of
it. If groups do not divide evenly, a piece is filled up with absent groups, which contribute
neither rows nor effects.

A model starts from the same parameters on a piece as on the whole data, since the facts that it
starts from (variances, the centre) are those of the whole.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from nghvi.data.blocks import choose_sizes, rank_within
from nghvi.data.grouped import CellRows, Grouped, Rows
from nghvi.data.linear import OF_GROUPS, OF_ROWS, LinearStatistics
from nghvi.data.panel import Panel

ROWS_PER_PIECE = 20_000
"""About how many rows a piece has, unless its number of groups is given."""


class Deal(NamedTuple):
    """Which group is in which piece, and at which position."""

    blocks: tuple[tuple[int, int], ...]
    """(number of groups, padded size) of each block of a piece."""
    members: Int[np.ndarray, "p g"]
    """Code of each group of each piece, in memory order; -1 where it is absent."""


def deal(sizes: Int[np.ndarray, " k"], pieces: int, seed: int | None = None) -> Deal:
    """Deal groups with these numbers of rows to pieces.

    The groups of a block are dealt from the largest to the smallest, back and forth, so that all
    pieces have about as many rows; with a ``seed`` they are dealt at random.
    """
    sizes = np.asarray(sizes)
    rng = None if seed is None else np.random.default_rng(seed)
    block_sizes = choose_sizes(np.maximum(sizes, 1))
    block = np.searchsorted(block_sizes, np.maximum(sizes, 1))
    load, blocks, members = np.zeros(pieces, int), [], []
    for b, size in enumerate(block_sizes):
        inside = np.flatnonzero(block == b)
        rounds = -(-inside.size // pieces)
        dealt = np.full(rounds * pieces, -1)
        if rng is None:
            dealt[: inside.size] = inside[np.argsort(-sizes[inside], kind="stable")]
            # The piece with the fewest rows so far is served first.
            turn = np.argsort(load, kind="stable")
        else:
            dealt[: inside.size] = rng.permutation(inside)
            turn = rng.permutation(pieces)
        in_rounds = dealt.reshape(rounds, pieces)
        in_rounds[1::2] = in_rounds[1::2, ::-1]
        served = np.empty_like(in_rounds)
        served[:, turn] = in_rounds
        load += np.where(served >= 0, sizes[served], 0).sum(axis=0)
        blocks.append((rounds, int(size)))
        members.append(served.T)
    return Deal(tuple(blocks), np.concatenate(members, axis=1))


def pieces_for(sizes: np.ndarray, groups_per_piece: int | None) -> int:
    """Return the number of pieces of about this many groups, or ROWS_PER_PIECE rows if None."""
    if groups_per_piece is None:
        return max(1, round(float(sizes.sum()) / ROWS_PER_PIECE))
    return max(1, round(len(sizes) / groups_per_piece))


class RowsPiece(Rows):
    """Rows of some of the groups. Leaves are host arrays until they are placed on a device."""

    num_rows: Any
    """An array, since it differs between pieces."""
    present: Bool[Array | np.ndarray, " g"]
    """Which groups are not absent."""
    whole_variance: Float[Array | np.ndarray, ""]
    """Variance of the response in the whole data."""

    @property
    def variance(self) -> Float[Array, ""]:
        """Variance of the response in the whole data."""
        return jnp.asarray(self.whole_variance)

    @property
    def num_present(self) -> Int[Array, ""]:
        return jnp.sum(self.present)

    def over_groups(self, values: Float[Array, "g ..."]) -> Float[Array, "..."]:
        mask = self.present.reshape(-1, *(1,) * (values.ndim - 1))
        return jnp.sum(jnp.where(mask, values, 0.0), axis=0)


class LinearPiece(LinearStatistics):
    """Cross products of some of the groups, with an equal share of the sums over all rows."""

    whole_effects_square: Float[Array, " r"]
    """Mean squares of the columns with effects in the whole data."""

    @property
    def effects_square(self) -> Float[Array, " r"]:
        """Mean squares of the columns with effects in the whole data."""
        return self.whole_effects_square


def in_pieces(
    dealt: Deal,
    x: Float[np.ndarray, "n d"],
    y: Float[np.ndarray, " n"],
    group: Int[np.ndarray, " n"],
    weight: Float[np.ndarray, " n"] | None = None,
    *,
    which: Sequence[int] | None = None,
    variance: float | None = None,
) -> RowsPiece:
    """Return the pieces ``which`` (None for all), stacked; rows of other pieces are skipped.

    ``variance`` is that of the response in the whole data; None if all rows are given here.
    """
    members = dealt.members if which is None else dealt.members[list(which)]
    weight = np.ones(len(y)) if weight is None else np.asarray(weight, float)
    if variance is None:
        variance = float(np.cov(y, aweights=weight, ddof=0))
    slots = np.repeat([size for _, size in dealt.blocks], [count for count, _ in dealt.blocks])
    total, starts = int(slots.sum()), np.cumsum(slots) - slots
    first = np.full(dealt.members.max() + 1, -1)
    piece, slot = np.nonzero(members >= 0)
    first[members[piece, slot]] = piece * total + starts[slot]
    kept = np.flatnonzero(first[group] >= 0)
    position = first[group[kept]] + rank_within(group[kept], len(first))

    def place(values: np.ndarray, blank: np.ndarray) -> Any:
        out = np.broadcast_to(blank, (len(members) * total, *values.shape[1:])).copy()
        out[position] = values[kept]
        return out.reshape(len(members), total, *values.shape[1:])

    placed = place(weight, np.zeros(1))
    return RowsPiece(
        # Padding repeats a real row instead of zeros, so that every function is finite there.
        x=place(np.asarray(x, float), np.asarray(x[:1], float)),
        y=place(np.asarray(y, float), np.asarray(y[:1], float)),
        weight=placed,
        index=None,
        original_order=_counted(members),
        blocks=dealt.blocks,
        num_rows=placed.sum(axis=1),
        present=np.asarray(members >= 0),
        whole_variance=np.full(len(members), variance),
    )


def cut(data: Any, pieces: int, which: Sequence[int] | None = None) -> Grouped:
    """Cut data of any form into stacked pieces; return those in ``which`` (None for all)."""
    if isinstance(data, CellRows):
        data = data.apart()
    if isinstance(data, Rows):
        return _cut_rows(data, pieces, which)
    # Every group costs the same, however many rows it has.
    members = deal(np.ones(data.num_groups, int), pieces).members
    members = members if which is None else members[list(which)]

    def groups(values: Array, axis: int) -> Any:
        last = np.moveaxis(np.asarray(values), axis, 0)
        taken = np.where((members >= 0).reshape(*members.shape, *(1,) * (last.ndim - 1)), 1.0, 0.0)
        return np.moveaxis(last[members] * taken, 1, axis + 1 if axis >= 0 else axis)

    def alike(values: Array) -> Any:
        return np.broadcast_to(values, (len(members), *np.shape(values)))

    share, order = alike(data.num_rows / pieces), _counted(members)
    if isinstance(data, Panel):
        return Panel(
            x=alike(data.x),
            counts=groups(data.counts, 0),
            sums=groups(data.sums, 0),
            square_total=alike(data.square_total / pieces),
            variance=alike(data.variance),
            original_order=order,
            num_rows=share,
        )
    return LinearPiece(
        centre=alike(data.centre),
        variance=alike(data.variance),
        original_order=order,
        num_groups=members.shape[1],
        whole_effects_square=alike(data.effects_square),
        num_rows=share,
        **{name: alike(getattr(data, name) / pieces) for name in OF_ROWS},
        **{name: groups(getattr(data, name), -1) for name in OF_GROUPS},
    )


class StackedPieces:
    """Pieces of rows that are in memory."""

    def __init__(self, rows: Rows, groups_per_piece: int | None, seed: int) -> None:
        observed = rows.observations()
        # In the order of the group codes, so that a working copy of the same rows has these pieces.
        group = np.argsort(rows.original_order)[observed.group]
        sizes = np.bincount(group, minlength=rows.num_groups)
        dealt = deal(sizes, pieces_for(sizes, groups_per_piece), seed)
        self.members, self.num_pieces = dealt.members, len(dealt.members)
        self._stack = in_pieces(dealt, *observed._replace(group=group))

    def piece(self, number: int) -> RowsPiece:
        """Return one piece."""
        return jax.tree.map(lambda leaf: leaf[number], self._stack)


def _cut_rows(rows: Rows, pieces: int, which: Sequence[int] | None) -> RowsPiece:
    observed = rows.observations()
    dealt = deal(np.bincount(observed.group, minlength=rows.num_groups), pieces)
    if rows.index is None:
        return in_pieces(dealt, *observed, which=which)
    numbers = np.arange(len(rows.x), dtype=float)[np.asarray(rows.index)]
    if rows.weight is not None:
        numbers = numbers[np.asarray(rows.weight) > 0]
    cut_rows = in_pieces(dealt, *observed._replace(x=numbers[:, None]), which=which)
    inputs = np.broadcast_to(rows.x, (len(cut_rows.x), *rows.x.shape))
    return eqx.tree_at(
        lambda r: (r.x, r.index),
        cut_rows,
        (inputs, cut_rows.x[..., 0].astype(int)),
        is_leaf=lambda leaf: leaf is None,
    )


def _counted(members: np.ndarray) -> Any:
    """Return the order of groups in pieces, where it is that in memory."""
    return np.broadcast_to(np.arange(members.shape[1]), members.shape)
