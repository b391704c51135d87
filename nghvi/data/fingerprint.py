"""Whether rows are those of a fit, told by what is in them and not by how many they are.

A row's hash is made of its numbers as the model reads them: inputs, response, code of its group.
The sum of all hashes modulo 2^64 does not depend on the order of the rows, and that of two sets
of rows is the sum of theirs; so a fingerprint needs no rows, and adds up piece by piece.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

KEPT = 4096
"""Hashes that are kept to recognise a part of the rows."""
MOST = 0.5
"""Share of rows that must be known before a set of rows counts as taken from the fit's."""
STEP = np.uint64(0x9E3779B97F4A7C15)
FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Fingerprint(NamedTuple):
    """Of the rows of a fit, or of rows to be compared with them."""

    num_rows: float
    """nan where counts are fractions, which rows cannot repeat."""
    sums: tuple[int, int]
    smallest: np.ndarray
    """The smallest hashes: of any rows that share some with these, they hold as large a share."""

    @staticmethod
    def of(
        x: np.ndarray, y: np.ndarray, codes: np.ndarray, weight: np.ndarray | None = None
    ) -> "Fingerprint":
        """Of rows and how often each was observed."""
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
        """Of all rows of several sets."""
        numbers, sums, smallest = zip(*parts, strict=True)
        first, second = (sum(each) % 2**64 for each in zip(*sums, strict=True))
        return Fingerprint(sum(numbers), (first, second), np.sort(np.concatenate(smallest))[:KEPT])

    def same(self, other: "Fingerprint") -> bool:
        """Whether both are of the same rows, in any order."""
        return self.num_rows == other.num_rows and self.sums == other.sums

    def overlaps(self, other: "Fingerprint") -> bool:
        """Whether most rows of the other are rows of this, and not only by chance.

        Rows that occur several times here say nothing: new ones may well look like them.
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
        # Adding 0 makes -0 and 0 the same.
        bits = (np.asarray(column, float) + 0.0).view(np.uint64)
        found = _mixed((found + STEP) ^ bits)
    return found


def _mixed(bits: np.ndarray) -> np.ndarray:
    """Every bit of the result depends on all bits (the finaliser of SplitMix64)."""
    bits = (bits ^ (bits >> np.uint64(30))) * FACTORS[0]
    bits = (bits ^ (bits >> np.uint64(27))) * FACTORS[1]
    return bits ^ (bits >> np.uint64(31))
