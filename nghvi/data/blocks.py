"""Laying groups of unequal size out in a few rectangular blocks.

Sums over groups and copies from groups to rows are then reshapes of contiguous memory. A
scatter over group codes, the alternative, is many times slower on a CPU, forwards and backwards.
Groups are ordered by size and padded to their block's size; the block sizes are chosen to
minimise the padding, so the largest group does not set the price of the others. Every block is
code of its own in every program, so a small table is padded rather than divided.
"""

import itertools
from typing import NamedTuple

import numpy as np

MOST_BLOCKS = 6
ROWS_PER_BLOCK = 1000
"""Padding rows that a further block must save: it takes about as long to compile as they take to
compute in all the steps of a fit."""
MOST_ROOM = 1.5
"""Times the rows that blocks may take for this."""
LEAST, DOUBLING = 16, 1024
"""Sizes that share programs: the least of them, and up to where each is twice the one before."""


class Layout(NamedTuple):
    """Where every row goes."""

    blocks: tuple[tuple[int, int], ...]
    """(number of groups, padded size) of each block, in memory order."""
    position: np.ndarray
    """Target position of each original row."""
    group_order: np.ndarray
    """Original group code of each group in memory order."""


def lay_out(group: np.ndarray, num_groups: int) -> Layout:
    """Blocks for rows with these group codes (0 to num_groups - 1; empty groups allowed)."""
    sizes = np.bincount(group, minlength=num_groups)
    least_padding = choose_sizes(np.maximum(sizes, 1))
    block = np.searchsorted(least_padding, np.maximum(sizes, 1))
    group_order = np.argsort(block, kind="stable")
    counts = np.bincount(block, minlength=least_padding.size)
    block_sizes = _few(least_padding, counts, MOST_ROOM * group.size)
    block = np.searchsorted(block_sizes, np.maximum(sizes, 1))
    room = block_sizes[block[group_order]]
    start = np.empty(num_groups, int)
    start[group_order] = np.concatenate([[0], np.cumsum(room)[:-1]])
    position = start[group] + rank_within(group, num_groups)
    counts = np.bincount(block, minlength=block_sizes.size)
    blocks = tuple((int(c), int(s)) for c, s in zip(counts, block_sizes, strict=True) if c)
    return Layout(blocks, position, group_order)


def rank_within(group: np.ndarray, num_groups: int) -> np.ndarray:
    """How many rows of its own group come before each row."""
    sizes = np.bincount(group, minlength=num_groups)
    rank = np.empty(group.size, int)
    order = np.argsort(group, kind="stable")
    rank[order] = np.arange(group.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rank


def choose_sizes(sizes: np.ndarray) -> np.ndarray:
    """At most MOST_BLOCKS padded sizes with the least total padding (dynamic programme)."""
    candidates, counts = np.unique(_round_up(sizes), return_counts=True)
    if candidates.size <= 1:
        return np.array([sizes.max()])
    candidates[-1] = sizes.max()
    below = np.concatenate([[0], np.cumsum(counts)])
    cost = np.full(candidates.size + 1, np.inf)
    cost[0] = 0.0
    choices = []
    for _ in range(min(MOST_BLOCKS, candidates.size)):
        # extended[i, j]: candidates i..j-1 share one block of size candidates[j-1]
        extended = cost[:, None] + (below[None, :] - below[:, None]) * np.concatenate(
            [[0], candidates]
        )
        extended[np.tril_indices(candidates.size + 1)] = np.inf
        choice = np.argmin(extended, axis=0)
        cost = extended[choice, np.arange(candidates.size + 1)]
        choices.append((cost[-1], choice))
    best = int(np.argmin([c for c, _ in choices]))
    end, chosen = candidates.size, []
    for depth in range(best, -1, -1):
        chosen.append(candidates[end - 1])
        end = int(choices[depth][1][end])
    return np.array(sorted(chosen))


def _few(block_sizes: np.ndarray, counts: np.ndarray, most: float) -> np.ndarray:
    """Some of these sizes, where neighbouring blocks are better one: their groups stay in order.

    ``most``: rows that merged blocks may take.
    """
    *smaller, largest = block_sizes
    subsets = itertools.chain.from_iterable(
        itertools.combinations(smaller, number) for number in range(len(smaller) + 1)
    )

    def price(chosen: tuple[int, ...]) -> float:
        room = np.array([*chosen, largest])[np.searchsorted([*chosen, largest], block_sizes)]
        taken = int(counts @ room)
        affordable = taken <= most or len(chosen) == len(smaller)
        return taken + ROWS_PER_BLOCK * len(chosen) if affordable else np.inf

    return np.array([*min(subsets, key=price), largest])


def _round_up(sizes: np.ndarray) -> np.ndarray:
    """Up to the next point of a grid in steps of at most 6 %, so few candidates remain."""
    grid = np.unique(np.ceil(1.06 ** np.arange(0, np.log(sizes.max() + 1) / np.log(1.06) + 2)))
    return grid[np.searchsorted(grid, sizes)].astype(int)


def padded(n: int) -> int:
    """The next of a sequence of sizes that share compiled programs.

    It doubles up to ``DOUBLING``, where compiling takes longer than computing, and grows by an
    eighth beyond.
    """
    if n <= DOUBLING:
        return max(LEAST, 1 << (n - 1).bit_length()) if n > 0 else 0
    unit = 2 ** (n.bit_length() - 4)
    return -(-n // unit) * unit
