"""Reads numbers and group labels from a data frame or an array; every error names the column.

Tables of pandas, polars and pyarrow (through narwhals) and numpy arrays become float arrays and
labels.
"""

import warnings
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple, cast

import narwhals as nw
import numpy as np
import pandas as pd
from narwhals.typing import IntoDataFrame, IntoSeries
from scipy.sparse import issparse

from nghvi._core.errors import DataError as DataError
from nghvi._core.errors import as_table, in_backticks, suggest, warn
from nghvi.data.cells import (
    AFTERWARDS,
    as_numbers,
    check_there,
    count,
    dates_remedy,
    misread,
    missing,
    places,
    unmasked,
    unusable,
)
from nghvi.data.labels import read_labels

Tabular = IntoDataFrame | np.ndarray | Sequence[Sequence[Any]]
"""A table: a data frame of pandas, polars or pyarrow, or an array with two axes."""
Vector = IntoSeries | np.ndarray | Sequence[Any]
"""A column: a series, an array with one axis or a list."""
Column = str | int
Group = Column | tuple[Column, ...] | None
"""The column of the grouping factor, a tuple of columns for several factors, None for none."""
NO_BOUND = 1e50
"""The bound that stands for none, since columns have to be finite."""


class ColumnTypeError(DataError, TypeError):
    """A column holds objects that are neither numbers nor text."""


class Table(NamedTuple):
    """Numeric inputs with their names, and the group label of each row."""

    values: np.ndarray
    names: tuple[str, ...]
    group: np.ndarray | tuple[np.ndarray, ...] | None
    """Labels of the rows; a tuple of such arrays if there are several factors."""
    named: bool
    """Whether the names came with the data (a frame) or were made up (an array)."""


class Cells(NamedTuple):
    """The columns of a table before they are coded, inputs and group labels apart."""

    inputs: dict[str, Any]
    """Numbers as floats, with NaN for missing cells; possible categories unchanged."""
    group: np.ndarray | tuple[np.ndarray, ...] | None
    named: bool
    """Whether the names came with the data (a frame) or were made up (an array)."""
    num_rows: int
    others: tuple[str, ...] = ()
    """Names of the columns that were not asked for."""


def read_cells(data: Tabular, group: Group, chosen: Iterable[str] | None = None) -> Cells:
    """Read and check the inputs and the group columns of a table.

    ``chosen`` names the inputs to read from a data frame; None reads all.
    """
    if issparse(data):
        raise DataError("sparse input is not supported; pass a dense table (X.toarray()).")
    frame = _as_frame(data)
    cells = _read_array(data, group) if frame is None else _read_frame(frame, group, chosen)
    if group is None and not cells.inputs and chosen is None:
        shape = (cells.num_rows, 0)
        raise DataError(f"0 feature(s) (shape={shape}) while a minimum of 1 is required.")
    return cells


def read_columns(
    data: Tabular,
    names: Iterable[str],
    bounds: Iterable[str] = (),
    may_lack: Container[str] = (),
    remedy: str = AFTERWARDS,
) -> pd.DataFrame:
    """Return the named columns as a pandas frame, categories with the levels that occur.

    Infinite numbers are allowed in the columns ``bounds``, where they mean that there is no bound.
    Cells may be missing in the columns ``may_lack``; elsewhere they raise an error that ends in
    ``remedy``.
    """
    frame = _as_frame(data)
    if frame is None:
        raise DataError(
            f"a formula needs a data frame with named columns, not a {type(data).__name__}"
            f"{as_table(data)}."
        )
    if frame.shape[0] == 0:
        raise DataError("the data frame has no rows.")
    far = {name: _numeric(frame.get_column(name), name) for name in bounds if name in frame.columns}
    columns: dict[str, Any] = {}
    for name in names:
        if name not in frame.columns:
            quoted = in_backticks(name, frame.columns) or _found(name, data, frame.columns)
            raise DataError(f"there is no column {name!r} in the data. {quoted}")
        known = far.get(name)
        held = _as_held(frame.get_column(name), name) if known is None else finite_bounds(known)
        columns[name] = held
    check_there(columns, remedy, may_lack)
    return pd.DataFrame(columns, index=range(frame.shape[0]))


def divide_columns(data: Tabular, names: Sequence[str]) -> tuple[Any, dict[str, np.ndarray]]:
    """Return a data frame without the named columns, and these columns as numbers."""
    frame = _as_frame(data)
    if frame is None or not names:
        return data, {}
    _check_distinct(frame.columns)
    taken = {name: _numeric(frame.get_column(name), name) for name in names}
    return frame.drop(names).to_native(), taken


