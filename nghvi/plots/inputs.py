"""Pictures of what a model says about its inputs."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from nghvi import interpret
from nghvi.plots.style import BLUE, CURVES, GREY, axes_or_new, legend_above, line_colour

UNGROUPED = (interpret.POPULATION, interpret.ALL)


def lek(
    estimator: Any,
    variable: Any,
    groups: Any = None,
    reference: Any = None,
    ax: Axes | None = None,
    **settings: Any,
) -> Axes:
    """Expected response along one input, with bands; settings as in ``interpret.lek_profile``."""
    table = interpret.lek_profile(estimator, variable, groups, reference, **settings)
    ax = _curves(estimator, table, ax)
    ax.set_title(f"Lek profile: {table.columns[1]}")
    return ax


def partial_dependence(
    estimator: Any,
    variable: Any,
    X: Any,
    groups: Any = None,
    ax: Axes | None = None,
    **settings: Any,
) -> Axes:
    """Average expected response of the rows of X against one input, with bands.

    Settings as in ``interpret.partial_dependence``.
    """
    table = interpret.partial_dependence(estimator, variable, X, groups, **settings)
    ax = _curves(estimator, table, ax)
    ax.set_title(f"Partial dependence: {table.columns[1]}")
    return ax


def variance_share(
    estimator: Any, X: Any = None, ax: Axes | None = None, most: int = 20, **settings: Any
) -> Axes:
    """Shares of the ``most`` important features in the variance between groups, with sds.

    Settings as in ``interpret.variance_share``.
    """
    ax = axes_or_new(ax)
    table = interpret.variance_share(estimator, X, **settings)
    shown = table.sort_values("mean", ascending=False).head(most)
    position = np.arange(len(shown))
    ax.barh(position, shown["mean"], color=BLUE, alpha=0.6, height=0.7)
    ends = np.clip([shown["mean"] - shown["sd"], shown["mean"] + shown["sd"]], 0, 1)
    ax.hlines(position, *ends, color=line_colour(), lw=1)
    ax.set_yticks(position, shown.index)
    ax.invert_yaxis()
    ax.set(xlim=(0, None), xlabel="share of the variance between groups", title="Variance shares")
    return ax


def _curves(estimator: Any, table: Any, ax: Axes | None) -> Axes:
    """One line per group; with bands and a legend if they are few, thin and grey if not."""
    ax = axes_or_new(ax)
    variable, labels = table.columns[1], list(dict.fromkeys(table["group"]))
    few, named = len(labels) <= len(CURVES), isinstance(estimator.group_, str)
    for i, label in enumerate(labels):
        curve = table[table["group"] == label]
        if few:
            colour, dash = CURVES[i]
            band = curve["lower"], curve["upper"]
            ax.fill_between(curve[variable], *band, color=colour, alpha=0.15, lw=0)
            said = label if label in UNGROUPED or not named else f"{estimator.group_} {label}"
            ax.plot(curve[variable], curve["mean"], dash, color=colour, lw=1.5, label=said)
        elif label == interpret.POPULATION:
            ax.plot(curve[variable], curve["mean"], color=BLUE, lw=2, zorder=3)
        else:
            ax.plot(curve[variable], curve["mean"], color=GREY, lw=0.8, alpha=0.7)
    if few and len(labels) > 1:
        legend_above(ax, loc="upper left", ncols=2)
    classes = getattr(estimator, "classes_", None)
    ylabel = "expected response" if classes is None else f"probability of {classes[1]}"
    ax.set(xlabel=variable, ylabel=ylabel)
    return ax
