"""A formula with what it learnt from the training data: levels of categories, state of transforms.

A design has its columns in the order in which the model reads them::

    fixed part      coefficients are estimated (the estimator adds the intercept)
    effects only    columns of the random part that the fixed part lacks: coefficient 0
    offset          coefficient 1
    facts           no coefficient: what the response must know about a row, such as its trials

A design holds only text, numbers and labels, so that it can be saved.
"""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nghvi._core.errors import FormulaError, warn
from nghvi.data.cells import AT_FIT, KNOWN, LABELLED, count, dates_remedy, misread, places
from nghvi.data.coding import NO_GAPS, Gaps
from nghvi.data.frame import (
    DataError,
    Table,
    Tabular,
    Vector,
    check_finite,
    column_names,
    finite_bounds,
    read_columns,
    read_response,
)
from nghvi.data.labels import combined, read_labels
from nghvi.formula.matrices import INTERCEPT, Learnt, Matrix, evaluate, terms_of, variables_of
from nghvi.formula.syntax import EVERY_COLUMN, FactorSyntax, Syntax, parse

MANY_LEVELS, FEW_ROWS = 20, 5
"""A category draws a warning if it has more levels than the first number and, on average, fewer
rows per level than the second."""
NO_RESPONSE = "a response is never filled in; leave such rows out (missing='drop')"


class Design(NamedTuple):
    """A formula with all that it needs to make the same columns from any data frame."""

    formula: str
    learnt: Learnt
    columns: tuple[str, ...]
    random: tuple[str, ...]
    """Names of the columns with effects, factor by factor."""
    known_coef: tuple[float, ...]
    """Coefficients that are not estimated, those of the last columns before the facts."""
    facts: tuple[str, ...] = ()
    """Names of the facts, which are the very last columns."""
    num_effects: tuple[int, ...] = ()
    """How many columns with effects each factor has; empty unless there are several factors."""
    gaps: Gaps = NO_GAPS
    """What replaces missing cells; their indicators are columns of the fixed part."""

    @property
    def variables(self) -> tuple[str, ...]:
        """Columns of the data frame that the formula reads, except for the response."""
        return _variables(parse(self.formula))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The same columns without those that hold group labels only."""
        syntax = parse(self.formula)
        return _variables(syntax.ungrouped())

    @property
    def movable(self) -> tuple[str, ...]:
        """Columns of the design that are columns of the data, and that no other column reads."""
        syntax = parse(self.formula)
        # A term in both the fixed and the random part is one column; an offset is another.
        model = _model_texts(syntax)
        terms = {
            (i >= len(model), str(term)): term
            for i, text in enumerate(_texts(syntax))
            for term in terms_of(syntax, text)
        }
        readers = Counter(name for term in terms.values() for name in variables_of(syntax, [term]))
        alone = [name for name in self.columns if readers[name] == 1]
        # A column with an indicator is not alone: a value for a missing cell changes both.
        return tuple(name for name in alone if name not in self.gaps.fillings)

    def raw_inputs(self, data: Tabular) -> pd.DataFrame:
        """Return the inputs in a data frame as they are, gaps included."""
        return read_columns(data, self.inputs, bounds_of(self.formula), self.gaps.fillings)

    def table(self, data: Tabular, *, grouped: bool = True) -> Table:
        """Make the design's columns from a raw data frame, and read its groups if ``grouped``."""
        syntax = parse(self.formula)
        syntax = syntax if grouped else syntax.ungrouped()
        _read_complete(syntax, data)
        frame = read_columns(data, _variables(syntax), bounds_of(self.formula), self.gaps.fillings)
        _check_dates(syntax, frame)
        table = _read(_told(syntax, self.gaps), _filled(frame, self.gaps), self.learnt).table
        if table.names != self.columns:
            differing = ", ".join(map(repr, sorted(set(table.names) ^ set(self.columns))))
            raise DataError(
                f"the formula makes other columns here than it did at the fit ({differing}): a "
                "column that held text then holds numbers now, or the other way round. Give it "
                "the type that it had."
            )
        return table


class _Read(NamedTuple):
    table: Table
    fixed: tuple[str, ...]
    random: tuple[tuple[str, ...], ...]
    """Names of the columns with effects, for every factor."""
    learnt: Learnt


def learn(formula: str, data: Tabular, *, indicator: bool = False) -> Design:
    """Learn a design from the training data; arguments as in :func:`learn_and_read`."""
    return learn_and_read(formula, data, indicator=indicator)[0]