def finite_bounds(values: np.ndarray) -> np.ndarray:
    """Return bounds in which very distant ones stand for infinite ones."""
    return np.clip(values, -NO_BOUND, NO_BOUND)


def column_names(data: Tabular) -> list[str]:
    """Return the names of the columns of a data frame, and no names for anything else."""
    frame = _as_frame(data)
    return [] if frame is None else frame.columns


def has_columns(data: Tabular, group: Group, expected: int) -> bool:
    """Return whether a frame has the group columns, or an array the expected number of columns."""
    frame = _as_frame(data)
    if frame is None:
        shape = np.shape(cast(np.ndarray, data))
        return len(shape) != 2 or shape[1] == expected
    return all(not isinstance(c, str) or c in frame.columns for c in columns_of(group))


def columns_of(group: Group) -> tuple[Column, ...]:
    """Return the columns of all grouping factors; none for None."""
    if isinstance(group, tuple):
        return group
    return () if group is None else (group,)


def _labels_of(labels: list[np.ndarray]) -> np.ndarray | tuple[np.ndarray, ...] | None:
    return tuple(labels) if len(labels) > 1 else labels[0] if labels else None


def read_response(y: Vector | None, num_rows: int, name: str = "y") -> np.ndarray:
    """Return the response, numbers or labels, as a vector; missing values raise an error."""
    if y is None:
        raise DataError("y is None; pass the observed responses.")
    values = unmasked(y.to_numpy() if hasattr(y, "to_numpy") else y)
    if values.ndim == 2 and values.shape[1] == 1:
        from sklearn.exceptions import DataConversionWarning  # slow to load, and rarely needed

        said = "A column-vector y was passed when a 1d array was expected; its column is used."
        warnings.warn(said, DataConversionWarning, stacklevel=4)
        values = values[:, 0]
    if values.ndim != 1:
        raise DataError(f"y has shape {values.shape}; pass one column of responses.")
    if len(values) != num_rows:
        raise DataError(f"X has {num_rows} rows but y has {len(values)}; they must match.")
    lost = unusable(values)
    if lost.any():
        raise DataError(
            f"{name}: {count(lost)} with missing or infinite values ({places(lost)}); leave such "
            "rows out (missing='drop' does so for missing values)."
        )
    return values


def stated_order(column: Any) -> np.ndarray | None:
    """Return the levels of an ordered category in their order, None for any other column."""
    kind = getattr(column, "dtype", None)
    if isinstance(kind, pd.CategoricalDtype):
        return kind.categories.to_numpy() if kind.ordered else None
    series = nw.from_native(column, series_only=True, pass_through=True)
    if isinstance(series, nw.Series) and isinstance(series.dtype, nw.Enum):
        return np.array(series.dtype.categories, dtype=object)
    return None


class Complete(NamedTuple):
    """The rows without missing cells, and their positions among all rows."""

    data: Tabular
    y: Vector | None
    counts: Vector | None
    kept: np.ndarray | None
    """Positions of these rows; None if all rows were complete."""


def drop_missing(
    data: Tabular, y: Vector | None, counts: Vector | None = None, used: Iterable[str] = ()
) -> Complete:
    """Leave out rows with missing cells in y or in the columns ``used`` (by default all).

    A warning says how many. Infinite values do not count as missing; they are refused later.
    """
    frame = _as_frame(data)
    if frame is None:
        cells = missing(unmasked(data))
        lost = {f"x{j}": column for j, column in enumerate(cells.T)} if cells.ndim == 2 else {}
        rows = len(cells)
    else:
        named = [name for name in used if name in frame.columns] or frame.columns
        columns = ((name, frame.get_column(name)) for name in named)
        lost = {name: c.is_null().to_numpy() | missing(c.to_numpy()) for name, c in columns}
        rows = frame.shape[0]
    if y is not None and not isinstance(y, str):
        empty = missing(unmasked(y.to_numpy() if hasattr(y, "to_numpy") else y))
        if len(empty) == rows:
            lost["y"] = empty.reshape(rows, -1).any(axis=1)
    kept = ~np.any([*lost.values(), np.zeros(rows, bool)], axis=0)
    if kept.all():
        return Complete(data, y, counts, None)
    if not kept.any():
        raise DataError(
            "every row has missing values, so missing='drop' would leave none; fill cells in, or "
            "leave out the columns that lack them."
        )
    gaps = ", ".join(f"{name!r} ({int(each.sum())})" for name, each in lost.items() if each.any())
    warn(
        f"{int((~kept).sum())} of {rows} rows have missing values in {gaps} and are left out "
        "(missing='drop')."
    )
    some = data if frame is None else frame.filter(kept.tolist()).to_native()
    return Complete(
        _taken(some, kept) if frame is None else some,
        y if isinstance(y, str) else _taken(y, kept),
        _taken(counts, kept),
        np.flatnonzero(kept),
    )


