"""Lays groups of unequal size out in a few rectangular blocks.

Sums over groups and copies from groups to rows are then reshapes of contiguous memory. The
alternative, a scatter over group codes, is many times slower on a CPU, forwards and backwards.
Groups are ordered by size and padded to the size of their block. Block sizes are chosen to minimise
the padding, so that the largest group does not make the others expensive. Since every block adds
code to every compiled program, small tables are padded rather than split into blocks.
"""

import itertools
from typing import NamedTuple

import numpy as np

MOST_BLOCKS = 6
"""The most blocks of a layout."""
ROWS_PER_BLOCK = 1000
"""How many padding rows a further block has to save: compiling it takes about as long as computing
with so many rows in all steps of a fit."""
MOST_ROOM = 1.5
"""How much larger than the table, in rows, blocks may become when they are merged."""
LEAST, DOUBLING = 16, 1024
"""The smallest of the sizes that share compiled programs, and the size up to which they double."""


class Layout(NamedTuple):
    """The blocks of a table, and where each of its rows goes."""

    blocks: tuple[tuple[int, int], ...]
    """(number of groups, padded size) of each block, in memory order."""
    position: np.ndarray
    """Position of each original row in memory."""
    group_order: np.ndarray
    """Original group code of each group in memory order."""


def lay_out(group: np.ndarray, num_groups: int) -> Layout:
    """Lay out rows with these group codes, 0 to num_groups - 1; groups may be empty."""
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
    """Return how many rows of its own group precede each row."""
    sizes = np.bincount(group, minlength=num_groups)
    rank = np.empty(group.size, int)
    order = np.argsort(group, kind="stable")
    rank[order] = np.arange(group.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rank


def choose_sizes(sizes: np.ndarray) -> np.ndarray:
    """Return at most MOST_BLOCKS padded sizes with the least total padding, by dynamic programming.

    ``sizes`` are the numbers of rows of the groups.
    """
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
    """Merge neighbouring blocks where one is cheaper than two; the groups stay in order.

    Merged blocks may take at most ``most`` rows.
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
    """Round sizes up to a grid with steps of at most 6 %, so that few candidates remain."""
    grid = np.unique(np.ceil(1.06 ** np.arange(0, np.log(sizes.max() + 1) / np.log(1.06) + 2)))
    return grid[np.searchsorted(grid, sizes)].astype(int)


def padded(n: int) -> int:
    """Return the smallest size of at least n that shares compiled programs.

    Such sizes double up to ``DOUBLING``, where compiling takes longer than computing, and grow by
    about an eighth beyond.
    """
    if n <= DOUBLING:
        return max(LEAST, 1 << (n - 1).bit_length()) if n > 0 else 0
    unit = 2 ** (n.bit_length() - 4)
    return -(-n // unit) * unit
