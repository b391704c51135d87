"""The page of results, made of the rows and tables in a folder of studies::

    python -m nghvi.paper.studies.results_page experiments/results docs/reproduction.md

Its sentences say what reproduces, what does not, and why; their numbers are the rows'. A sentence
whose rows are not there yet, because a run is still going on, is left out.
"""

import argparse
import csv
import json
import os
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from nghvi.paper.studies import STUDIES, printed_values
from nghvi.paper.studies.appendix_probit import steps_to_end
from nghvi.paper.studies.compared import OURS
from nghvi.paper.studies.example3 import EFFECT_SD
from nghvi.paper.studies.store import Row, StudyError
from nghvi.storage.file import replaced

FRESH = (
    "Data are fresh draws from the paper's process, so levels differ from the paper's by sampling."
)
FEWEST_TO_TELL = 10
"""The number of data sets below which a majority may be due to chance."""


def example1(rows: list[Row]) -> list[str]:
    """The published advantage of NG-HVI over DAVI and what it is made of."""
    frame = pd.DataFrame(rows)
    index = ["num_groups", "ratio"]
    elbo = frame.pivot_table("elbo", index, "method")
    published = frame.pivot_table("published_elbo", index, "method")
    hybrid, legacy = "ng-hvi p=3", "davi-published"
    if not {OURS, hybrid, "davi", legacy} <= set(elbo):
        return []
    evidence = frame[frame["method"] == OURS].set_index(index)["log_evidence"]
    gap = elbo.sub(evidence, axis=0)
    printed = pd.Series({k: v[-1] for k, v in printed_values.TABLE_1.items()}).reindex(elbo.index)
    advantage = published[hybrid] - elbo[legacy]
    accounting = published[hybrid] - elbo[hybrid]
    farthest: Any = (advantage - printed).abs().idxmax()
    return [
        f"The log evidence is the ceiling of every ELBO. Over {len(elbo)} settings our default "
        f"stays within {-gap[OURS].min():.3f} nats of it, NG-HVI with three factors within "
        f"{-gap[hybrid].min():.2f}, DAVI with decaying steps within {-gap['davi'].min():.3f}.",
        f"Reproduces: computed as published, NG-HVI (three factors) is {_span(advantage)} nats "
        f"above DAVI; the paper prints {_span(printed)}. The two differ most with {farthest[0]} "
        f"groups and ratio {farthest[1]:g}, {advantage[farthest]:.1f} against "
        f"{printed[farthest]:.1f}: where steps of constant length end is chance.",
        "Does not reproduce: that this comes from a better approximation. The published value of "
        "NG-HVI takes likelihood and priors at the mean of q, and variances without a Jacobian: "
        f"this adds {_span(accounting)} nats. DAVI's steps of constant length leave it "
        f"{_span(elbo['davi'] - elbo[legacy])} nats short of its own optimum. What is left of the "
        f"advantage is {_span(elbo[hybrid] - elbo['davi'])} nats.",
        "With a Gaussian response DAVI's family contains NG-HVI's: its optimum cannot be lower.",
    ]


def probit(rows: list[Row]) -> list[str]:
    """How soon each rule has found the latent y*."""
    found = [
        f"{row['method']} after {steps_to_end(row)} steps (RMSE {row['trace'][-1]:.3f})"
        for row in rows
        if "trace" in row
    ]
    if not found:
        return []
    exact = [f" The exact posterior mean has {r['rmse']:.3f}." for r in rows if "rmse" in r]
    return ["RMSE of y* within 1 % of its end: " + "; ".join(found) + "." + "".join(exact)]


