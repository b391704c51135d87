"""Colours and axes that all pictures share."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from nghvi._core.errors import InputError

BLUE, GREY, ORANGE = "#2a6f97", "#8d99ae", "#d1495b"
CURVES = [(colour, dash) for dash in ("-", "--") for colour in (BLUE, ORANGE, GREY)]
"""Colour and dash of curves that are told apart; more than these are not."""
PANEL = (3.4, 2.7)
"""Width and height of one picture in a grid, in inches."""


def axes_or_new(ax: Axes | None) -> Axes:
    """The axes to draw on."""
    return plt.subplots()[1] if ax is None else ax


def grid_or_new(ax: Any, number: int, columns: int) -> np.ndarray:
    """That many axes in a row (or rows) of a figure, those of ``ax`` if it is given."""
    if ax is not None:
        given = np.atleast_1d(np.asarray(ax, dtype=object))
        if given.size < number:
            raise InputError(f"ax holds {given.size} axes, the picture has {number} panels.")
        return given
    columns = min(columns, number)
    rows = -(-number // columns)
    size = (PANEL[0] * columns, PANEL[1] * rows)
    _, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for unused in axes.ravel()[number:]:
        unused.set_visible(False)
    return axes if rows > 1 else axes[0]


def legend_above(ax: Axes, **settings: Any) -> None:
    """A legend over what is drawn, which often fills the picture: it gets room of its own."""
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.25 * (high - low))
    ax.legend(frameon=False, **settings)


def line_colour() -> str:
    """Of reference lines: that of the frame, which a style may have changed."""
    return plt.rcParams["axes.edgecolor"]
