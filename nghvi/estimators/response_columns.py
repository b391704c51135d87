"""The response as numbers, and the facts about every row that the settings state.

Measurements stay as they are; a class becomes its position among the classes. A row may also have
trials, an exposure, bounds or a weight (:class:`RowFacts`). Each of these is a number for all rows,
or the name of a column, which is then not an input. They are the last columns of the table that a
model reads, in the same order as in a formula's design::

    inputs, log exposure (coefficient 1), facts of the response
"""

import numbers
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nghvi._core.errors import short, warn
from nghvi._core.response import Response, offenders
from nghvi.data.cells import KNOWN, check_there, misread
from nghvi.data.frame import (
    Cells,
    DataError,
    Table,
    Tabular,
    Vector,
    column_names,
    divide_columns,
    finite_bounds,
    read_cells,
    suggest,
)

MOST_CLASSES = 50
"""The most ordered classes; a response with more is probably a measurement."""
SETTINGS = ("trials", "exposure", "censored", "weights")
"""The settings that state facts about the rows."""
IN_FORMULA = {
    "trials": "'y | trials({0}) ~ ...'",
    "weights": "'y | weights({0}) ~ ...'",
    "exposure": "'... + exposure({0})'",
    "censored": "'censored(y, {0}, {1}) ~ ...'",
}
"""How a formula states the same."""


def learn_classes(
    y: np.ndarray, order: np.ndarray | None, response: Response, name: str = "y"
) -> np.ndarray:
    """Return the classes among training responses, in their order.

    ``order`` lists all classes if the data state their order; ``name`` is that of the response.
    """
    classes = _distinct(y)
    number = f"{len(classes)} class{'' if len(classes) == 1 else 'es'}"
    continuous = y.dtype.kind == "f" and (y != np.round(y)).any()
    if not response.takes_intercept:
        if len(classes) != 2:
            raise DataError(
                "Only binary classification is supported. "
                f"{name} {'is continuous and ' if continuous else ''}has {number} "
                f"({', '.join(map(str, classes[:5]))}), but a binary response needs "
                "exactly two. For ordered classes use response='ordered-logit' or "
                "'ordered-probit', for numbers MixedRegressor."
            )
        return classes if order is None else order[np.isin(order, classes)]
    if len(classes) < 2 or len(classes) > MOST_CLASSES:
        raise DataError(
            f"{name} {'is continuous and ' if continuous else ''}has {number}, but there must "
            f"be at least two and at most {MOST_CLASSES} ordered classes; for numbers use "
            "MixedRegressor."
        )
    if continuous:
        raise DataError(
            f"{name} holds fractions ({', '.join(map(str, classes[:5]))}), but ordered classes are "
            "whole numbers or text; number them, or for measurements use MixedRegressor."
        )
    if order is not None:
        return order
    if classes.dtype.kind not in "biuf":
        warn(
            f"the classes of {name} are text, so that their order is assumed to be alphabetical: "
            f"{' < '.join(map(str, classes))}. To state another, pass an ordered category, "
            "pandas.Categorical(y, categories=[...], ordered=True), which a Parquet file keeps."
        )
    elif absent := _left_out(classes):
        warn(
            f"no row of {name} is {', '.join(map(str, absent))}, between the classes that occur "
            f"({', '.join(f'{label:g}' for label in classes)}). Only the classes that occur are "
            "fitted, as if there were no gap; merge classes so that each has rows, or number them "
            "without a gap if this is intended."
        )
    return classes


def _left_out(classes: np.ndarray) -> list[int]:
    """Return whole numbers between the classes that are probably classes, as 2 is of 1, 3, 4.

    Labels with mostly absent numbers between them, such as 10, 20, 50, are codes.
    """
    known = {int(label) for label in classes}
    if max(known) - min(known) + 1 >= 2 * len(known):
        return []
    return sorted(set(range(min(known), max(known))) - known)


def _distinct(y: np.ndarray) -> np.ndarray:
    try:
        return np.unique(y)
    except TypeError:  # values that have no order, such as 1 and "a"
        kinds = ", ".join(sorted({type(value).__name__ for value in y}))
        raise DataError(
            f"y mixes labels of several kinds ({kinds}); convert them to one kind, for example by "
            "y.astype(str)."
        ) from None


def warn_of_order(data: Tabular, y: Vector | None) -> None:
    """Warn if the labels of the rows of y are those of the data in another order."""
    own, other = getattr(data, "index", None), getattr(y, "index", None)
    if not (isinstance(own, pd.Index) and isinstance(other, pd.Index)) or own.equals(other):
        return
    if len(own) == len(other) and own.is_unique and other.is_unique and own.isin(other).all():
        warn(
            "X and y have the same index in a different order. Rows are matched by their position, "
            "not by the index; pass y.loc[X.index] if that is not intended."
        )