def network(rows: list[Row], printed: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A Gaussian network's test R2, over data sets."""
    frame, key = pd.DataFrame(rows), "r2_test"
    wide = frame.pivot_table(key, "seed", "method")
    return [
        f"Test R2, median (5-95 % of data sets), best first: {_ranking(frame, key, False)}.",
        *_duels(wide, 1, printed, key),
        f"{FRESH} Orderings are compared data set by data set.",
    ]


def example2a(rows: list[Row]) -> list[str]:
    """Example 2(a), with what its figure of ELBOs compares."""
    return [
        *network(rows, printed_values.EXAMPLE_2A),
        "The published ELBOs of Example 2 cannot be compared with DAVI's: those of the hybrid "
        "methods lack a constant (see the claims).",
    ]


def example2b(rows: list[Row]) -> list[str]:
    """Example 2(b)."""
    return network(rows, printed_values.EXAMPLE_2B)


def example3(rows: list[Row]) -> list[str]:
    """Test PCE of each process, runs of full length."""
    frame, key, found = pd.DataFrame(rows), "pce_test", []
    frame = frame[frame["steps"] == frame.groupby("method")["steps"].transform("max")]
    for process, group in frame.groupby("process"):
        wide = group.pivot_table(key, "seed", "method")
        # Printed figures are of the program's process.
        printed = printed_values.EXAMPLE_3 if process == "code" else {}
        found += [
            f"Effects of sd {EFFECT_SD[str(process)]}: test PCE, median (5-95 % of data sets), "
            f"best first: {_ranking(group, key, True)}; the true probabilities have "
            f"{group['pce_truth'].median():.4f}.",
            *_duels(wide, -1, printed, key),
        ]
    found.append(
        "The hybrid methods start with sds of 0.01 here, as the authors' program does; from sds of "
        "1, the start of the other examples, SG-HVI loses all units of its network."
    )
    found.append(
        f"{FRESH} NAGVAC's predictions draw effects from their prior, as published: it cannot use "
        "what is known about a group."
    )
    return found


def claims(rows: list[Row]) -> list[str]:
    """The table says it."""
    return [
        f"{len(rows)} statements of the paper or of the authors' program, each with numbers "
        "computed here. Wrong formulas are written out in the study; right ones are the library's, "
        "scipy's or dense algebra."
    ]


SENTENCES: dict[str, Callable[[list[Row]], list[str]]] = {
    "example1": example1,
    "probit": probit,
    "example2a": example2a,
    "example2b": example2b,
    "example3": example3,
    "claims": claims,
}
"""By study; a study without an entry has tables and figures only."""

DUELS = (
    ("ng-hvi", "sg-hvi"),
    ("ng-hvi", "davi-published"),
    ("ng-hvi", "davi"),
    ("ng-hvi", "nagvac"),
    (OURS, "ng-hvi"),
)


def _duels(
    wide: pd.DataFrame, sign: int, printed: Mapping[str, Mapping[str, float]], key: str
) -> list[str]:
    """In how many data sets one method beats another; ``sign`` 1 where larger is better."""
    found = []
    for one, other in DUELS:
        if not {one, other} <= set(wide):
            continue
        both = wide[[one, other]].dropna()
        if both.empty:
            continue
        difference = sign * (both[one] - both[other])
        wins = int((difference > 0).sum())
        said = f"{one} is better than {other} in {wins} of {len(both)} data sets"
        said += f" (median difference {sign * difference.median():+.4f}"
        verdict = ""
        if one in printed and other in printed:
            theirs = printed[one][key] - printed[other][key]
            said += f"; the paper's {theirs:+.4f}"
            agree = (2 * wins > len(both)) == (sign * theirs > 0)
            verdict = "Reproduces: " if agree else "Does not reproduce: "
            # Few data sets cannot tell by a sign test, many can fail to.
            if len(both) >= FEWEST_TO_TELL and binomtest(wins, len(both)).pvalue > 0.05:
                verdict = "Undecided: "
        found.append(f"{verdict}{said}).")
    return found


def _ranking(frame: pd.DataFrame, key: str, ascending: bool) -> str:
    found = []
    for method, group in frame.groupby("method"):
        middle, low, high = np.quantile(group[key], [0.5, 0.05, 0.95])
        interval = f" ({low:.4f}-{high:.4f})" if len(group) > 1 else ""
        found.append((middle, f"{method} {middle:.4f}{interval}"))
    return ", ".join(said for _, said in sorted(found, reverse=not ascending))


def _span(values: Any) -> str:
    values = values.dropna()
    return f"{values.min():z.1f} to {values.max():z.1f}"


TITLES = {
    "example1": "Example 1",
    "probit": "Web Appendix C.2",
    "example2a": "Example 2(a)",
    "example2b": "Example 2(b)",
    "example3": "Example 3",
    "finance": "Financial asset pricing",
    "summary": "All examples together",
    "claims": "Claims",
}
"""The page's sections in their order."""
PACKAGES = ("nghvi", "jax", "equinox", "optax", "numpy", "scipy", "pandas")
HEAD = """# The paper, reproduced

Written by `make results-page` from the rows in `{folder}`; do not edit. Rows hold every
number with date, versions and commit. Where a table shows two figures, ours stands first and the
paper's in brackets. Methods: `nghvi` is the library's default; `ng-hvi`, `sg-hvi`, `davi-published`
and `nagvac` are the published algorithms with their published settings; `davi` has decaying steps.
"""


def write_page(folder: pathlib.Path, page: pathlib.Path) -> None:
    """Write the page for what is in ``folder``."""
    if not folder.is_dir():
        raise StudyError(f"{folder}: there is no such folder; run 'nghvi reproduce' first.")
    shown = pathlib.Path(os.path.relpath(folder, page.parent))
    parts = [HEAD.format(folder=folder.as_posix())]
    parts += [section(name, folder, shown) for name in TITLES]
    with replaced(page) as file:
        file.write("\n".join(parts).encode())


def section(name: str, folder: pathlib.Path, shown: pathlib.Path) -> str:
    """One study; ``shown`` is the folder as seen from the page."""
    rows = read_rows(folder / "rows" / f"{name}.jsonl")
    files = [f for f in sorted(folder.iterdir()) if f.stem == name or f.stem.startswith(f"{name}_")]
    title = TITLES[name] + (f": {STUDIES[name].title}" if name in STUDIES else "")
    lines = [f"## {title}", ""]
    if not rows and not files:
        return "\n".join([*lines, "Absent: not run yet.", ""])
    lines += [f"`nghvi reproduce {name} --out {folder.as_posix()}`", ""]
    full = [row for row in rows if not row.get("quick")]
    if rows:
        lines += [made_by(full or rows), ""]
    if rows and not full:
        lines += ["A quick run: few steps, groups and data sets. None of it should be quoted.", ""]
    if full and name in SENTENCES:
        lines += [*(f"* {sentence}" for sentence in SENTENCES[name](full)), ""]
    for file in files:
        if file.suffix == ".csv":
            lines += [f"**{caption(file)}**", "", markdown(file), ""]
        elif file.suffix == ".png":
            lines += [f"![{file.stem}]({(shown / file.name).as_posix()})", ""]
    return "\n".join(lines)


def read_rows(path: pathlib.Path) -> list[Row]:
    """Rows of any version; none where the file is absent."""
    rows = []
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            raise StudyError(f"{path}, line {number}: not a row of a study; remove it.") from None
    return rows


def made_by(rows: list[Row]) -> str:
    """Number of rows, when, at which commits, with which versions, how busy the machine was."""
    about = [row["about"] for row in rows]
    dates = sorted({a["date"] for a in about})
    span = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    commits = dict.fromkeys(
        (a["commit"] or "unknown")[:7] + ("+" if a["uncommitted_changes"] else "") for a in about
    )
    versions = [f"Python {', '.join(sorted({a['python'] for a in about}))}"]
    for package in PACKAGES:
        found = sorted({a["versions"][package] for a in about if a["versions"].get(package)})
        versions += [f"{package} {', '.join(found)}"] * bool(found)
    load = max(a["load_average_at_start"] for a in about)
    changed = " (+: with uncommitted changes)" * any(c.endswith("+") for c in commits)
    return (
        f"{len(rows)} rows, {span}; commits {', '.join(commits)}{changed}; "
        f"{', '.join(versions)}; {about[-1]['cores']} cores, load up to {load:.1f} when runs "
        "began: times are those of a shared machine."
    )


def caption(table: pathlib.Path) -> str:
    """First line of the table's text form."""
    text = table.with_suffix(".txt")
    return text.read_text().splitlines()[0] if text.exists() else table.stem


def markdown(table: pathlib.Path) -> str:
    """A CSV file as a Markdown table."""
    with table.open(newline="") as file:
        head, *rows = csv.reader(file)
    return "\n".join(
        "| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |"
        for line in (head, ["---"] * len(head), *rows)
    )


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or say why not."""
    parser = argparse.ArgumentParser(
        prog="python -m nghvi.paper.studies.results_page", description=__doc__
    )
    parser.add_argument("folder", type=pathlib.Path, help="where studies have written")
    parser.add_argument("page", type=pathlib.Path, help="the Markdown file to write")
    chosen = parser.parse_args(arguments)
    try:
        write_page(chosen.folder, chosen.page)
    except StudyError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