def _taken(values: Any, kept: np.ndarray) -> Any:
    """Return some rows of a series or an array; None stays None."""
    if values is None:
        return None
    if hasattr(values, "iloc"):
        return values.iloc[np.flatnonzero(kept)]
    if hasattr(values, "filter"):
        return values.filter(kept.tolist())
    return unmasked(values)[kept]


def read_counts(counts: Vector | None, num_rows: int) -> np.ndarray:
    """Return how often each row was observed, as checked floats."""
    values = np.ma.filled(np.ma.asarray(counts).astype(float), np.nan)
    if values.shape != (num_rows,):
        raise DataError(f"counts has shape {values.shape}; pass one number per row.")
    if not (np.isfinite(values).all() and (values >= 0).all() and values.sum() > 0):
        raise DataError("counts must be finite and not negative, with at least one above 0.")
    return values


def _as_frame(data: Tabular) -> nw.DataFrame | None:
    try:
        native = nw.from_native(data, eager_only=True, pass_through=True)
    except nw.exceptions.DuplicateError:
        _check_distinct(getattr(data, "column_names", getattr(data, "columns", ())))
        raise
    if type(data).__name__ == "LazyFrame":
        raise DataError("the data are a LazyFrame, which holds no rows yet; pass data.collect().")
    return native if isinstance(native, nw.DataFrame) else None


def _read_frame(frame: nw.DataFrame, group: Group, chosen: Iterable[str] | None) -> Cells:
    columns = list(frame.columns)
    if frame.shape[0] == 0:
        raise DataError("the data frame has no rows.")
    _check_distinct(columns)
    native = frame.to_native()
    groups = [_column(columns, label, native) for label in columns_of(group)]
    known = None if chosen is None else set(chosen)
    inputs = [c for c in columns if c not in groups and (known is None or str(c) in known)]
    cells = {str(c): _input(frame.get_column(c), str(c)) for c in inputs}
    labels = [read_labels(frame.get_column(c).to_numpy(), str(c)) for c in groups]
    others = tuple(str(c) for c in columns if c not in groups and c not in inputs)
    return Cells(cells, _labels_of(labels), True, frame.shape[0], others)


def _column(columns: list[str], label: Any, data: Tabular) -> str:
    """Return the name of the group column, given by name or position."""
    by_place = isinstance(label, int) and label not in columns
    found = columns[label] if by_place and -len(columns) <= label < len(columns) else label
    # Without a header, pandas names columns by numbers.
    found = next((c for c in columns if str(c) == str(found)), found)
    if found not in columns:
        raise DataError(
            f"group column {label!r} is not in the data. {_found(str(label), data, columns)}"
        )
    return found


def _check_distinct(columns: Iterable[Any]) -> None:
    repeated = [name for name, number in Counter(map(str, columns)).items() if number > 1]
    if repeated:
        raise DataError(f"column name {repeated[0]!r} occurs more than once; rename or drop one.")


def _read_array(data: Tabular, group: Group) -> Cells:
    matrix = unmasked(data)
    if matrix.ndim == 0:
        raise DataError(
            f"X is a {type(data).__name__}, not a table with one row per observation"
            f"{as_table(data)}."
        )
    if matrix.ndim != 2:
        raise DataError(
            f"X has shape {matrix.shape}; pass a table with one row per observation. Reshape your "
            "data: X.reshape(-1, 1) if it is one column, X.reshape(1, -1) if it is one row."
        )
    if matrix.dtype.kind == "c":
        raise DataError("Complex data not supported; pass real numbers.")
    if matrix.shape[0] == 0:
        raise DataError("X has no rows.")
    labels, number = [], matrix.shape[1]
    columns = list(range(number))
    for label in columns_of(group):
        if isinstance(label, str):
            raise DataError(
                f"group={group!r} names a column, but X is an array, which has no names; pass a "
                "data frame (in a pipeline, call set_output(transform='pandas')), or the column's "
                "index."
            )
        if not -number <= label < number:
            raise DataError(f"group={label} is not a column of X, which has {number} columns.")
        columns.remove(label % number)
        labels.append(read_labels(matrix[:, label], str(label)))
    words = matrix.dtype.kind in "OUS"
    cells = {
        f"x{c}": _objects(matrix[:, c], f"x{c}") if words else matrix[:, c].astype(float)
        for c in columns
    }
    return Cells(cells, _labels_of(labels), False, len(matrix))


