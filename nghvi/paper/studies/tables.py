"""Tables as text, CSV and LaTeX, the paper's figure beside ours."""

import pathlib
from collections.abc import Iterable

import pandas as pd


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
