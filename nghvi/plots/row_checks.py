"""Pictures that compare predictions with observations: replicates, calibration, residuals."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from scipy.ndimage import gaussian_filter1d
from scipy.special import bdtr

from nghvi._core.response import Support
from nghvi.data.frame import Tabular, Vector
from nghvi.estimators._base import MixedEstimator
from nghvi.plots.pictures import (
    BLUE,
    GREY,
    ORANGE,
    axes_or_new,
    grid_or_new,
    legend_above,
    line_colour,
)

BINS, CELLS, POINTS = 20, 40, 1000
"""Bins of averages; groups whose shares are shown; points of a cloud."""
GRID = 512
WIDE = 20
"""The ratio of the 95 % to the 5 % quantile of positive responses from which on their axis is
logarithmic."""
LEVEL = 0.9


def predictive_check(
    estimator: MixedEstimator,
    X: Tabular,
    y: Vector,
    ax: Axes | None = None,
    draws: int = 50,
    seed: int = 0,
) -> Axes:
    """Draw data sets simulated from the model, compared with the observed one.

    For numbers, the densities of all responses, on a logarithmic axis if they are positive and
    extend over more than an order of magnitude; for counts and several classes, how often each
    value occurs; for two classes, the share of the second class in every group (or, without
    groups, in tenths of the rows ordered by probability).
    """
    ax = axes_or_new(ax)
    support = estimator.posterior_.model.response.support
    observed = estimator.reader_.values(np.asarray(y))
    replicated = estimator.sample_predictive(
        X, max(draws, 200) if support.discrete else draws, seed
    )
    if support.two_valued:
        kind = "groups" if len(estimator.groups_) else "tenths of the rows"
        _shares(observed, replicated, _cells(estimator, X, replicated), kind, ax)
        ax.set_ylabel(f"share of {estimator.classes_[1]}")
    elif support.discrete:
        _bars(observed, replicated, ax)
        if hasattr(estimator, "classes_"):
            ax.set_xticks(range(len(estimator.classes_)), map(str, estimator.classes_))
    elif _is_wide(support, observed):
        least = observed.min() / WIDE
        _densities(np.log10(observed), np.log10(np.maximum(replicated, least)), ax)
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        ax.xaxis.set_major_formatter(lambda power, _: f"{10.0**power:g}")
        ax.set_xlabel("response (logarithmic axis)")
    else:
        _densities(observed, replicated, ax)
    ax.set_title("Predictive check")
    legend_above(ax, loc="upper right")
    return ax


def _is_wide(support: Support, y: np.ndarray) -> bool:
    """Return whether responses are positive and most of them would share one place of an axis."""
    low, high = np.quantile(y, [0.05, 0.95])
    positive = not support.closed and np.all(np.equal(support.low, 0)) and np.all(y > 0)
    return bool(positive and np.all(np.isinf(support.high)) and high > WIDE * low)


def _densities(y: np.ndarray, replicated: np.ndarray, ax: Axes) -> None:
    """Draw smoothed histograms on one grid with one bandwidth, so that they can be compared."""
    low, high = np.quantile(np.concatenate([y, replicated.ravel()]), [0.001, 0.999])
    spread = min(np.std(y), np.subtract(*np.quantile(y, [0.75, 0.25])) / 1.34) or np.std(y)
    width = 1.06 * spread * len(y) ** -0.2
    edges = np.linspace(low - 3 * width, high + 3 * width, GRID + 1)
    step = edges[1] - edges[0]

    def density(values: np.ndarray) -> np.ndarray:
        counts = np.histogram(values, edges)[0] / (len(values) * step)
        return gaussian_filter1d(counts, width / step, mode="constant")

    middle = 0.5 * (edges[1:] + edges[:-1])
    for i, each in enumerate(replicated):
        label = f"{len(replicated)} replicates from the model" if i == 0 else None
        ax.plot(middle[::2], density(each)[::2], color=GREY, lw=0.6, alpha=0.5, label=label)
    ax.plot(middle, density(y), color=BLUE, lw=2, label="observed")
    ax.set(xlabel="response", ylabel="density", yticks=[], ylim=(0, None))


def _bars(y: np.ndarray, replicated: np.ndarray, ax: Axes) -> None:
    """Draw how often each whole number occurs, many of them taken together by neighbours."""
    last = max(y.max(), np.quantile(replicated, 0.999))
    width = max(1, int(np.ceil((last - y.min() + 1) / CELLS)))
    edges = np.arange(y.min(), last + width + 1, width) - 0.5
    counts = np.stack([np.histogram(each, edges)[0] for each in replicated])
    low, high = np.quantile(counts, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2], axis=0)
    place = 0.5 * (edges[1:] + edges[:-1])
    ax.bar(place, np.histogram(y, edges)[0], 0.8 * width, color=BLUE, alpha=0.45, label="observed")
    ax.vlines(place, low, high, color=GREY, lw=3, label="90 % of replicates from the model")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel="response", ylabel="rows", ylim=(0, None))


def _cells(estimator: MixedEstimator, X: Tabular, replicated: np.ndarray) -> np.ndarray:
    """Return a number for every row: its group's, or the tenth of its probability."""
    if len(estimator.groups_):
        return estimator.reader_.request(estimator.posterior_, X).codes
    rank = np.argsort(np.argsort(replicated.mean(axis=0), kind="stable"))
    return rank * 10 // len(rank)


