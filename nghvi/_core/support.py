"""The values that an observation can take, as data that everything after a fit asks."""

import dataclasses
import math
from typing import Any

import numpy as np

MOST_SHOWN = 3
"""Offending values that an error message shows, with their rows."""


@dataclasses.dataclass(frozen=True)
class Support:
    """The numbers from ``low`` to ``high``: all of them, or the whole ones if ``discrete``.

    Finite ends of a discrete support belong to it, those of an interval only if it is ``closed``.
    Ends may be arrays with one number per row.
    """

    low: Any = -math.inf
    high: Any = math.inf
    discrete: bool = False
    closed: bool = False

    @property
    def two_valued(self) -> bool:
        """Whether an observation is one of two values."""
        return self.discrete and np.ndim(self.high) == 0 and self.high - self.low == 1

    def holds(self, y: np.ndarray) -> np.ndarray:
        """Whether each value belongs to the support; one that is not a number does not."""
        y = np.asarray(y, float)
        if self.discrete:
            return np.isfinite(y) & (y >= self.low) & (y <= self.high) & (y == np.round(y))
        if self.closed:
            return np.isfinite(y) & (y >= self.low) & (y <= self.high)
        return np.isfinite(y) & (y > self.low) & (y < self.high)

    def before(self, y: Any) -> Any:
        """The largest value below y; y itself on an interval, where P(Y < y) = P(Y <= y)."""
        return y - 1 if self.discrete else y

    def __str__(self) -> str:
        kind = "whole numbers" if self.discrete else "numbers"
        if np.ndim(self.low) or np.ndim(self.high):
            return f"{kind} between the ends that its row has"
        if math.isinf(self.low) and math.isinf(self.high):
            return f"finite {kind}"
        if math.isinf(self.high):
            return f"{kind} {'from' if self.discrete else 'above'} {self.low:g}"
        return f"{kind} {'from' if self.discrete else 'between'} {self.low:g} " + (
            f"to {self.high:g}" if self.discrete else f"and {self.high:g}"
        )


def offenders(y: np.ndarray, outside: np.ndarray) -> str:
    """The first values that are outside, with their rows, in words."""
    where = np.flatnonzero(outside)
    shown = ", ".join(f"{y[i]:g} in row {i}" for i in where[:MOST_SHOWN])
    more = len(where) - MOST_SHOWN
    return f"{shown} and {more:,} more" if more > 0 else shown
