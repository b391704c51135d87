"""The response as numbers, and what the settings state about it in every row.

Measurements stay as they are; a class becomes its place among the classes. A row may also have
trials, an exposure, bounds or a weight (:class:`RowFacts`). Each of these is a number, the same for
all rows, or the name of a column, which is then not an input. The table that a model reads has them
last, in the order in which a formula's design has them::

    inputs, log exposure (coefficient 1), facts of the response
"""

import numbers
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from nghvi._core.errors import warn
from nghvi._core.response import Response, offenders
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

MOST_CLASSES = 50
SETTINGS = ("trials", "exposure", "censored", "weights")
IN_FORMULA = {
    "trials": "'y | trials({0}) ~ ...'",
    "weights": "'y | weights({0}) ~ ...'",
    "exposure": "'... + exposure({0})'",
    "censored": "'censored(y, {0}, {1}) ~ ...'",
}


def learn_classes(
    y: np.ndarray, order: np.ndarray | None, response: Response, name: str = "y"
) -> np.ndarray:
    """The classes among training responses of that name; ``order``: all, as the data state it."""
    classes = _distinct(y)
    number = f"{len(classes)} class{'' if len(classes) == 1 else 'es'}"
    continuous = y.dtype.kind == "f" and (y != np.round(y)).any()
    if not response.takes_intercept:
        if len(classes) != 2:
            raise DataError(
                "Only binary classification is supported. "
                f"{name} {'is continuous and ' if continuous else ''}has {number} "
                f"({', '.join(map(str, classes[:5]))}): a binary response needs "
                "exactly two; ordered classes are response='ordered-logit' or "
                "'ordered-probit', numbers are for MixedRegressor."
            )
        return classes
    if len(classes) < 2 or continuous or len(classes) > MOST_CLASSES:
        raise DataError(
            f"{name} {'is continuous and ' if continuous else ''}has {number}: "
            f"ordered classes are at least two and at most {MOST_CLASSES}; for numbers use "
            "MixedRegressor."
        )
    if order is not None:
        return order
    if classes.dtype.kind not in "biuf":
        warn(
            f"the classes of {name} are text, so their order is taken to be that of the alphabet: "
            f"{' < '.join(map(str, classes))}; to state it give an ordered category, "
            "pandas.Categorical(y, categories=[...], ordered=True)."
        )
    return classes


def _distinct(y: np.ndarray) -> np.ndarray:
    try:
        return np.unique(y)
    except TypeError:  # values that have no order, such as 1 and "a"
        kinds = ", ".join(sorted({type(value).__name__ for value in y}))
        raise DataError(
            f"y mixes labels of several kinds ({kinds}): give labels of one kind, for example "
            "y.astype(str)."
        ) from None


def places_of(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The place of every response among the classes of the fit."""
    found = y[:, None] == classes
    unknown = ~found.any(axis=1)
    if unknown.any():
        raise DataError(f"y holds {y[unknown][0]!r}, which is not a class of the fit ({classes}).")
    return np.argmax(found, axis=1).astype(float)


def measurements(y: np.ndarray, name: str = "y") -> np.ndarray:
    """Responses, of that name, that are numbers already."""
    if y.dtype.kind == "O" and all(isinstance(v, numbers.Real) for v in y):
        y = y.astype(float)
    if y.dtype.kind not in "fiub":
        raise DataError(
            f"{name} holds {y.dtype} values: a regression needs numbers; for two classes use "
            "MixedClassifier, or response='probit' with a formula."
        )
    return y.astype(float)


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
