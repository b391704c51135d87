"""Tables that summarise weighted draws: mean, sd and quantiles of every number, by name."""

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from nghvi._core.errors import DataError

LEVEL = 0.9
"""Default probability of an interval."""
MOST_SHOWN = 200
"""How many rows of a table are printed at most."""


def check_level(level: Any) -> None:
    """Raise an error unless ``level`` is a valid probability of an interval."""
    number = isinstance(level, numbers.Real) and not isinstance(level, bool)
    if not number or not 0 < level < 1:
        raise DataError(f"level={level!r}: it must be a probability between 0 and 1, such as 0.9.")


class Summary(pd.DataFrame):
    """A data frame that prints all of its columns and up to 200 rows, whatever pandas' options."""

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
    """Return weighted moments and quantiles of draws, one row per name.

    ``scalars`` holds one value per draw for every name, ``weight`` the weights of the draws.
    ``level`` is the probability of the central interval; its ends are the columns ``q5`` and
    ``q95``, for example.
    """
    check_level(level)
    tail = (1 - level) / 2
    probabilities = (tail, 0.5, 1 - tail)
    columns = ["mean", "sd", *(f"q{100 * p:.10g}" for p in probabilities)]
    rows = []
    for values in scalars.values():
        mean = weight @ values
        # Squares are of values in units of the largest: those of raw variances may overflow.
        unit = max(np.abs(values - mean).max(), np.finfo(float).tiny)
        sd = unit * np.sqrt(weight @ ((values - mean) / unit) ** 2)
        order = np.argsort(values)
        cumulative = np.cumsum(weight[order]) - 0.5 * weight[order]
        quantiles = np.interp(probabilities, cumulative, values[order])
        rows.append([mean, sd, *quantiles])
    return Summary(rows, index=list(scalars), columns=columns, dtype=float)