def learn_and_read(
    formula: str, data: Tabular, *, indicator: bool = False
) -> tuple[Design, Table, pd.DataFrame]:
    """Learn a design; return the table that it makes of the training data, and its inputs, too.

    With ``indicator``, missing cells of the inputs are filled and marked by further columns;
    otherwise they raise an error.
    """
    syntax = parse(formula)
    _check_response(syntax)
    _read_complete(syntax, data)
    may_lack = _fillable(syntax) if indicator else ()
    frame = read_columns(data, _variables(syntax), bounds_of(formula), may_lack, AT_FIT)
    gaps = Gaps.learn(_columns(frame[list(may_lack)]))
    frame, syntax = _filled(frame, gaps), _told(syntax, gaps)
    _check_text(syntax, frame)
    read = _read(syntax, frame, Learnt({}, {}))
    _warn_of_levels(read.learnt, len(frame))
    if not read.fixed:
        raise FormulaError(
            f"formula {formula!r}: the fixed part has no column; add one, or remove the '0'."
        )
    random = sum(read.random, ())
    only = len(set(random) - set(read.fixed))
    known = (0.0,) * only + (1.0,) * bool(syntax.offsets)
    facts = tuple(name for name, _ in syntax.facts)
    number = tuple(map(len, read.random)) if len(read.random) > 1 else ()
    design = Design(formula, read.learnt, read.table.names, random, known, facts, number, gaps)
    return design, read.table, frame[list(design.inputs)]


def _fillable(syntax: Syntax) -> tuple[str, ...]:
    """Return the columns whose missing cells may be filled: no groups, offsets or facts."""
    kept = {*_known_variables(syntax), *syntax.group_columns}
    named = _named(syntax, _model_texts(syntax))
    return tuple(name for name in dict.fromkeys(named) if name not in kept)


def _known_variables(syntax: Syntax) -> tuple[str, ...]:
    """Return the columns that offsets and facts read."""
    return _named(syntax, _known_texts(syntax))


def _read_complete(syntax: Syntax, data: Tabular) -> None:
    """Raise an error if a cell is missing in a column that is never filled in."""
    read_columns(data, _known_variables(syntax), bounds_of(syntax.text), remedy=KNOWN)
    read_columns(data, syntax.group_columns, remedy=LABELLED)


def _filled(frame: pd.DataFrame, gaps: Gaps) -> pd.DataFrame:
    if not gaps.fillings:
        return frame
    return pd.DataFrame(gaps.fill(_columns(frame)), index=frame.index)