def places_of(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the position of every response among the classes of the fit."""
    found = y[:, None] == classes
    unknown = ~found.any(axis=1)
    if unknown.any():
        shown = ", ".join(map(str, classes))
        raise DataError(
            f"y holds {y[unknown].tolist()[0]!r}, which is not a class of the fit ({shown})."
        )
    return np.argmax(found, axis=1).astype(float)


def measurements(y: np.ndarray, name: str = "y") -> np.ndarray:
    """Return responses as floats, or raise an error if they are not numbers."""
    if y.dtype.kind == "O" and all(isinstance(v, numbers.Real | Decimal) for v in y):
        y = y.astype(float)
    if y.dtype.kind not in "fiub":
        if said := misread(y, name):
            raise DataError(said)
        kind = "text or other objects" if y.dtype.kind in "OSU" else f"{y.dtype} values"
        raise DataError(
            f"{name} holds {kind}, but a regression needs numbers; for two classes use "
            "MixedClassifier, or response='probit' with a formula."
        )
    return y.astype(float)


class RowFact(NamedTuple):
    """One fact that a setting states about every row."""

    setting: str
    name: str
    """What the response calls it, such as "lower"; "exposure" concerns the model instead."""
    said: Any
    """A number for all rows, or the name of a column."""

    @property
    def label(self) -> str:
        """The name of the fact's column in a table."""
        return f"{self.name}({self.said})"

    def values(self, columns: dict[str, np.ndarray], num_rows: int) -> np.ndarray:
        """Return the fact for every row; an exposure as its logarithm, bounds as finite ones."""
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
                f"exposure={self.said!r} holds {offenders(found, none)}; an exposure must be above "
                "0, so leave out rows without exposure."
            )
        return np.log(found)


class RowFacts(NamedTuple):
    """All facts about the rows that the settings of an estimator state."""

    stated: tuple[RowFact, ...]

    @staticmethod
    def of(settings: Any) -> "RowFacts":
        """Read the facts from an estimator; a formula has to state them itself."""
        found = []
        for setting in SETTINGS:
            if (said := getattr(settings, setting)) is None:
                continue
            pair = _pair(said) if setting == "censored" else (said,)
            _check(setting, said, pair)
            if settings.formula is not None:
                written = IN_FORMULA[setting].format(*pair)
                raise DataError(
                    f"{setting}={said!r} cannot be combined with a formula; write {written} in the "
                    "formula instead."
                )
            names = ("lower", "upper") if setting == "censored" else (setting,)
            found += [RowFact(setting, *each) for each in zip(names, pair, strict=True)]
        # The offset comes before the facts of the response.
        return RowFacts(tuple(sorted(found, key=lambda fact: fact.setting != "exposure")))

    @property
    def known_coef(self) -> tuple[float, ...]:
        """Coefficients that are not estimated: 1 for an exposure."""
        return (1.0,) * sum(fact.setting == "exposure" for fact in self.stated)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the facts that the response reads."""
        return tuple(fact.name for fact in self.stated if fact.setting != "exposure")

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the data that hold facts."""
        return tuple(dict.fromkeys(f.said for f in self.stated if isinstance(f.said, str)))

    @property
    def bounds(self) -> tuple[str, ...]:
        """Columns of the data that hold censoring bounds, which may be infinite."""
        return tuple(name for name in self.columns if self.setting_of(name) == "censored")

    def setting_of(self, column: str) -> str:
        """Return the setting that names a column."""
        return next(fact.setting for fact in self.stated if fact.said == column)

    def cells(self, data: Tabular, group: Any, chosen: Iterable[str] | None = None) -> Cells:
        """Read inputs and groups of the data; ``chosen`` names the inputs, None reads all."""
        if self.stated:
            self._check_columns(data, group)
        return read_cells(divide_columns(data, self.columns)[0], group, chosen)

    def beside(self, table: Table, data: Tabular) -> Table:
        """Return the table with the facts about the rows appended to its inputs."""
        if not self.stated:
            return table
        columns = divide_columns(data, self.columns)[1]
        values = [fact.values(columns, len(table.values)) for fact in self.stated]
        names = (*table.names, *(fact.label for fact in self.stated))
        return table._replace(values=np.column_stack([table.values, *values]), names=names)

    def at(self, column: str, value: float) -> dict[str, float]:
        """Return the facts in a table, by name, that a column of the data with this value gives."""
        made = (fact for fact in self.stated if fact.said == column)
        return {fact.label: fact.values({column: np.array([value])}, 1).item() for fact in made}

    def _check_columns(self, data: Tabular, group: Any) -> None:
        there = column_names(data)
        for fact in self.stated:
            if not isinstance(fact.said, str) or fact.said in there:
                continue
            shown = f"{fact.setting}: there is no column {fact.said!r}"
            if not there:
                raise DataError(f"{shown}, since X is an array; pass a data frame that has it.")
            raise DataError(
                f"{shown} in X, which both fits and predictions need. {suggest(fact.said, there)}"
            )
        for name in group if isinstance(group, tuple) else (group,):
            if name in self.columns:
                raise DataError(
                    f"column {name!r} is the group column; {self.setting_of(name)} needs a column "
                    "of its own."
                )


def _pair(said: Any) -> tuple[Any, Any]:
    """Return lower and upper bound; None stands for no bound."""
    if not isinstance(said, list | tuple) or len(said) != 2:
        raise DataError(
            f"censored={said!r}: it must be a pair (lower, upper), each a number, the name of a "
            "column, or None for no bound."
        )
    lower, upper = said
    return -np.inf if lower is None else lower, np.inf if upper is None else upper


def _check(setting: str, said: Any, each: tuple[Any, ...]) -> None:
    for one in each:
        number = isinstance(one, numbers.Real) and not isinstance(one, bool | np.bool_)
        if not isinstance(one, str) and (not number or np.isnan(one)):
            raise DataError(
                f"{setting}={short(said)}: it must be the name of a column, or a number for all "
                "rows."
            )
