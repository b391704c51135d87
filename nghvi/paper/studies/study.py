"""What a study is: cells to run, each a problem and a method, and a report made from their rows."""

import pathlib
import time
from collections.abc import Callable
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import nghvi
from nghvi.paper.studies.exhibits import Table, write_table
from nghvi.paper.studies.facts import about
from nghvi.paper.studies.problems import NUM_GROUPS
from nghvi.paper.studies.store import Row, Store, StudyError


class Options(NamedTuple):
    """How much of a study to run."""

    quick: bool = False
    """Few steps, groups and replicates: makes all tables and figures, but do not quote them."""
    replicates: int | None = None
    """Number of data sets; None is the study's own number."""
    seed: int = 1
    """The seed of the first data set."""
    parameters: pathlib.Path | None = None
    """The authors' file of Example 2(b)'s network."""
    data: pathlib.Path | None = None
    """Returns and factors of the asset pricing study; None is a synthetic panel."""
    any_version: bool = False
    """Count the cells that other versions of the library have run as finished, too."""

    def seeds(self, usual: int) -> range:
        """One seed per data set."""
        number = self.replicates or (min(2, usual) if self.quick else usual)
        return range(self.seed, self.seed + number)

    def steps(self, usual: int) -> int:
        """A published number of steps, or a tenth of it in a quick run."""
        return usual // 10 if self.quick else usual

    def groups(self, usual: int = NUM_GROUPS) -> int:
        """A published number of groups, or a tenth of it in a quick run."""
        return usual // 10 if self.quick else usual


class Study(NamedTuple):
    """One example of the paper."""

    name: str
    title: str
    cells: Callable[[Options], list[Row]]
    """Keys that tell cells apart, all of them text or numbers."""
    run: Callable[[Row, Options], Row]
    """What a cell found."""
    tables: Callable[[list[Row]], list[Table]]
    figures: Callable[[list[Row], pathlib.Path], None] | None = None
    """Write the pictures."""
    describe: Callable[[Options], str] | None = None
    """Says what it runs on, if that depends on the options."""
    needs: str = ""
    """The options without which it does not run on the paper's data or parameters."""

    def report(self, rows: list[Row], folder: pathlib.Path) -> None:
        """Write tables and figures."""
        for table in self.tables(rows):
            write_table(table, folder)
        if self.figures is not None:
            self.figures(rows, folder)


def reproduce(study: Study, folder: pathlib.Path, options: Options, console: Console) -> list[Row]:
    """Run what is missing, write tables and figures, return the study's rows."""
    facts = about()
    any_version = options.any_version
    store = Store(folder / "rows", study.name, nghvi.__version__, any_version=any_version)
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
