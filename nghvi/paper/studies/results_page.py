"""The page of results, written from the rows and tables in a folder of studies::

    python -m nghvi.paper.studies.results_page experiments/results docs/reproduction.md --anew

The story comes first: what reproduces, what does not, and why. ``--anew`` first rebuilds the tables
and figures from the rows, whatever version wrote them; no study is run.
"""

import argparse
import csv
import json
import os
import pathlib
import sys

from nghvi.paper.studies import STUDIES
from nghvi.paper.studies.exhibits import markdown
from nghvi.paper.studies.findings import SENTENCES
from nghvi.paper.studies.labels import LABELS, NO
from nghvi.paper.studies.store import Row, StudyError
from nghvi.storage.file import replaced

TITLES = {
    "example1": "Example 1",
    "probit": "Web Appendix C.2",
    "example2a": "Example 2(a)",
    "example2b": "Example 2(b)",
    "example3": "Example 3",
    "finance": "Financial asset pricing",
    "months": "Months as a second factor",
    "summary": "All examples together",
    "controls": "Control runs",
    "claims": "Claims",
}
"""The page's sections in their order."""
PACKAGES = ("nghvi", "jax", "equinox", "optax", "numpy", "scipy", "pandas")
HEAD = """# The paper, reproduced

This page says which results of the paper reproduce, which do not, and why. `make results-page`
writes it from the rows in `{folder}`, so do not edit it.
"""
LEGEND = """## How to read this page

A statement that one method is better than another **reproduces** if at least ten data sets show
the paper's sign in a majority that is not due to chance (sign test, 5 %) and the median difference
is half to twice the paper's. It reproduces **in direction only** if the difference is smaller or
larger than that. With fewer than ten data sets there is no verdict. For the single panel of returns
we require two standard errors. An explanation does not reproduce if the numbers contradict it. The
sections below give the reasons for the verdicts, and {corrected} compares the corrected method with
the printed one.

The rows hold every number with its date, versions and commit. Where a table shows two figures, ours
comes first and the paper's is in brackets. The methods: `nghvi` is the library's default method in
the version that a section names, for networks of the paper's structure ({today} has today's);
`ng-hvi`, `sg-hvi` and `davi-published` are the published algorithms with the settings of the
authors' program; `davi` has decaying steps; `nagvac` has a correct natural gradient, independent
draws and fewer steps. "Not converged" is the library's verdict on a fit; for a published run of
fixed length it means that the run ends short of its own optimum. Only the times under "All examples
together" were measured on a quieter machine. All others, in the files and in the figures, were
taken while it did other work (each row records the load), so they are not comparable with each
other or with the paper's.
"""
CORRECTED, TODAY = "[](corrected.md)", "[](deep.md)"
SHOWN = {
    "example1": "K|ratio|nghvi|p=0|p=3|SG p=3|DAVI|DAVI published",
    "example2a": "method|R2 train|R2 test|5-95 %|log score|steps|data sets|verdicts",
    "example2b": "method|R2 train|R2 test|log score|coverage|steps|data sets|verdicts",
    "controls_nagvac": "method|R2 train|R2 test|R2 test, effects from their prior|steps|verdict",
    "example3_code": "method|PCE train|PCE test|F1 test|PCE 5-95 %|steps|data sets|verdicts",
    "example3_text": "method|PCE train|PCE test|F1 test|PCE 5-95 %|steps|data sets|verdicts",
    "finance_models": (
        "model|factors|LS test|R2 test|over linear|over Gaussian|sd log s2|converged"
    ),
    "finance_changes": ("model|priors|covariance|rank|LS test|difference|sd log s2|converged"),
    "months_models": (
        "model|factors|seed|months|network|one by one, difference|jointly, difference|status"
    ),
    "summary": "example|m|z|n|p|lambda|s per step|minutes",
}
"""The columns of wide tables that the page shows; the files have all columns."""
LEADING = ("example3_code", "example3_text", "finance_models", "controls_example3")
"""Tables that come first in their section; otherwise files follow each other by name."""


def write_page(folder: pathlib.Path, page: pathlib.Path) -> None:
    """Write the page for what is in ``folder``."""
    with replaced(page) as file:
        file.write(page_text(folder, page).encode())


def page_text(folder: pathlib.Path, page: pathlib.Path) -> str:
    """The page for what is in ``folder``, as it would be written to ``page``."""
    if not folder.is_dir():
        raise StudyError(f"{folder}: there is no such folder; run 'nghvi reproduce' first.")
    shown = pathlib.Path(os.path.relpath(folder, page.parent))
    rows = {name: read_rows(folder / "rows" / f"{name}.jsonl") for name in TITLES}
    full = {name: [row for row in of if not row.get("quick")] for name, of in rows.items()}
    said = {name: SENTENCES[name](full) for name, of in full.items() if of and name in SENTENCES}
    legend = LEGEND.format(corrected=CORRECTED, today=TODAY)
    parts = [HEAD.format(folder=folder.as_posix()), story(said), legend]
    for name in TITLES:
        parts.append(section(name, folder, shown, full[name] or rows[name], said.get(name, [])))
    return "\n".join(parts)


