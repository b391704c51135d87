"""``GroupedDataset``: rows on disk that a fit reads piece by piece."""

import dataclasses
import os
import pathlib

from nghvi._core.errors import DataError
from nghvi.data import copying, working_copy
from nghvi.data.frame import suggest
from nghvi.data.parquet import Selection, column_names, files_of, index_names
from nghvi.data.working_copy import WorkingCopy


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

    def copied(self, chosen: Selection, groups_a_piece: int | None, seed: int) -> WorkingCopy:
        """The working copy of these columns, made if need be."""
        return copying.make(files_of(self.path), chosen, self.directory, groups_a_piece, seed)

    def remove(self) -> None:
        """Delete the working copy, if there is one."""
        working_copy.remove(self.directory)
