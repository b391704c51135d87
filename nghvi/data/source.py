"""Where the rows of a fit come from: a table in memory, or files on disk.

Both tell the same: names of the inputs, labels of the groups, means and variances over all rows,
and some rows to look at. Both are read once it is known how their columns are scaled. What comes
after a source does not ask which of the two it is.
"""

import dataclasses
import functools
import os
import pathlib
from typing import Any, NamedTuple, Protocol

import numpy as np

from nghvi._core.errors import DataError
from nghvi._core.response import Response
from nghvi.data import parquet, working_copy
from nghvi.data.factors import FactorRows
from nghvi.data.fingerprint import Fingerprint
from nghvi.data.frame import Group, Table, check_sizes, read_counts, suggest
from nghvi.data.grouped import Rows
from nghvi.data.parquet import Selection, column_names, files_of, index_names
from nghvi.data.scaling import Scaling, add_intercept, moments
from nghvi.data.working_copy import StreamedRows, WorkingCopy


@dataclasses.dataclass(frozen=True)
class GroupedDataset:
    """A Parquet file, or a folder of them, with more rows than fit into memory.

    Hand it to ``fit`` in place of a table, with the name of the response column::

        nghvi.MixedRegressor("firm", hidden=(32, 16)).fit(GroupedDataset("big.parquet"), "profit")

    The rows are copied once, sorted by group, into ``workdir`` (by default a folder beside the
    data, named after them with ``.nghvi`` at its end). A later fit of the same columns uses the
    copy again if the files have not changed, and predictions for known groups read it; ``remove``
    deletes it.

    Parameters
    ----------
    path
        The file or folder.
    columns
        The input columns; all but the group and the response, if None.
    workdir
        Where the copy is kept.
    """

    path: str | os.PathLike
    columns: tuple[str, ...] | None = None
    workdir: str | os.PathLike | None = None

    @property
    def directory(self) -> pathlib.Path:
        """Where the working copy is, or will be."""
        if self.workdir is not None:
            return pathlib.Path(self.workdir).absolute()
        place = pathlib.Path(self.path).absolute()
        return place.with_name(f"{place.name}.nghvi")

    def select(self, group: str, response: str, *, classes: bool) -> Selection:
        """The columns of a fit."""
        files = files_of(self.path)
        names = column_names(files)
        for name, role in ((group, "group"), (response, "response")):
            if name not in names:
                raise DataError(
                    f"{self.path}: there is no column {name!r} ({role}); {suggest(name, names)}."
                )
        others = (n for n in names if n not in {group, response, *index_names(files)})
        inputs = tuple(others if self.columns is None else self.columns)
        return Selection(inputs, group, response, classes)

    def copied(self, chosen: Selection, groups_per_piece: int | None, seed: int) -> WorkingCopy:
        """The working copy of these columns, made if need be."""
        return parquet.make_copy(
            files_of(self.path), chosen, self.directory, groups_per_piece, seed
        )

    def remove(self) -> None:
        """Delete the working copy, if there is one."""
        working_copy.remove(self.directory)


Groups = np.ndarray | dict[str, np.ndarray]
"""Labels of the groups, in the order of their codes; by factor where there are several."""


class Sample(NamedTuple):
    """Rows of whole groups on the scale of the data, without a column of ones."""

    x: np.ndarray
    y: np.ndarray
    codes: np.ndarray
    """Group of each row, as its place among the labels; of several factors, one column each."""
    weight: np.ndarray | None
    """How often each row was observed, if not once."""


class Source(Protocol):
    """The rows of a fit."""

    complete: bool
    """Whether the sample holds all rows."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the input columns."""

    @property
    def groups(self) -> Groups:
        """Labels of the groups; empty where there are none."""

    @property
    def columns(self) -> tuple[Any, ...] | None:
        """Names of the columns that came with the data, the group's included; None: they had none.

        Those that a fitted estimator expects in new data.
        """

    @property
    def sample(self) -> Sample:
        """Rows that were observed, at random where they are too many."""

    @property
    def num_rows(self) -> float:
        """How many observations there are."""

    @property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the inputs and, last, the response over all rows."""

    def check(self, response: Response) -> None:
        """Complain of observations that the response cannot take."""

    def read(
        self, scaling: Scaling, intercept: bool
    ) -> tuple[Rows | FactorRows | StreamedRows, Fingerprint]:
        """The rows as a model reads them, and what they are recognised by.

        A column of ones comes first if there is an intercept.
        """


@dataclasses.dataclass(frozen=True)
class InMemory:
    """A table."""

    table: Table
    y: np.ndarray
    weight: np.ndarray | None
    codes: np.ndarray
    groups: Groups
    columns: tuple[Any, ...] | None
    response_name: str
    complete = True

    @staticmethod
    def of(
        table: Table,
        y: np.ndarray,
        counts: Any,
        *,
        group: Group,
        columns: tuple[Any, ...] | None,
        response_name: str,
    ) -> "InMemory":
        """From checked columns.

        ``counts``: how often each row was observed, or None; ``group``, ``response_name``: what
        messages call these columns.
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
    """Codes and labels of the groups; a table without them is one group that has no label."""
    if table.group is None:
        return np.zeros(len(table.values), int), np.array([])
    if isinstance(table.group, tuple) and isinstance(group, tuple):
        found = [_encoded_factor(each, name) for each, name in zip(table.group, group, strict=True)]
        codes = np.column_stack([codes for codes, _ in found])
        return codes, {str(name): own[1] for name, own in zip(group, found, strict=True)}
    return _encoded_factor(np.asarray(table.group), group)


def _encoded_factor(labels: np.ndarray, group: Group) -> tuple[np.ndarray, np.ndarray]:
    levels, codes = np.unique(labels, return_inverse=True)
    if len(levels) == 1:
        raise DataError(
            f"group column {group!r} has only one level ({str(levels[0])!r}): effects cannot vary; "
            "leave the group out (group=None, or no group term in a formula)."
        )
    return codes, levels


@dataclasses.dataclass(frozen=True)
class OnDisk:
    """A working copy of the rows of a dataset, read piece by piece."""

    copy: WorkingCopy
    chosen: Selection
    complete = False

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
        """The columns of a dataset, copied if they are not yet.

        ``batch_groups``: about so many groups per piece; ``seed`` deals them.
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