def _columns(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the columns by name: categories as they are, all others as arrays."""
    return {str(n): c.array if _is_categorical(c) else c.to_numpy() for n, c in frame.items()}


def _told(syntax: Syntax, gaps: Gaps) -> Syntax:
    """Return the formula with the indicators of missing cells in its fixed part."""
    return syntax._replace(fixed=" + ".join([syntax.fixed, *(f"`{n}`" for n in gaps.names)]))


def _check_response(syntax: Syntax) -> None:
    """Raise an error if the response is also an input; ``I(after - before) ~ before`` is fine."""
    response = syntax.response.strip("`")
    if response in _variables(syntax._replace(facts=())):
        raise FormulaError.at(
            syntax.text,
            syntax.response,
            f"the response {response!r} is also an input; remove it after '~'.",
        )


def _check_text(syntax: Syntax, frame: pd.DataFrame) -> None:
    """Refuse text that would become a category where numbers or dates were probably meant.

    Writing ``C(x)`` states that a category is meant.
    """
    for text in _known_texts(syntax):
        for name in _named(syntax, [text]):
            if not pd.api.types.is_numeric_dtype(frame[name]):
                raise FormulaError.at(
                    syntax.text,
                    name,
                    f"column {name!r} is not numeric, but offsets, trials, bounds and weights "
                    "must be numbers; convert it.",
                )
    _check_dates(syntax, frame)
    for name in _plain(syntax, frame):
        column = frame[name]
        if pd.api.types.is_object_dtype(column) or pd.api.types.is_string_dtype(column):
            said = None if _is_categorical(column) else misread(column.to_numpy(object), name)
            if said is not None:
                raise DataError(f"{said} If a category is meant, write C({name}) in the formula.")


def _check_dates(syntax: Syntax, frame: pd.DataFrame) -> None:
    """Refuse dates and durations in place of numbers."""
    for name in _plain(syntax, frame):
        if pd.api.types.is_datetime64_any_dtype(frame[name]):
            raise DataError(f"column {name!r} holds dates: {dates_remedy(name)}")
        if pd.api.types.is_timedelta64_dtype(frame[name]):
            raise DataError(
                f"column {name!r} holds durations; convert them to numbers, such as seconds: "
                f"data[{name!r}].dt.total_seconds()."
            )


def _plain(syntax: Syntax, frame: pd.DataFrame) -> pd.Index:
    """Return the columns that a term reads as they are, not through a function."""
    terms = [term for text in _texts(syntax) for term in terms_of(syntax, text)]
    named = {factor.expr for term in terms for factor in term.factors}
    return frame.columns[frame.columns.isin(named)]


def _is_categorical(column: pd.Series) -> bool:
    return isinstance(column.dtype, pd.CategoricalDtype)


def _warn_of_levels(learnt: Learnt, num_rows: int) -> None:
    for factor, levels in learnt.categories.items():
        if len(levels) > max(MANY_LEVELS, num_rows / FEW_ROWS):
            warn(
                f"{factor} is a category with {len(levels)} levels in {num_rows} rows, and each "
                f"level gets its own coefficient. Merge levels, or make them groups: "
                f"'(1 | {factor})'."
            )


def has_intercept(syntax: Syntax) -> bool:
    """Return whether the fixed part of a formula has an intercept."""
    return any(str(term) == "1" for term in terms_of(syntax, syntax.fixed))


def variables(formula: str) -> tuple[str, ...]:
    """Return the columns of the data frame that a fit reads, including those of the response."""
    syntax = parse(formula)
    response = variables_of(syntax, terms_of(syntax, syntax.response))
    return tuple(dict.fromkeys((*response, *_variables(syntax))))


def bounds_of(formula: str) -> tuple[str, ...]:
    """Return the columns that hold censoring bounds, which may be infinite."""
    syntax = parse(formula)
    texts = {text.strip("`") for name, text in syntax.facts if name in ("lower", "upper")}
    return tuple(name for name in _variables(syntax) if name in texts)


def response_of(formula: str, data: Tabular) -> np.ndarray:
    """Return the values of the left-hand side: a column as it is, or a computed expression."""
    syntax = parse(formula)
    terms = terms_of(syntax, f"0 + {syntax.response}")
    frame = read_columns(data, variables_of(syntax, terms), remedy=NO_RESPONSE)
    if list(frame.columns) == [syntax.response.strip("`")]:
        return frame.iloc[:, 0].to_numpy()
    (side,), _ = evaluate([terms], frame, Learnt({}, {}), syntax)
    if len(side.names) != 1:
        raise FormulaError.at(
            formula, syntax.response, "the response must be a single column of numbers."
        )
    check_finite(side.values, side.names)
    return side.values[:, 0]


def response_given(formula: str, data: Tabular, y: Vector | None) -> Any:
    """Return the response of a fit: the left-hand side of the formula, which ``y`` must match.

    ``y`` may be None, the name on the left-hand side, or the values. The values are needed only
    if the data frame lacks the columns of the left-hand side.
    """
    syntax = parse(formula)
    left = syntax.response.strip("`")
    if y is None or (isinstance(y, str) and y == left):
        return response_of(formula, data)
    if isinstance(y, str):
        raise FormulaError(
            f"y={y!r} contradicts the formula {formula!r}, whose left-hand side is {left!r}; "
            "change one of them, or leave y out."
        )
    needed = variables_of(syntax, terms_of(syntax, syntax.response))
    if not set(needed) <= set(column_names(data)):
        name = getattr(y, "name", None)
        if needed == (left,) and name in (None, "", left):
            return y
        shown = "y" if name in (None, "") else f"y (named {name!r})"
        raise FormulaError(
            f"formula {formula!r}: {shown} cannot be checked against {left!r} because X lacks "
            f"{', '.join(map(repr, needed))}; add the column to X and leave y out."
        )
    ours = response_of(formula, data)
    given = read_response(y, len(ours))
    numeric = {ours.dtype.kind, given.dtype.kind} <= set("biuf")
    same = (
        np.isclose(ours.astype(float), given.astype(float), 1e-9, 0) if numeric else ours == given
    )
    if not np.all(same):
        raise FormulaError(
            f"y differs from the values of {left!r} in X, the left-hand side of the formula "
            f"{formula!r}; leave y out, or correct one of them."
        )
    return ours


def _model_texts(syntax: Syntax) -> list[str]:
    """Return the fixed part and the random parts as sums of terms."""
    return [syntax.fixed, *(text for text in syntax.random if text != EVERY_COLUMN)]


def _known_texts(syntax: Syntax) -> list[str]:
    """Return the offsets, and the facts that are not plain numbers, as terms."""
    others = [*syntax.offsets, *(text for _, text in syntax.facts if _number(text) is None)]
    return [f"0 + {{{text}}}" for text in others]


def _texts(syntax: Syntax) -> list[str]:
    """Return all parts of the right-hand side, and the facts, as sums of terms."""
    return [*_model_texts(syntax), *_known_texts(syntax)]


def _number(text: str) -> float | None:
    """Return the value of a fact that is a plain number, None for an expression.

    An infinite bound becomes a very distant one.
    """
    try:
        return float(finite_bounds(np.asarray(float(text))))
    except ValueError:
        return None


def _variables(syntax: Syntax) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*_named(syntax, _texts(syntax)), *syntax.group_columns)))


def _named(syntax: Syntax, texts: list[str]) -> tuple[str, ...]:
    """Return the columns of the data that sums of terms read."""
    return sum((variables_of(syntax, terms_of(syntax, text)) for text in texts), ())


def _read(syntax: Syntax, frame: pd.DataFrame, learnt: Learnt) -> _Read:
    parts = [terms_of(syntax, text) for text in _texts(syntax)]
    matrices, learnt = evaluate(parts, frame, learnt, syntax)
    written = [text for _, text in syntax.facts if _number(text) is None]
    first_fact = len(matrices) - len(written)
    first_offset = first_fact - len(syntax.offsets)
    fixed, random = matrices[0], _random_parts(syntax, matrices[:first_offset])
    inputs = [j for j, name in enumerate(fixed.names) if name != INTERCEPT]
    blocks, there = [fixed.columns(inputs)], set(fixed.names)
    for part in random:
        blocks.append(part.columns([j for j, n in enumerate(part.names) if n not in there]))
        there |= set(part.names)
    for text, matrix in zip((*syntax.offsets, *written), matrices[first_offset:], strict=True):
        if len(matrix.names) != 1:
            what = "an offset" if text in syntax.offsets else "a fact about the rows"
            raise FormulaError.at(syntax.text, text, f"{what} must be a single column of numbers.")
    if syntax.offsets:
        total = sum(matrix.values for matrix in matrices[first_offset:first_fact])
        _check_exposure(syntax, np.asarray(total)[:, 0])
        blocks.append(Matrix(np.asarray(total), (f"offset({' + '.join(syntax.offsets)})",)))
    evaluated = iter(matrices[first_fact:])
    for name, text in syntax.facts:
        known = _number(text)
        whole = next(evaluated).values if known is None else np.full((len(frame), 1), known)
        blocks.append(Matrix(whole, (f"{name}({text})",)))
    values = np.concatenate([block.values for block in blocks], axis=1)
    names = sum((block.names for block in blocks), ())
    check_finite(values, names)
    labels = [_labels(frame, factor.columns) for factor in syntax.factors if factor.columns]
    group = tuple(labels) if len(labels) > 1 else labels[0] if labels else None
    of_factors = tuple(part.names for part in random)
    return _Read(Table(values, names, group, True), fixed.names, of_factors, learnt)


def _check_exposure(syntax: Syntax, total: np.ndarray) -> None:
    """Raise an error that names exposures of 0 or below, whose logarithm is not finite."""
    lost = ~np.isfinite(total)
    if lost.any() and any(text.startswith("log(") for text in syntax.offsets):
        raise DataError(
            f"the offset {' + '.join(syntax.offsets)} is not finite in {count(lost)} "
            f"({places(lost)}); an exposure must be above 0, so leave out rows without exposure."
        )


def _random_parts(syntax: Syntax, matrices: list[Matrix]) -> list[Matrix]:
    """Return the columns with effects of every factor."""
    fixed, evaluated = matrices[0], iter(matrices[1:])
    return [
        _random_part(
            syntax,
            factor,
            [fixed if text == EVERY_COLUMN else next(evaluated) for text in factor.random],
        )
        for factor in syntax.factors
    ]


def _random_part(syntax: Syntax, factor: FactorSyntax, terms: list[Matrix]) -> Matrix:
    """Return the columns of all terms of a factor; several terms may have one column each."""
    for text, matrix in zip(factor.random, terms, strict=True):
        if len(terms) > 1 and len(matrix.names) > 1:
            raise FormulaError.at(
                syntax.text,
                f"({text}",
                "several terms for one group make its effects independent, and each may then have "
                "only one column, as in '(1 | g) + (0 + x | g)'. For correlated effects write one "
                "term, '(1 + x | g)'.",
            )
    names = sum((matrix.names for matrix in terms), ())
    place = f"({factor.random[-1]}"
    if not names:
        raise FormulaError.at(
            syntax.text, place, "nothing varies by group; write '(1 | g)' or remove the term."
        )
    if len(set(names)) < len(names):
        raise FormulaError.at(
            syntax.text, place, "a column appears in two group terms; write it once."
        )
    return Matrix(np.concatenate([matrix.values for matrix in terms], axis=1), names)


def _labels(frame: pd.DataFrame, columns: tuple[str, ...]) -> np.ndarray:
    """Return the labels of a factor; those of several columns are joined by ':'."""
    labels = [read_labels(frame[name].to_numpy(), name) for name in columns]
    return labels[0] if len(labels) == 1 else combined(labels, columns)