def _as_held(series: nw.Series, name: str) -> Any:
    """Return a column as an array, or as a category with the levels that occur."""
    native = series.to_native()
    if isinstance(native, pd.Series) and isinstance(native.dtype, pd.CategoricalDtype):
        return native.cat.remove_unused_categories().array
    if isinstance(series.dtype, nw.Enum):
        return pd.Categorical(series.to_list(), series.dtype.categories).remove_unused_categories()
    found = series.to_numpy()
    if found.dtype.kind == "c":
        raise DataError(f"column {name!r} holds complex numbers; pass real ones, such as abs(x).")
    return as_numbers(found)


def _found(name: str, data: Tabular, columns: Iterable[str]) -> str:
    """Return a sentence on where a column that is missing may be found."""
    if name in getattr(getattr(data, "index", None), "names", ()):
        return f"{name!r} is a level of the index; make it a column with data.reset_index()."
    if getattr(getattr(data, "columns", None), "nlevels", 1) > 1:
        return (
            "The names of columns have several levels; join them: data.columns = "
            "['_'.join(map(str, c)) for c in data.columns]."
        )
    return suggest(name, columns)


def _numeric(series: nw.Series, name: str) -> np.ndarray:
    """Return a column as floats, or raise an error if it is not numeric."""
    found = _input(series, name)
    if isinstance(found, pd.Categorical) or found.dtype.kind != "f":
        raise DataError(f"column {name!r} is not numeric; convert it to numbers.")
    return found


def _input(series: nw.Series, name: str) -> Any:
    """Return numbers as floats, and text and categories unchanged."""
    kind = series.dtype
    if kind.is_numeric() or kind == nw.Boolean:
        return series.cast(nw.Float64).to_numpy().astype(float)
    if kind == nw.Object:
        return _objects(series.to_numpy(), name)
    if kind in (nw.String, nw.Categorical) or isinstance(kind, nw.Enum):
        return _as_held(series, name)
    if kind.is_temporal():
        raise DataError(f"column {name!r} holds dates or times: {dates_remedy(name)}")
    native = getattr(series.to_native(), "dtype", kind)
    raise DataError(_not_numeric(name, str(native if kind == nw.Unknown else kind)))


def _objects(values: np.ndarray, name: str) -> np.ndarray:
    """Return numbers as floats; leave the column unchanged if all cells with a value are text."""
    empty = missing(values)
    text = [isinstance(v, str | bytes) for v in values[~empty]]
    if text and all(text):
        return values
    try:
        if any(text):
            raise ValueError
        found = np.array([np.nan if e else v for v, e in zip(values, empty, strict=True)], float)
        if found.ndim != 1:
            raise ValueError
        return found
    except ValueError:
        said = misread(values[~empty], name)
        raise DataError(said or _not_numeric(name, "a mix of text and other objects")) from None
    except TypeError as error:
        raise ColumnTypeError(_not_numeric(name, str(error))) from None


def _not_numeric(name: str, kind: str) -> str:
    return (
        f"column {name!r} is neither numeric nor a category ({kind}); convert it to numbers or "
        "text, name it as the group, or drop it."
    )


def check_finite(matrix: np.ndarray, names: Sequence[str]) -> None:
    """Raise an error that names the columns with missing or infinite values.

    A column such as ``log(x)`` may have them although its own columns are complete.
    """
    bad = ~np.isfinite(matrix)
    if bad.any():
        worst = [
            f"{name!r} ({count(column)}, {places(column)})"
            for name, column in zip(names, bad.T, strict=True)
            if column.any()
        ]
        raise DataError(
            f"missing or infinite values (NaN or inf) in column {', '.join(worst)}; fill the cells "
            "in, leave the rows out, or use a transform that is defined there (log and sqrt need "
            "numbers above 0)."
        )
