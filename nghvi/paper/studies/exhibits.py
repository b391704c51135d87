"""Tables as text, CSV and LaTeX with the paper's numbers next to ours; figures as in the paper."""

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nghvi.storage.file import replaced


def beside(ours: float, paper: float | None, digits: int = 4) -> str:
    """``ours (paper)``."""
    shown = "-" if pd.isna(ours) else f"{ours:.{digits}f}"
    return shown if paper is None else f"{shown} ({paper:.{digits}f})"


class Table(NamedTuple):
    """What a study found; the index is the first column."""

    name: str
    caption: str
    frame: pd.DataFrame


def write_table(table: Table, folder: pathlib.Path) -> None:
    """Write ``name.txt``, ``.csv`` and ``.tex``."""
    name, caption, frame = table
    frame = frame.reset_index()
    (folder / f"{name}.txt").write_text(f"{caption}\n\n{frame.to_string(index=False)}\n")
    frame.to_csv(folder / f"{name}.csv", index=False)
    (folder / f"{name}.tex").write_text(_latex(frame, caption))


UNBROKEN = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of a page; a number and its standard error stay on one line."""
    return "\n".join(
        "| " + " | ".join(c.replace("|", r"\|").replace(" ± ", UNBROKEN) for c in line) + " |"
        for line in (head, ["---"] * len(head), *lines)
    )


def verdicts(said: Iterable[str]) -> str:
    """How often each verdict was given: ``not converged 19, converged 1``; a single one without."""
    counts = pd.Series([verdict.partition(":")[0].lower() for verdict in said]).value_counts()
    if counts.sum() == 1:
        return str(counts.index[0])
    return ", ".join(f"{verdict} {count}" for verdict, count in counts.items())


def listed(said: Iterable[str]) -> str:
    """``a, b and c``."""
    *first, last = said
    return f"{', '.join(first)} and {last}" if first else last


def span(values: pd.Series, digits: int = 1) -> str:
    """Smallest to largest."""
    values = values.dropna()
    return f"{values.min():z.{digits}f} to {values.max():z.{digits}f}"


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

    Values are ``trace_every`` steps apart, or those after ``trace_steps``, which are marked: there
    are few of them. A step takes ``seconds_a_step`` where that is known, else its share of the run.
    """
    for method, row in rows.items():
        trace = np.asarray(row["trace"])
        look = {"lw": 1, **style(method)}
        steps = row.get("trace_steps")
        if steps is None:
            steps = row["trace_every"] * np.arange(len(trace))
        else:
            look |= {"marker": "o", "ms": 4}
        axes[0].plot(steps, trace, label=method, **look)
        usual = row["seconds"] / max(row["steps"], 1)
        axes[1].plot(steps * row.get("seconds_a_step", usual), trace, **look)
    axes[0].set(xlabel="step", ylabel=label)
    axes[1].set(xlabel="seconds", ylabel=label)
    axes[1].sharey(axes[0])
    axes[0].legend(fontsize=8, frameon=False)


FEWEST_FOR_A_BOX = 10
"""With fewer values than this, quartiles say less than the values themselves."""


def box_axis(axis: Any, values: Mapping[str, np.ndarray], label: str) -> None:
    """Box plots over replicates; the values themselves if there are few."""
    places = np.arange(1, len(values) + 1)
    for place, found in zip(places, values.values(), strict=True):
        if len(found) < FEWEST_FOR_A_BOX:
            axis.plot(np.full(len(found), place), found, "o", ms=4, color="0.3")
        else:
            axis.boxplot([found], positions=[place], widths=0.6)
    axis.set_xticks(places, list(values))
    axis.set_xlim(0.5, len(values) + 0.5)
    axis.set_ylabel(label)
    axis.tick_params(axis="x", labelrotation=30)


def save(figure: Figure, folder: pathlib.Path, name: str) -> None:
    """Write ``name.png`` and close the figure."""
    with replaced(folder / f"{name}.png") as file:
        figure.savefig(file, dpi=130, format="png")
    plt.close(figure)
