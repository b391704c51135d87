"""The page of results, made of the rows and tables in a folder of studies::

python -m nghvi.paper.studies.page experiments/results docs/reproduction.md
"""

import argparse
import csv
import json
import os
import pathlib
import sys

from nghvi.paper.studies import STUDIES
from nghvi.paper.studies.sentences import SENTENCES
from nghvi.paper.studies.store import Row, StudyError
from nghvi.storage.replace import replaced

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
        lines += ["A quick run: few steps, groups and data sets. None of it is to be believed.", ""]
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
    parser = argparse.ArgumentParser(prog="python -m nghvi.paper.studies.page", description=__doc__)
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
