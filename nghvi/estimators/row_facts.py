"""What settings state about every row: its trials, exposure, bounds or weight.

Each is a number, the same for all rows, or the name of a column, which is then not an input. The
table that a model reads has them last, in the order in which a formula's design has them::

    inputs, log exposure (coefficient 1), facts of the response
"""

import numbers
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from nghvi._core.support import offenders
from nghvi.data.frame import (
    Cells,
    DataError,
    Table,
    column_names,
    divide_columns,
    finite_bounds,
    read_cells,
    suggest,
)
from nghvi.data.missing import KNOWN, check_there

SETTINGS = ("trials", "exposure", "censored", "weights")
IN_FORMULA = {
    "trials": "'y | trials({0}) ~ ...'",
    "weights": "'y | weights({0}) ~ ...'",
    "exposure": "'... + exposure({0})'",
    "censored": "'censored(y, {0}, {1}) ~ ...'",
}


class RowFact(NamedTuple):
    """One of them."""

    setting: str
    name: str
    """What it is to the response, such as "lower"; "exposure" is to the model."""
    said: Any
    """A number, or the name of a column."""

    @property
    def label(self) -> str:
        """The name of its column in a table."""
        return f"{self.name}({self.said})"

    def values(self, columns: dict[str, np.ndarray], num_rows: int) -> np.ndarray:
        """Of every row."""
        if not isinstance(self.said, str):
            found = np.full(num_rows, float(self.said))
        else:
            found = columns[self.said]
        if self.setting == "censored":
            found = finite_bounds(found)
        check_there({str(self.said): found}, KNOWN)
        return self._log(found) if self.setting == "exposure" else found

    def _log(self, found: np.ndarray) -> np.ndarray:
        if (none := found <= 0).any():
            raise DataError(
                f"exposure={self.said!r} holds {offenders(found, none)}: an exposure must be above "
                "0; leave rows without exposure out."
            )
        return np.log(found)


class RowFacts(NamedTuple):
    """All that the settings of an estimator state."""

    stated: tuple[RowFact, ...]

    @staticmethod
    def of(settings: Any) -> "RowFacts":
        """From an estimator; beside a formula, which says the same, they are refused."""
        found = []
        for setting in SETTINGS:
            if (said := getattr(settings, setting)) is None:
                continue
            pair = _pair(said) if setting == "censored" else (said,)
            _check(setting, said, pair)
            if settings.formula is not None:
                written = IN_FORMULA[setting].format(*pair)
                raise DataError(
                    f"{setting}={said!r} beside a formula: write {written} in the formula."
                )
            names = ("lower", "upper") if setting == "censored" else (setting,)
            found += [RowFact(setting, *each) for each in zip(names, pair, strict=True)]
        # The offset stands before what the response knows.
        return RowFacts(tuple(sorted(found, key=lambda fact: fact.setting != "exposure")))

    @property
    def known_coef(self) -> tuple[float, ...]:
        """Coefficients that are not estimated."""
        return (1.0,) * sum(fact.setting == "exposure" for fact in self.stated)

    @property
    def names(self) -> tuple[str, ...]:
        """What the response is told of a row."""
        return tuple(fact.name for fact in self.stated if fact.setting != "exposure")

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the data that are read for it."""
        return tuple(dict.fromkeys(f.said for f in self.stated if isinstance(f.said, str)))

    @property
    def bounds(self) -> tuple[str, ...]:
        """Those of them that are bounds, which may be infinite."""
        return tuple(name for name in self.columns if self.setting_of(name) == "censored")

    def setting_of(self, column: str) -> str:
        """The setting that names the column."""
        return next(fact.setting for fact in self.stated if fact.said == column)

    def cells(self, data: Any, group: Any, chosen: Iterable[str] | None = None) -> Cells:
        """Inputs and groups of the data as they came; ``chosen``: inputs by name, all if None."""
        if self.stated:
            self._check_columns(data, group)
        return read_cells(divide_columns(data, self.columns)[0], group, chosen)

    def beside(self, table: Table, data: Any) -> Table:
        """The table with what is known about the rows after the inputs."""
        if not self.stated:
            return table
        columns = divide_columns(data, self.columns)[1]
        values = [fact.values(columns, len(table.values)) for fact in self.stated]
        names = (*table.names, *(fact.label for fact in self.stated))
        return table._replace(values=np.column_stack([table.values, *values]), names=names)

    def at(self, column: str, value: float) -> dict[str, float]:
        """The columns of that table that are made of one of the data, where it has this value."""
        made = (fact for fact in self.stated if fact.said == column)
        return {fact.label: fact.values({column: np.array([value])}, 1).item() for fact in made}

    def _check_columns(self, data: Any, group: Any) -> None:
        there = column_names(data)
        for fact in self.stated:
            if not isinstance(fact.said, str) or fact.said in there:
                continue
            shown = f"{fact.setting}: there is no column {fact.said!r}"
            if not there:
                raise DataError(f"{shown}, since X is an array: give a data frame that has it.")
            raise DataError(
                f"{shown} in X, where predictions read it as the fit does; "
                f"{suggest(fact.said, there)}."
            )
        for name in group if isinstance(group, tuple) else (group,):
            if name in self.columns:
                raise DataError(
                    f"column {name!r} holds the groups; it cannot say more of its rows."
                )


def _pair(said: Any) -> tuple[Any, Any]:
    """Lower and upper bound, None standing for no bound."""
    if not isinstance(said, list | tuple) or len(said) != 2:
        raise DataError(
            f"censored={said!r}: give a pair (lower, upper), each a number, the name of a column "
            "or None for no bound."
        )
    lower, upper = said
    return -np.inf if lower is None else lower, np.inf if upper is None else upper


def _check(setting: str, said: Any, each: tuple[Any, ...]) -> None:
    for one in each:
        number = isinstance(one, numbers.Real) and not isinstance(one, bool | np.bool_)
        if not isinstance(one, str) and (not number or np.isnan(one)):
            raise DataError(
                f"{setting}={said!r}: give the name of a column, or a number that holds for all "
                "rows."
            )
