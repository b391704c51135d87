"""Pictures of a fitted model: its optimisation, its posterior, and what its inputs do."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nghvi import interpret
from nghvi._core.errors import InputError
from nghvi.data.frame import Column, DataError, Tabular
from nghvi.estimators import tables
from nghvi.estimators._base import MixedEstimator

BLUE, GREY, ORANGE = "#2a6f97", "#8d99ae", "#d1495b"
CURVES = [(colour, dash) for dash in ("-", "--") for colour in (BLUE, ORANGE, GREY)]
"""Colours and dashes of curves that can be told apart; beyond these, curves look alike."""
PANEL = (3.4, 2.7)
"""Width and height of one picture in a grid, in inches."""


def axes_or_new(ax: Axes | None) -> Axes:
    """Return the axes to draw on."""
    return plt.subplots()[1] if ax is None else ax


def grid_or_new(ax: Any, number: int, columns: int) -> np.ndarray:
    """Return that many axes in rows of a figure: those of ``ax`` if it is given."""
    if ax is not None:
        given = np.atleast_1d(np.asarray(ax, dtype=object))
        if given.size < number:
            raise InputError(
                f"ax holds {given.size} axes, but the picture has {number} panels: pass as "
                "many axes."
            )
        return given
    columns = min(columns, number)
    rows = -(-number // columns)
    size = (PANEL[0] * columns, PANEL[1] * rows)
    _, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for unused in axes.ravel()[number:]:
        unused.set_visible(False)
    return axes if rows > 1 else axes[0]


def legend_above(ax: Axes, **settings: Any) -> None:
    """Place the legend above the curves, which often fill the picture, in space of its own."""
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.25 * (high - low))
    ax.legend(frameon=False, **settings)


def line_colour() -> str:
    """Return the colour of reference lines: that of the frame, which a style may have changed."""
    return plt.rcParams["axes.edgecolor"]


NAMED_GROUPS = 40
"""The largest number of groups that a caterpillar plot labels by name."""


def trace(estimator: MixedEstimator, ax: Axes | None = None) -> Axes:
    """Draw the noisy objective of the last stage against the step, with the final ELBO."""
    table = estimator.trace_
    if table.empty:
        raise DataError(f"method={estimator.method!r} keeps no trace: there is nothing to draw.")
    ax = axes_or_new(ax)
    table = table[table["stage"] == table["stage"].iloc[-1]]
    marker = "o" if len(table) <= 100 else None
    steps = np.arange(1, len(table) + 1)
    ax.plot(steps, table["elbo"], color=BLUE, lw=1.2, marker=marker, ms=2.5)
    if np.isfinite(estimator.elbo_):
        ax.axhline(estimator.elbo_, color=ORANGE, lw=1, label=f"ELBO {estimator.elbo_:.2f}")
        ax.legend(frameon=False)
    ax.ticklabel_format(axis="y", useOffset=False)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel="step", ylabel="objective (noisy ELBO)", title="Optimisation")
    return ax


def posterior(
    estimator: MixedEstimator,
    name: str | Sequence[str] | None = None,
    ax: Any = None,
    truth: float | Mapping[str, float] | None = None,
) -> Any:
    """Draw the posterior density of a parameter with its 90 % interval.

    Several names, or None for all main parameters, make a grid; ``truth`` then maps names to
    values.
    """
    drawn = tables.drawn_parameters(estimator.posterior_)
    names = [name] if isinstance(name, str) else list(drawn.values) if name is None else list(name)
    if unknown := [each for each in names if each not in drawn.values]:
        raise DataError(f"there is no parameter {unknown[0]!r}; see summary() for the names.")
    if isinstance(name, str):
        return draw_density(drawn, name, axes_or_new(ax), truth)
    axes = grid_or_new(ax, len(names), 4)
    known = truth if isinstance(truth, Mapping) else {}
    for each, one in zip(names, axes.ravel(), strict=False):
        draw_density(drawn, each, one, known.get(each))
    return axes


def draw_density(drawn: tables.Drawn, name: str, ax: Axes, truth: Any = None) -> Axes:
    """Draw the density of one parameter."""
    values = drawn.values[name]
    row: Any = drawn.summary.loc[name]
    if row["sd"] > 0:
        low, high = row["mean"] - 4 * row["sd"], row["mean"] + 4 * row["sd"]
        grid = np.linspace(max(low, values.min()), min(high, values.max()), 200)
        width = 1.06 * row["sd"] * np.sum(drawn.weight**2) ** 0.2
        density = np.exp(-0.5 * ((grid[:, None] - values) / width) ** 2) @ drawn.weight
        density /= width * np.sqrt(2 * np.pi)
        ax.fill_between(grid, density, color=BLUE, alpha=0.25, lw=0)
        ax.plot(grid, density, color=BLUE, lw=1.5)
        ends = [row["q5"], row["q95"]]
        ax.plot(ends, [0, 0], color=BLUE, lw=4, solid_capstyle="butt", clip_on=False)
    else:  # an estimate without uncertainty
        ax.axvline(row["mean"], color=BLUE, lw=1.5)
    if truth is not None:
        ax.axvline(truth, color=ORANGE, lw=1.2, ls="--")
    ax.set(title=row.name, yticks=[], ylim=(0, None))
    return ax


def caterpillar(
    estimator: MixedEstimator, effect: str | None = None, ax: Axes | None = None, most: int = 200
) -> Axes:
    """Draw group effects in order of size, with 90 % intervals.

    With more than ``most`` groups, only those at evenly spaced ranks are shown, including the
    extremes.
    """
    effects = estimator.posterior_.names.effects
    if not effects:
        raise DataError("the model has no group effects to draw.")
    effect = effects[0] if effect is None else effect
    if effect not in effects:
        raise DataError(f"effect={effect!r}: the model has {', '.join(map(repr, effects))}.")
    name, factor = effect, None
    if estimator.posterior_.names.factors:
        name, _, factor = effect.rpartition(" | ")
    ax = draw_caterpillar(estimator.group_effects(factor), name, axes_or_new(ax), most)
    ax.set_title(f"Group effects: {effect}")
    return ax


def draw_caterpillar(table: pd.DataFrame, effect: str, ax: Axes, most: int = 200) -> Axes:
    """Draw one of the effects of a table of groups."""
    table = table.sort_values(f"{effect}_mean")
    number = len(table)
    table = table.iloc[np.linspace(0, number - 1, min(number, most)).round().astype(int)]
    mean, half = table[f"{effect}_mean"], 1.645 * table[f"{effect}_sd"]
    position = np.arange(len(table))
    ax.hlines(position, mean - half, mean + half, GREY, lw=1.2)
    ax.plot(mean, position, "o", ms=3, color=BLUE)
    ax.axvline(0, color=line_colour(), lw=0.6)
    shown = f"{number:,} groups" if number <= most else f"{most} of {number:,} groups, by rank"
    ax.set(title=f"Group effects: {effect}", yticks=[], ylabel=shown)
    ax.set_xlabel("difference from the population (90 % interval)")
    ax.xaxis.set_major_locator(MaxNLocator(6))
    if number <= NAMED_GROUPS:
        ax.set_yticks(position, [str(label) for label in table.index], fontsize=7)
    return ax


def overview(estimator: MixedEstimator, truth: dict[str, float] | None = None) -> Figure:
    """Draw trace, group effects and the density of every main parameter in one figure."""
    drawn = tables.drawn_parameters(estimator.posterior_)
    panels = 2 + len(drawn.values)
    columns = 4
    rows = -(-panels // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(PANEL[0] * columns, PANEL[1] * rows))
    flat = axes.ravel()
    trace(estimator, flat[0])
    if estimator.posterior_.names.effects:
        caterpillar(estimator, ax=flat[1])
    for name, ax in zip(drawn.values, flat[2:panels], strict=True):
        draw_density(drawn, name, ax, (truth or {}).get(name))
    for ax in flat[panels:]:
        ax.set_visible(False)
    figure.tight_layout()
    return figure


UNGROUPED = (interpret.POPULATION, interpret.ALL)


def lek(
    estimator: MixedEstimator,
    variable: Column,
    groups: Any = None,
    reference: Any = None,
    ax: Axes | None = None,
    **settings: Any,
) -> Axes:
    """Draw the expected response along one input, with bands; see ``interpret.lek_profile``."""
    table = interpret.lek_profile(estimator, variable, groups, reference, **settings)
    ax = _curves(estimator, table, ax)
    ax.set_title(f"Lek profile: {table.columns[1]}")
    return ax


def partial_dependence(
    estimator: MixedEstimator,
    variable: Column,
    X: Tabular,
    groups: Any = None,
    ax: Axes | None = None,
    **settings: Any,
) -> Axes:
    """Draw the average expected response of the rows of X against one input, with bands.

    Settings as in ``interpret.partial_dependence``.
    """
    table = interpret.partial_dependence(estimator, variable, X, groups, **settings)
    ax = _curves(estimator, table, ax)
    ax.set_title(f"Partial dependence: {table.columns[1]}")
    return ax


def variance_share(
    estimator: MixedEstimator,
    X: Tabular | None = None,
    ax: Axes | None = None,
    most: int = 20,
    **settings: Any,
) -> Axes:
    """Draw shares of the ``most`` important features in the variance between groups.

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


