"""Where the rows of a fit come from: a table in memory, or files on disk.

Both kinds of source provide the names of the inputs, the labels of the groups, means and variances
over all rows, and a sample of rows. Once it is known how columns are scaled, both are read in the
same way. Code that uses a source need not know which of the two it is.
"""

import dataclasses
import functools
import os
import pathlib
from typing import Any, NamedTuple, Protocol

import numpy as np

from nghvi._core.errors import DataError, suggest
from nghvi._core.response import Response
from nghvi.data import parquet, working_copy
from nghvi.data.cells import check_sizes
from nghvi.data.factors import FactorRows
from nghvi.data.fingerprint import Fingerprint
from nghvi.data.frame import Group, Table, Vector, read_counts
from nghvi.data.grouped import Rows
from nghvi.data.parquet import Selection, column_names, files_of, index_names
from nghvi.data.scaling import Scaling, add_intercept, moments
from nghvi.data.working_copy import StreamedRows, WorkingCopy


@dataclasses.dataclass(frozen=True)
class GroupedDataset:
    """A Parquet file, or a folder of them, with more rows than fit into memory.

    Pass it to ``fit`` in place of a table, with the name of the response column::

        nghvi.MixedRegressor("firm", hidden=(32, 16)).fit(GroupedDataset("big.parquet"), "profit")

    The rows are copied once, sorted by group, into a working copy. A later fit to the same columns
    uses it again if the files have not changed, and predictions for known groups read it.
    ``remove`` deletes it.

    Parameters
    ----------
    path
        The file or folder.
    columns
        Names of the input columns; None, the default, takes all but the group and the response.
    workdir
        Folder of the working copy; by default it lies beside the data and has their name with
        ``.nghvi`` appended.
    """

    path: str | os.PathLike
    columns: tuple[str, ...] | None = None
    workdir: str | os.PathLike | None = None

    @property
    def directory(self) -> pathlib.Path:
        """The folder in which the working copy is, or will be."""
        if self.workdir is not None:
            return pathlib.Path(self.workdir).absolute()
        place = pathlib.Path(self.path).absolute()
        return place.with_name(f"{place.name}.nghvi")

    def select(self, group: str, response: str, *, classes: bool) -> Selection:
        """Return the columns of a fit; ``classes`` says that the response is a class label."""
        files = files_of(self.path)
        names = column_names(files)
        for name, role in ((group, "group"), (response, "response")):
            if name not in names:
                raise DataError(
                    f"{self.path}: there is no column {name!r} ({role}). {suggest(name, names)}"
                )
        others = (n for n in names if n not in {group, response, *index_names(files)})
        inputs = tuple(others if self.columns is None else self.columns)
        return Selection(inputs, group, response, classes)

    def copied(self, chosen: Selection, groups_per_piece: int | None, seed: int) -> WorkingCopy:
        """Return the working copy of these columns, which is made if there is none."""
        return parquet.make_copy(
            files_of(self.path), chosen, self.directory, groups_per_piece, seed
        )

    def remove(self) -> None:
        """Delete the working copy, if there is one."""
        working_copy.remove(self.directory)


Groups = np.ndarray | dict[str, np.ndarray]
"""Labels of the groups in the order of their codes; a dictionary by factor if there are several."""


def by_factor(groups: Groups) -> list[np.ndarray]:
    """Return the labels of every factor."""
    return list(groups.values()) if isinstance(groups, dict) else [groups]


class Sample(NamedTuple):
    """Rows of whole groups, on the scale of the data and without a column of ones."""

    x: np.ndarray
    y: np.ndarray
    codes: np.ndarray
    """Group of each row, as its position among the labels; one column per factor if several."""
    weight: np.ndarray | None
    """How often each row was observed; None if once."""


