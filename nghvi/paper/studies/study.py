"""What a study is: cells to run, each a problem and a method, and a report made of their rows."""

import pathlib
from collections.abc import Callable
from typing import NamedTuple

from nghvi.paper.studies.problems import NUM_GROUPS
from nghvi.paper.studies.store import Row


class Options(NamedTuple):
    """How much of a study to run."""

    quick: bool = False
    """Few steps, groups and replicates: every table and figure, none of them to be believed."""
    replicates: int | None = None
    """Data sets; None is the study's own number."""
    seed: int = 1
    """Of the first data set."""
    parameters: pathlib.Path | None = None
    """The authors' file of Example 2(b)'s network."""
    data: pathlib.Path | None = None
    """Returns and factors of the asset pricing study; None is a synthetic panel."""

    def seeds(self, usual: int) -> range:
        """One seed a data set."""
        number = self.replicates or (min(2, usual) if self.quick else usual)
        return range(self.seed, self.seed + number)

    def steps(self, usual: int) -> int:
        """A published number of steps, a tenth of it where quick."""
        return usual // 10 if self.quick else usual

    def groups(self, usual: int = NUM_GROUPS) -> int:
        """A published number of groups, a tenth of it where quick."""
        return usual // 10 if self.quick else usual


class Study(NamedTuple):
    """One example of the paper."""

    name: str
    title: str
    cells: Callable[[Options], list[Row]]
    """Keys that tell cells apart, all of them text or numbers."""
    run: Callable[[Row, Options], Row]
    """What a cell found."""
    report: Callable[[list[Row], pathlib.Path], None]
    """Write tables and figures."""
    describe: Callable[[Options], str] | None = None
    """What it runs on, where that depends on the options."""
