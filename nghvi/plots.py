"""Pictures of a fit. Every function draws on ``ax`` (a new one by default) and returns it."""

from typing import Any

import matplotlib

matplotlib.use("Agg", force=False)

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from nghvi import interpret
from nghvi.estimators import tables

BLUE, GREY, ORANGE = "#2a6f97", "#8d99ae", "#d1495b"
CURVES = [(colour, dash) for dash in ("-", "--") for colour in (BLUE, ORANGE, GREY)]
"""Colour and dash of curves that are told apart; more than these are not."""


def trace(estimator: Any, ax: Axes | None = None) -> Axes:
    """The noisy objective of the last stage against the step, with the final ELBO."""
    ax = plt.subplots()[1] if ax is None else ax
    table = estimator.trace_
    table = table[table["stage"] == table["stage"].iloc[-1]]
    ax.plot(np.arange(1, len(table) + 1), table["elbo"], color=BLUE, lw=1.2, marker="o", ms=2.5)
    if np.isfinite(estimator.elbo_):
        ax.axhline(estimator.elbo_, color=ORANGE, lw=1, label=f"ELBO {estimator.elbo_:.2f}")
        ax.legend(frameon=False)
    ax.ticklabel_format(axis="y", useOffset=False)
    ax.set(xlabel="step", ylabel="objective (noisy ELBO)", title="Optimisation")
    return ax


def posterior(
    estimator: Any, name: str, ax: Axes | None = None, truth: float | None = None
) -> Axes:
    """Posterior density of one parameter, with its 90 % interval."""
    ax = plt.subplots()[1] if ax is None else ax
    pool = estimator.posterior_.inference.pool
    values = tables.named_scalars(estimator.posterior_, pool.theta)[name]
    row = estimator.summary().loc[name]
    low, high = row["mean"] - 4 * row["sd"], row["mean"] + 4 * row["sd"]
    grid = np.linspace(max(low, values.min()), min(high, values.max()), 200)
    width = 1.06 * row["sd"] * pool.effective**-0.2
    density = np.exp(-0.5 * ((grid[:, None] - values) / width) ** 2) @ pool.weight
    density /= width * np.sqrt(2 * np.pi)
    ax.fill_between(grid, density, color=BLUE, alpha=0.25, lw=0)
    ax.plot(grid, density, color=BLUE, lw=1.5)
    ax.plot([row["q5"], row["q95"]], [0, 0], color=BLUE, lw=4, solid_capstyle="butt", clip_on=False)
    if truth is not None:
        ax.axvline(truth, color=ORANGE, lw=1.2, ls="--")
    ax.set(title=name, yticks=[], ylim=(0, None))
    return ax


def caterpillar(estimator: Any, effect: str | None = None, ax: Axes | None = None) -> Axes:
    """Group effects in order of size, with 90 % intervals."""
    ax = plt.subplots()[1] if ax is None else ax
    table = estimator.group_effects()
    effect = estimator.posterior_.names.effects[0] if effect is None else effect
    mean, sd = table[f"{effect}_mean"].to_numpy(), table[f"{effect}_sd"].to_numpy()
    order = np.argsort(mean)
    position = np.arange(len(order))
    ax.hlines(
        position, mean[order] - 1.645 * sd[order], mean[order] + 1.645 * sd[order], GREY, lw=1
    )
    ax.plot(mean[order], position, "o", ms=3, color=BLUE)
    ax.axvline(0, color="black", lw=0.6)
    ax.set(title=f"Group effects: {effect}", yticks=[], ylabel=f"{len(order)} groups")
    return ax


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
    ax = plt.subplots()[1] if ax is None else ax
    table = interpret.variance_share(estimator, X, **settings)
    shown = table.sort_values("mean", ascending=False).head(most)
    position = np.arange(len(shown))
    ax.barh(position, shown["mean"], color=BLUE, alpha=0.6, height=0.7)
    ends = np.clip([shown["mean"] - shown["sd"], shown["mean"] + shown["sd"]], 0, 1)
    ax.hlines(position, *ends, color="black", lw=1)
    ax.set_yticks(position, shown.index)
    ax.invert_yaxis()
    ax.set(xlim=(0, None), xlabel="share of the variance between groups", title="Variance shares")
    return ax


def _curves(estimator: Any, table: Any, ax: Axes | None) -> Axes:
    """One line a group; with bands and a legend if they are few, thin and grey if not."""
    ax = plt.subplots()[1] if ax is None else ax
    variable, labels = table.columns[1], list(dict.fromkeys(table["group"]))
    few = len(labels) <= len(CURVES)
    for i, label in enumerate(labels):
        curve = table[table["group"] == label]
        if few:
            colour, dash = CURVES[i]
            band = curve["lower"], curve["upper"]
            ax.fill_between(curve[variable], *band, color=colour, alpha=0.15, lw=0)
            ax.plot(curve[variable], curve["mean"], dash, color=colour, lw=1.5, label=str(label))
        elif label == interpret.POPULATION:
            ax.plot(curve[variable], curve["mean"], color=BLUE, lw=2, zorder=3)
        else:
            ax.plot(curve[variable], curve["mean"], color=GREY, lw=0.8, alpha=0.7)
    if few and len(labels) > 1:
        ax.legend(frameon=False)
    classes = getattr(estimator, "classes_", None)
    ylabel = "expected response" if classes is None else f"probability of {classes[1]}"
    ax.set(xlabel=variable, ylabel=ylabel)
    return ax


def overview(estimator: Any, truth: dict[str, float] | None = None) -> Any:
    """One figure: trace, group effects and the density of every main parameter."""
    truth = truth or {}
    shown = [n for n in estimator.summary().index if not n.startswith("effects_cov")]
    panels = 2 + len(shown)
    columns = 4
    rows = -(-panels // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.4 * columns, 2.7 * rows))
    flat = axes.ravel()
    trace(estimator, flat[0])
    if estimator.posterior_.names.effects:
        caterpillar(estimator, ax=flat[1])
    for ax, name in zip(flat[2:], shown, strict=False):
        posterior(estimator, name, ax, truth.get(name))
    for ax in flat[panels:]:
        ax.set_visible(False)
    figure.tight_layout()
    return figure