def story(said: dict[str, list[str]]) -> str:
    """The labelled sentences of all studies, by label; shortened unless something differs."""
    lines = []
    for label in LABELS:
        found = [
            (TITLES[name], sentence.removeprefix(f"{label}: "))
            for name, sentences in said.items()
            for sentence in sentences
            if sentence.startswith(f"{label}: ")
        ]
        if label != NO:
            found = [(title, text.split(" (")[0].rstrip(".") + ".") for title, text in found]
        if found:
            lines += [f"**{label}**", "", *(f"* {title}: {text}" for title, text in found), ""]
    return "\n".join(["## In short", "", *lines]) if lines else ""


def section(
    name: str, folder: pathlib.Path, shown: pathlib.Path, rows: list[Row], said: list[str]
) -> str:
    """One study; ``shown`` is the folder as seen from the page."""
    files = [f for f in folder.iterdir() if f.stem == name or f.stem.startswith(f"{name}_")]
    files.sort(key=lambda f: (f.stem not in LEADING, f.name))
    title = TITLES[name] + (f": {STUDIES[name].title}" if name in STUDIES else "")
    lines = [f"## {title}", ""]
    if not rows and not files:
        return "\n".join([*lines, "This study has not been run yet.", ""])
    needs = f" {STUDIES[name].needs}" if STUDIES[name].needs else ""
    lines += [f"`nghvi reproduce {name}{needs} --out {folder.as_posix()}`", ""]
    if rows:
        lines += [made_by(rows) + data_of(name, rows), ""]
    if rows and rows[0].get("quick"):
        lines += ["A quick run with few steps, groups and data sets: do not quote its results.", ""]
    if said:
        lines += [*(f"* {sentence}" for sentence in said), ""]
    for file in files:
        if file.suffix == ".csv":
            lines += [f"**{caption(file)}**", "", *shown_columns(file, folder), ""]
        elif file.suffix == ".png":
            lines += [f"![{file.stem}]({(shown / file.name).as_posix()})", ""]
    return "\n".join(lines)


def data_of(name: str, rows: list[Row]) -> str:
    """Which data or parameters the rows were made with, if there is a choice."""
    for option, key in (("--data", "data"), ("--parameters", "network")):
        if option in STUDIES[name].needs:
            used = sorted({row[key] for row in rows if key in row})
            if used:
                return f" Made with: {', '.join(used)}."
            if key == "network":
                return " These rows were written before rows recorded the network."
    return ""


def shown_columns(table: pathlib.Path, folder: pathlib.Path) -> list[str]:
    """A CSV file as a Markdown table that fits a page."""
    with table.open(newline="") as file:
        head, *lines = csv.reader(file)
    chosen = SHOWN[table.stem].split("|") if table.stem in SHOWN else head
    places = [head.index(column) for column in chosen]
    found = [markdown(chosen, [[line[place] for place in places] for line in lines])]
    if len(chosen) < len(head):
        found += ["", f"All columns: `{(folder / table.name).as_posix()}`."]
    return found


def make_anew(folder: pathlib.Path) -> None:
    """Rebuild the tables and figures of every study that has rows."""
    for name, study in STUDIES.items():
        rows = read_rows(folder / "rows" / f"{name}.jsonl")
        full = [row for row in rows if not row.get("quick")]
        if full:
            study.report(full, folder)


def read_rows(path: pathlib.Path) -> list[Row]:
    """Rows of any version; none if there is no file."""
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
        f"{', '.join(versions)}; {about[-1]['cores']} cores of a shared machine, with a load of up "
        f"to {load:.1f} when runs started."
    )


def caption(table: pathlib.Path) -> str:
    """First line of the table's text form; its asterisks are no emphasis."""
    text = table.with_suffix(".txt")
    first = text.read_text().splitlines()[0] if text.exists() else table.stem
    return first.replace("*", r"\*")


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or say why not."""
    parser = argparse.ArgumentParser(
        prog="python -m nghvi.paper.studies.results_page", description=__doc__
    )
    parser.add_argument("folder", type=pathlib.Path, help="the folder that the studies wrote to")
    parser.add_argument("page", type=pathlib.Path, help="the Markdown file to write")
    parser.add_argument("--anew", action="store_true", help="rebuild tables and figures")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.anew:
            make_anew(chosen.folder)
        write_page(chosen.folder, chosen.page)
    except StudyError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
