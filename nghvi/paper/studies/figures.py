"""Figures in the paper's layout."""

import pathlib
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from nghvi.storage.replace import replaced

STYLES = {
    "davi": {"color": "tab:red", "ls": ":"},
    "sg-hvi": {"color": "tab:blue", "ls": "-."},
    "ng-hvi": {"color": "black", "ls": "-"},
    "nagvac": {"color": "tab:green", "ls": "--"},
    "nghvi": {"color": "tab:orange", "ls": "-"},
}
"""The paper's lines; ours in orange."""


def style(method: str) -> dict[str, Any]:
    """Line style of a method by the first part of its name."""
    known = [name for name in STYLES if method.startswith(name)]
    return dict(STYLES[known[0]]) if known else {"color": "0.5", "ls": "-"}


def trace_axes(axes: Any, rows: Mapping[str, Any], label: str = "noisy ELBO") -> None:
    """A trace against steps (left) and against seconds (right).

    Values are ``trace_every`` steps apart, or those after ``trace_steps``.
    """
    for method, row in rows.items():
        trace = np.asarray(row["trace"])
        steps = row.get("trace_steps")
        if steps is None:
            steps = row["trace_every"] * np.arange(len(trace))
        axes[0].plot(steps, trace, label=method, lw=1, **style(method))
        seconds = steps * row["seconds"] / max(row["steps"], 1)
        axes[1].plot(seconds, trace, lw=1, **style(method))
    axes[0].set(xlabel="step", ylabel=label)
    axes[1].set(xlabel="seconds", ylabel=label)
    axes[1].sharey(axes[0])
    axes[0].legend(fontsize=8, frameon=False)


def box_axis(axis: Any, values: Mapping[str, np.ndarray], label: str) -> None:
    """Box plots over replicates."""
    axis.boxplot(list(values.values()), tick_labels=list(values), widths=0.6)
    axis.set_ylabel(label)
    axis.tick_params(axis="x", labelrotation=30)


def save(figure: Figure, folder: pathlib.Path, name: str) -> None:
    """Write ``name.png`` and forget the figure."""
    with replaced(folder / f"{name}.png") as file:
        figure.savefig(file, dpi=130, format="png")
    plt.close(figure)