class Source(Protocol):
    """A source of the rows of a fit."""

    complete: bool
    """Whether the sample holds all rows."""

    @property
    def kept(self) -> np.ndarray | None:
        """Positions of the rows among all that were given; None if none was left out."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the input columns."""

    @property
    def groups(self) -> Groups:
        """Labels of the groups; empty if there are none."""

    @property
    def columns(self) -> tuple[Any, ...] | None:
        """Names of the columns that came with the data, including the group; None if it had none.

        A fitted estimator expects these in new data.
        """

    @property
    def sample(self) -> Sample:
        """Observed rows; those of random groups if there are too many."""

    @property
    def num_rows(self) -> float:
        """The number of observations."""

    @property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance over all rows, of the inputs and, last, of the response."""

    def check(self, response: Response) -> None:
        """Raise an error if there are observations that the response cannot take."""

    def read(
        self, scaling: Scaling, intercept: bool
    ) -> tuple[Rows | FactorRows | StreamedRows, Fingerprint]:
        """Return the rows as a model reads them, and a fingerprint to recognise them by.

        With ``intercept``, a column of ones comes first.
        """


@dataclasses.dataclass(frozen=True)
class InMemory:
    """A source that is a table in memory."""

    table: Table
    y: np.ndarray
    weight: np.ndarray | None
    codes: np.ndarray
    groups: Groups
    columns: tuple[Any, ...] | None
    response_name: str
    kept: np.ndarray | None = None
    """Positions of these rows among all that were given; None if none was left out."""
    complete = True

    @staticmethod
    def of(
        table: Table,
        y: np.ndarray,
        counts: Vector | None,
        *,
        group: Group,
        columns: tuple[Any, ...] | None,
        response_name: str,
    ) -> "InMemory":
        """Make a source from checked columns.

        ``counts`` says how often each row was observed, None if once. ``group`` and
        ``response_name`` are the names of these columns in messages.
        """
        check_sizes(np.abs(table.values).max(axis=0, initial=0.0), table.names)
        check_sizes(np.abs(y).max(keepdims=True), [response_name])
        weight = None if counts is None else read_counts(counts, len(y))
        codes, groups = _encoded(table, group)
        return InMemory(table, y, weight, codes, groups, columns, response_name)

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.table.names

    @property
    def num_rows(self) -> float:
        return len(self.y) if self.weight is None else float(self.weight.sum())

    @functools.cached_property
    def sample(self) -> Sample:
        everything = Sample(self.table.values, self.y, self.codes, self.weight)
        if self.weight is None or self.weight.all():
            return everything
        observed = self.weight > 0
        return Sample(*(values[observed] for values in everything if values is not None))

    @functools.cached_property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        return moments(np.column_stack([self.table.values, self.y]), self.weight)

    def check(self, response: Response) -> None:
        response.check(self.sample.y, self.response_name)

    def read(self, scaling: Scaling, intercept: bool) -> tuple[Rows | FactorRows, Fingerprint]:
        x = scaling.apply(add_intercept(self.table.values, intercept))
        y = scaling.apply_response(self.y)
        found = Fingerprint.of(x, y, self.codes, self.weight)
        if isinstance(self.groups, dict):
            number = tuple(map(len, self.groups.values()))
            return FactorRows(x, y, self.codes, self.weight, number), found
        return Rows.from_arrays(x, y, self.codes, max(len(self.groups), 1), self.weight), found


def _encoded(table: Table, group: Group) -> tuple[np.ndarray, Groups]:
    """Return codes and labels of the groups; a table without groups is one without a label."""
    if table.group is None:
        return np.zeros(len(table.values), int), np.array([])
    if isinstance(table.group, tuple) and isinstance(group, tuple):
        found = [
            _encoded_factor(each, name, f"out {name!r}, and keep the other factors")
            for each, name in zip(table.group, group, strict=True)
        ]
        codes = np.column_stack([codes for codes, _ in found])
        return codes, {str(name): own[1] for name, own in zip(group, found, strict=True)}
    return _encoded_factor(np.asarray(table.group), group)


def _encoded_factor(
    labels: np.ndarray,
    group: Group,
    remedy: str = "the group out (group=None, or no group term in a formula)",
) -> tuple[np.ndarray, np.ndarray]:
    levels, codes = np.unique(labels, return_inverse=True)
    if len(levels) == 1:
        raise DataError(
            f"group column {group!r} has only one level ({str(levels[0])!r}), so that effects "
            f"cannot vary; leave {remedy}."
        )
    return codes, levels


@dataclasses.dataclass(frozen=True)
class OnDisk:
    """A source that is a working copy of a dataset on disk, read piece by piece."""

    copy: WorkingCopy
    chosen: Selection
    complete = False
    kept = None

    @staticmethod
    def of(
        dataset: GroupedDataset,
        group: str,
        response: str,
        *,
        classes: bool,
        batch_groups: int | None,
        seed: int,
    ) -> "OnDisk":
        """Make a source of columns of a dataset, which are copied if they have not been yet.

        A piece has about ``batch_groups`` groups, dealt at random by ``seed``.
        """
        chosen = dataset.select(group, response, classes=classes)
        return OnDisk(dataset.copied(chosen, batch_groups, seed), chosen)

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.chosen.inputs

    @property
    def groups(self) -> np.ndarray:
        return self.copy.learnt.levels

    @property
    def columns(self) -> tuple[Any, ...]:
        return (self.chosen.group, *self.chosen.inputs)

    @property
    def num_rows(self) -> float:
        return float(self.copy.learnt.num_rows)

    @functools.cached_property
    def sample(self) -> Sample:
        records = self.copy.piece(0)
        there = records[:, -1] > 0
        codes = np.repeat(self.copy.dealt.members[0], self.copy.slots)[there]
        return Sample(records[there, :-2], records[there, -2], codes, None)

    @property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        return self.copy.learnt.mean, self.copy.learnt.variance

    def check(self, response: Response) -> None:
        column = str(self.chosen.response)
        response.check(self.sample.y, column)
        for number in range(len(self.copy.dealt.members)):
            records = self.copy.piece(number)
            y = records[records[:, -1] > 0, -2]
            outside = y[~response.support.holds(y)]
            if outside.size:
                raise response.outside_support(column, f"{outside[0]:g}")

    def read(self, scaling: Scaling, intercept: bool) -> tuple[StreamedRows, Fingerprint]:
        rows = StreamedRows(
            str(self.copy.directory),
            self.copy.identity,
            intercept=intercept,
            scaling=scaling,
            num_rows=self.num_rows,
            num_groups=len(self.groups),
            variance=float(self.copy.learnt.variance[-1]) / scaling.y_scale**2,
        )
        return rows, rows.fingerprint()