def _curves(estimator: MixedEstimator, table: Any, ax: Axes | None) -> Axes:
    """Draw a line per group, with bands and a legend if there are few, else thin and grey."""
    ax = axes_or_new(ax)
    variable, labels = table.columns[1], list(dict.fromkeys(table["group"]))
    few, named = len(labels) <= len(CURVES), isinstance(estimator.group_, str)
    mark = "o" if table[variable].nunique() <= 2 else None  # there is nothing between two values
    for i, label in enumerate(labels):
        curve = table[table["group"] == label]
        if few:
            colour, dash = CURVES[i]
            band = curve["lower"], curve["upper"]
            ax.fill_between(curve[variable], *band, color=colour, alpha=0.15, lw=0)
            said = label if label in UNGROUPED or not named else f"{estimator.group_} {label}"
            ax.plot(
                curve[variable], curve["mean"], dash, color=colour, lw=1.5, label=said, marker=mark
            )
        elif label == interpret.POPULATION:
            ax.plot(curve[variable], curve["mean"], color=BLUE, lw=2, zorder=3)
        else:
            ax.plot(curve[variable], curve["mean"], color=GREY, lw=0.8, alpha=0.7)
    if few and len(labels) > 1:
        legend_above(ax, loc="upper left", ncols=2)
    two = estimator.posterior_.model.response.support.two_valued
    ylabel = f"probability of {estimator.classes_[1]}" if two else "expected response"
    ax.set(xlabel=variable, ylabel=ylabel)
    return ax
