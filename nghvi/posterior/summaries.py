"""Tables of weighted draws: mean, sd and quantiles of every number, by name."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from nghvi._core.errors import InputError

LEVEL = 0.9
"""Probability of an interval unless another is given."""
MOST_SHOWN = 200
"""Rows of a table that are printed."""


class Summary(pd.DataFrame):
    """A table that is printed with all of its columns and up to 200 rows, whatever pandas' options.

    Otherwise it is a data frame like any other.
    """

    @property
    def _constructor(self) -> type["Summary"]:
        return Summary

    def __repr__(self) -> str:
        return self.to_string(max_rows=MOST_SHOWN, float_format=_shown)

    def _repr_html_(self) -> str:
        return self.to_html(max_rows=MOST_SHOWN, float_format=_shown)


def _shown(number: float) -> str:
    return f"{number:.4g}"


@np.errstate(over="ignore", invalid="ignore")  # a fit that failed may hold anything
def described(scalars: Mapping[Any, np.ndarray], weight: np.ndarray, level: float) -> Summary:
    """Weighted moments and quantiles of every entry, one value per draw.

    ``level``: probability of the central interval, whose ends are columns named by percentage.
    """
    if not 0 < level < 1:
        raise InputError(f"level={level!r}: give a probability between 0 and 1, such as 0.9.")
    tail = (1 - level) / 2
    probabilities = (tail, 0.5, 1 - tail)
    columns = ["mean", "sd", *(f"q{100 * p:.10g}" for p in probabilities)]
    rows = []
    for values in scalars.values():
        mean = weight @ values
        # Squares of values in units of the largest: those of a variance in raw units may overflow.
        unit = max(np.abs(values - mean).max(), np.finfo(float).tiny)
        sd = unit * np.sqrt(weight @ ((values - mean) / unit) ** 2)
        order = np.argsort(values)
        cumulative = np.cumsum(weight[order]) - 0.5 * weight[order]
        quantiles = np.interp(probabilities, cumulative, values[order])
        rows.append([mean, sd, *quantiles])
    return Summary(rows, index=list(scalars), columns=columns, dtype=float)
