"""Recognises the rows of a fit by their content, not just by their number.

A row's hash is made of its numbers as the model reads them: inputs, response, group code. The sum
of all hashes modulo 2^64 does not depend on the order of the rows, and the sums of two sets of rows
add up. A fingerprint therefore keeps no rows and can be made piece by piece.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

KEPT = 4096
"""How many hashes are kept to recognise a part of the rows."""
MOST = 0.5
"""The share of known rows beyond which a set of rows counts as taken from those of the fit."""
STEP = np.uint64(0x9E3779B97F4A7C15)
FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Fingerprint(NamedTuple):
    """The fingerprint of a set of rows."""

    num_rows: float
    """NaN if counts are fractions, which no repetition of rows can match."""
    sums: tuple[int, int]
    """Sums of two independent hashes of every row, modulo 2^64."""
    smallest: np.ndarray
    """The smallest hashes, a random sample of rows that different sets of rows have in common."""

    @staticmethod
    def of(
        x: np.ndarray, y: np.ndarray, codes: np.ndarray, weight: np.ndarray | None = None
    ) -> "Fingerprint":
        """Return the fingerprint of rows; ``weight`` is how often each was observed."""
        hashes = _hashes([*np.asarray(x).T, y, *np.atleast_2d(np.asarray(codes).T)])
        times = np.ones(len(hashes), np.uint64) if weight is None else weight.astype(np.uint64)
        whole = weight is None or bool((weight == times).all())
        both = hashes, _mixed(hashes + STEP)
        return Fingerprint(
            float(times.sum()) if whole else float("nan"),
            (int(np.sum(both[0] * times)), int(np.sum(both[1] * times))),
            np.sort(hashes[times > 0] if whole else hashes)[:KEPT],
        )

    @staticmethod
    def joined(parts: Iterable["Fingerprint"]) -> "Fingerprint":
        """Return the fingerprint of all rows of several sets."""
        numbers, sums, smallest = zip(*parts, strict=True)
        first, second = (sum(each) % 2**64 for each in zip(*sums, strict=True))
        return Fingerprint(sum(numbers), (first, second), np.sort(np.concatenate(smallest))[:KEPT])

    def same(self, other: "Fingerprint") -> bool:
        """Return whether both are of the same rows, in any order."""
        return self.num_rows == other.num_rows and self.sums == other.sums

    def overlaps(self, other: "Fingerprint") -> bool:
        """Return whether most rows of the other set are also in this one.

        Rows that occur several times here do not count, since new ones may well equal them.
        """
        bound = min(
            each.smallest[-1] if len(each.smallest) == KEPT else np.uint64(2**64 - 1)
            for each in (self, other)
        )
        ours, times = np.unique(self.smallest[self.smallest <= bound], return_counts=True)
        theirs = other.smallest[other.smallest <= bound]
        return len(theirs) > 0 and np.isin(theirs, ours[times == 1]).mean() > MOST


def _hashes(columns: list[np.ndarray]) -> np.ndarray:
    found = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        # Adding 0 turns -0 into 0.
        bits = (np.asarray(column, float) + 0.0).view(np.uint64)
        found = _mixed((found + STEP) ^ bits)
    return found


def _mixed(bits: np.ndarray) -> np.ndarray:
    """Mix bits so that each depends on all others (the finaliser of SplitMix64)."""
    bits = (bits ^ (bits >> np.uint64(30))) * FACTORS[0]
    bits = (bits ^ (bits >> np.uint64(27))) * FACTORS[1]
    return bits ^ (bits >> np.uint64(31))
