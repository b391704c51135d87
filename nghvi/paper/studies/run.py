"""Running studies: cells one after the other, finished ones never again, then the report."""

import pathlib
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import nghvi
from nghvi.paper.studies.facts import about
from nghvi.paper.studies.store import Row, Store, StudyError
from nghvi.paper.studies.study import Options, Study


def reproduce(study: Study, folder: pathlib.Path, options: Options, console: Console) -> list[Row]:
    """Run what is missing, write tables and figures, return the study's rows."""
    facts = about()
    store = Store(folder / "rows", study.name, nghvi.__version__)
    cells = [{**cell, "quick": options.quick} for cell in study.cells(options)]
    missing = [cell for cell in cells if not store.has(cell)]
    if study.describe is not None:
        console.print(f"{study.name}: {study.describe(options)}", highlight=False)
    if len(missing) < len(cells):
        console.print(f"{study.name}: {len(cells) - len(missing)} cells were finished earlier")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task(study.name, total=len(missing))
        for cell in missing:
            shown = " ".join(str(v) for k, v in cell.items() if k != "quick")
            progress.update(task, description=f"{study.name}: {shown}")
            begun = time.perf_counter()
            found = study.run(cell, options)
            seconds = time.perf_counter() - begun
            store.add({**cell, **found, "cell_seconds": seconds, "about": facts})
            progress.advance(task)
        progress.update(task, description=study.name)
    rows = [row for row in store.rows if any(row.items() >= cell.items() for cell in cells)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        study.report(rows, folder)
    except OSError as error:
        raise StudyError(
            f"cannot write to {folder}: {error.strerror}; choose another --out."
        ) from error
    return rows
