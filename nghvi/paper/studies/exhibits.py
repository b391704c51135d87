"""Tables as text, CSV and LaTeX, the paper's number beside ours; figures in the paper's layout."""

import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nghvi.storage.file import replaced


def beside(ours: float, paper: float | None, digits: int = 4) -> str:
    """``ours (paper)``."""
    shown = "-" if pd.isna(ours) else f"{ours:.{digits}f}"
    return shown if paper is None else f"{shown} ({paper:.{digits}f})"


def write_table(table: pd.DataFrame, folder: pathlib.Path, name: str, caption: str) -> None:
    """Write ``name.txt``, ``.csv`` and ``.tex``; the index is the first column."""
    table = table.reset_index()
    (folder / f"{name}.txt").write_text(f"{caption}\n\n{table.to_string(index=False)}\n")
    table.to_csv(folder / f"{name}.csv", index=False)
    (folder / f"{name}.tex").write_text(_latex(table, caption))


def _latex(table: pd.DataFrame, caption: str) -> str:
    lines = [
        r"\begin{table}",
        rf"\caption{{{_escape(caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * (table.shape[1] - 1)}}}",
        r"\hline",
        _latex_row(table.columns),
        r"\hline",
        *(_latex_row(row) for row in table.itertuples(index=False)),
        r"\hline",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex_row(values: Iterable[object]) -> str:
    return " & ".join(_escape(str(value)) for value in values) + r" \\"


def _escape(text: str) -> str:
    for character in "&%$#_{}":
        text = text.replace(character, f"\\{character}")
    return text.replace("~", r"\~{}").replace("^", r"\^{}")


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