def _shares(y: np.ndarray, replicated: np.ndarray, cells: np.ndarray, kind: str, ax: Axes) -> None:
    sizes = pd.Series(cells).value_counts()
    kept = sizes.index[:CELLS]
    member = cells[:, None] == kept.to_numpy()
    size = member.sum(axis=0)
    shares = replicated @ member / size
    order = np.argsort(shares.mean(axis=0))
    low, high = np.quantile(shares, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2], axis=0)[:, order]
    place = np.arange(len(order))
    ax.vlines(place, low, high, color=GREY, lw=3, label="90 % of replicates from the model")
    ax.plot(place, (y @ member / size)[order], "o", ms=4, color=BLUE, label="observed")
    number = f"{CELLS} largest of {len(sizes):,}" if len(sizes) > CELLS else f"{len(sizes)}"
    ax.set(xlabel=f"{number} {kind}, by predicted share", xticks=[], ylim=(-0.02, 1))
    ax.set_yticks(np.linspace(0, 1, 6))


def calibration(
    estimator: MixedEstimator, X: Tabular, y: Vector, ax: Any = None, **settings: Any
) -> np.ndarray:
    """Draw in two panels whether predicted probabilities agree with observed frequencies.

    For numbers and counts: a histogram of the probability integral transform, and the share of
    responses inside intervals of every level. For two classes: observed shares by predicted
    probability, and how often each probability was predicted. Settings as in ``check_rows``.
    """
    return draw_calibration(estimator, estimator.check_rows(X, y, **settings), ax)


def draw_calibration(
    estimator: MixedEstimator, checked: pd.DataFrame, ax: Any = None
) -> np.ndarray:
    """Draw the picture of :func:`calibration` from rows that are checked already."""
    axes = grid_or_new(ax, 2, 2)
    left, right = axes.ravel()[:2]
    if not estimator.posterior_.model.response.support.two_valued:
        _pit_histogram(checked["pit"].to_numpy(), left)
        _coverage(checked["pit"].to_numpy(), right)
    else:
        second = estimator.classes_[1]
        _reliability(checked, str(second), left)
        right.hist(checked["predicted"], np.linspace(0, 1, 21), color=BLUE, alpha=0.5)
        right.set(xlabel=f"predicted probability of {second}", ylabel="rows")
        right.set_title("Predicted probabilities")
    return axes


def _pit_histogram(pit: np.ndarray, ax: Axes) -> None:
    number = int(np.clip(len(pit) // 20, 5, BINS))
    expected = len(pit) / number
    up_to = bdtr(np.arange(len(pit) + 1), len(pit), 1 / number)  # of binomial counts
    low, high = np.searchsorted(up_to, [0.005, 0.995])
    counts, edges = np.histogram(pit, number, (0, 1))
    ax.stairs(counts / expected, edges, color=BLUE, fill=True, alpha=0.45)
    for bound, label in ((low, None), (high, "99 % of chance")):
        ax.axhline(bound / expected, color=GREY, lw=1.5, ls="--", label=label)
    ax.axhline(1, color=line_colour(), lw=0.8)
    ax.set(xlim=(0, 1), xlabel="predicted probability of a smaller response", ylim=(0, None))
    ax.set(ylabel="relative frequency", title="PIT: flat if calibrated")
    legend_above(ax, loc="upper center")


def _coverage(pit: np.ndarray, ax: Axes) -> None:
    """Draw how many y are inside intervals: those with a PIT within level / 2 of a half."""
    level = np.linspace(0.01, 0.99, 99)
    inside = np.mean(np.abs(pit - 0.5)[:, None] <= level / 2, axis=0)
    noise = 2 * np.sqrt(level * (1 - level) / len(pit))
    ax.fill_between(level, level - noise, level + noise, color=GREY, alpha=0.25, lw=0)
    ax.plot([0, 1], [0, 1], color=line_colour(), lw=0.8)
    ax.plot(level, inside, color=BLUE, lw=1.8)
    at = float(np.mean(np.abs(pit - 0.5) <= LEVEL / 2))
    ax.plot([LEVEL], [at], "o", color=ORANGE, ms=5)
    ax.annotate(f"90 % intervals\nhold {100 * at:.0f} %", (LEVEL, at), (0.5, 0.12))
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="level of the interval", ylabel="share inside")
    ax.set_title("Coverage")


def _reliability(checked: pd.DataFrame, second: str, ax: Axes) -> None:
    means = _binned(checked["predicted"], checked["observed"])
    at, share, size = (means[name].to_numpy() for name in ("at", "value", "size"))
    noise = 2 * np.sqrt(at * (1 - at) / size)
    ax.plot([0, 1], [0, 1], color=line_colour(), lw=0.8)
    ax.vlines(at, at - noise, at + noise, color=GREY, lw=3, label="expected, 95 %")
    ax.plot(at, share, "o", ms=4, color=BLUE, label="observed")
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel=f"predicted probability of {second}")
    ax.set(ylabel="observed share", title="Calibration")
    ax.legend(frameon=False)


def residuals(
    estimator: MixedEstimator, X: Tabular, y: Vector, ax: Axes | None = None, **settings: Any
) -> Axes:
    """Draw residuals against predictions, with averages; settings as in ``check_rows``.

    For numbers, each residual is divided by its predictive sd. For classes, where single residuals
    tell nothing, averages of observed minus predicted are shown with the range to expect.
    """
    return draw_residuals(estimator, estimator.check_rows(X, y, **settings), ax)


def draw_residuals(
    estimator: MixedEstimator, checked: pd.DataFrame, ax: Axes | None = None
) -> Axes:
    """Draw the picture of :func:`residuals` from rows that are checked already."""
    ax = axes_or_new(ax)
    left = checked["observed"] - checked["predicted"]
    ax.axhline(0, color=line_colour(), lw=0.8)
    if estimator.posterior_.model.response.support.two_valued:
        noise = checked["predicted"] * (1 - checked["predicted"])
        means, spread = (_binned(checked["predicted"], v) for v in (left, noise))
        half = 2 * np.sqrt(spread["value"] / means["size"])
        ax.vlines(means["at"], -half, half, color=GREY, lw=3, label="expected, 95 %")
        ax.set(xlabel=f"predicted probability of {estimator.classes_[1]}")
        ax.set(ylabel="observed - predicted, average")
    else:
        scaled = left / checked["sd"]
        shown = checked.index[:: max(1, -(-len(checked) // POINTS))]
        label = None if len(shown) == len(checked) else f"{len(shown):,} of {len(checked):,} rows"
        ax.plot(
            checked["predicted"][shown],
            scaled[shown],
            "o",
            ms=2.5,
            color=GREY,
            alpha=0.6,
            label=label,
        )
        for bound in (-2, 2):
            ax.axhline(bound, color=GREY, lw=0.8, ls="--")
        means = _binned(checked["predicted"], scaled)
        ax.set(xlabel="predicted", ylabel="(observed - predicted) / sd")
    ax.plot(means["at"], means["value"], "o-", ms=3.5, lw=1, color=BLUE, label="average")
    ax.set_title("Residuals")
    legend_above(ax, loc="upper right", ncols=2)
    return ax


def _binned(at: pd.Series, value: pd.Series) -> pd.DataFrame:
    """Return averages in bins with equal numbers of rows."""
    bins = int(np.clip(len(at) // 10, 1, BINS))
    rank = at.rank(method="first").to_numpy()
    cell = ((rank - 1) * bins // len(at)).astype(int)
    frame = pd.DataFrame({"at": at, "value": value}).groupby(cell)
    return frame.mean().assign(size=frame.size())
