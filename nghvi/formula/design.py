"""A formula with what it learnt from the training data: levels of categories, state of transforms.

The columns of a design, in the order in which the model reads them::

    fixed part      coefficients are estimated (the intercept is added by the estimator)
    effects only    columns of the random part that the fixed part lacks: coefficient 0
    offset          coefficient 1
    facts           no coefficient: what the response must know about a row, such as its trials

Nothing but text, numbers and labels is kept, so that a design can be saved.
"""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nghvi._core.errors import FormulaError, warn
from nghvi.data.frame import (
    DataError,
    Table,
    check_finite,
    column_names,
    finite_bounds,
    read_columns,
    read_response,
)
from nghvi.data.labels import combined, read_labels
from nghvi.data.missing import AT_FIT, KNOWN, NO_GAPS, Gaps, count, places
from nghvi.data.text import dates_remedy, misread
from nghvi.formula.matrices import INTERCEPT, Learnt, Matrix, evaluate, terms_of, variables_of
from nghvi.formula.syntax import EVERY_COLUMN, FactorSyntax, Syntax, parse

MANY_LEVELS, FEW_ROWS = 20, 5
"""Beyond so many levels with fewer rows each, a category is suspicious."""
NO_RESPONSE = "a response is never filled in: leave such rows out (missing='drop')"


class Design(NamedTuple):
    """Makes the same columns of any data frame."""

    formula: str
    learnt: Learnt
    columns: tuple[str, ...]
    random: tuple[str, ...]
    """Names of the columns with effects; of several factors one after the other."""
    known_coef: tuple[float, ...]
    """Coefficients of the last columns before the facts, which are not estimated."""
    facts: tuple[str, ...] = ()
    """Names of the facts, which the very last columns hold."""
    num_effects: tuple[int, ...] = ()
    """How many columns with effects each of several factors has."""
    gaps: Gaps = NO_GAPS
    """What stands for missing cells; indicators are columns of the fixed part."""

    @property
    def variables(self) -> tuple[str, ...]:
        """Columns of the data frame that are read."""
        return _variables(parse(self.formula))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The same without the groups."""
        syntax = parse(self.formula)
        return _variables(syntax.ungrouped())

    @property
    def movable(self) -> tuple[str, ...]:
        """Columns of the design that are columns of the data and read nowhere else in it."""
        syntax = parse(self.formula)
        # A term of both the fixed and the random part is one column; an offset is its own.
        model = _model_texts(syntax)
        terms = {
            (i >= len(model), str(term)): term
            for i, text in enumerate(_texts(syntax))
            for term in terms_of(syntax, text)
        }
        readers = Counter(name for term in terms.values() for name in variables_of(syntax, [term]))
        alone = [name for name in self.columns if readers[name] == 1]
        # Where the value of a row becomes known, its indicator has to change as well.
        return tuple(name for name in alone if name not in self.gaps.fillings)

    def raw_inputs(self, data: Any) -> pd.DataFrame:
        """The columns of the data frame that are read, gaps included, without the groups."""
        return read_columns(data, self.inputs, bounds_of(self.formula), self.gaps.fillings)

    def filled_inputs(self, data: Any) -> pd.DataFrame:
        """The same with what stands for missing cells."""
        return _filled(self.raw_inputs(data), self.gaps)[list(self.inputs)]

    def table(self, data: Any, *, grouped: bool = True) -> Table:
        """The design's columns of a raw data frame and, unless they are not needed, its groups."""
        syntax = parse(self.formula)
        syntax = syntax if grouped else syntax.ungrouped()
        read_columns(data, _known_variables(syntax), bounds_of(self.formula), remedy=KNOWN)
        frame = read_columns(data, _variables(syntax), bounds_of(self.formula), self.gaps.fillings)
        table = _read(_told(syntax, self.gaps), _filled(frame, self.gaps), self.learnt).table
        if table.names != self.columns:
            differing = ", ".join(map(repr, sorted(set(table.names) ^ set(self.columns))))
            raise DataError(
                f"the formula gives other columns than at the fit ({differing}): a column that "
                "held text holds numbers now, or the other way round; give it the same type."
            )
        return table


class _Read(NamedTuple):
    table: Table
    fixed: tuple[str, ...]
    random: tuple[tuple[str, ...], ...]
    """Columns with effects of every factor."""
    learnt: Learnt


def learn(formula: str, data: Any, *, indicator: bool = False) -> Design:
    """What a formula makes of the training data; ``indicator``: gaps are filled, and told."""
    syntax = parse(formula)
    _check_response(syntax)
    read_columns(data, _known_variables(syntax), bounds_of(formula), remedy=KNOWN)
    may_lack = _fillable(syntax) if indicator else ()
    frame = read_columns(data, _variables(syntax), bounds_of(formula), may_lack, AT_FIT)
    gaps = Gaps.learn(_columns(frame[list(may_lack)]))
    frame, syntax = _filled(frame, gaps), _told(syntax, gaps)
    _check_text(syntax, frame)
    read = _read(syntax, frame, Learnt({}, {}))
    _warn_of_levels(read.learnt, len(frame))
    if not read.fixed:
        raise FormulaError(
            f"formula {formula!r}: the fixed part has no column; add one, or take '0' away."
        )
    random = sum(read.random, ())
    only = len(set(random) - set(read.fixed))
    known = (0.0,) * only + (1.0,) * bool(syntax.offsets)
    facts = tuple(name for name, _ in syntax.facts)
    number = tuple(map(len, read.random)) if len(read.random) > 1 else ()
    return Design(formula, read.learnt, read.table.names, random, known, facts, number, gaps)


def _fillable(syntax: Syntax) -> tuple[str, ...]:
    """Columns whose missing cells can be filled: neither groups nor known parts are made up."""

    kept = {*_known_variables(syntax), *syntax.group_columns}
    named = _named(syntax, _model_texts(syntax))
    return tuple(name for name in dict.fromkeys(named) if name not in kept)


def _known_variables(syntax: Syntax) -> tuple[str, ...]:
    """Columns that offsets and facts read."""
    return _named(syntax, _known_texts(syntax))


def _filled(frame: pd.DataFrame, gaps: Gaps) -> pd.DataFrame:
    if not gaps.fillings:
        return frame
    return pd.DataFrame(gaps.fill(_columns(frame)), index=frame.index)


def _columns(frame: pd.DataFrame) -> dict[str, Any]:
    """Categories, and arrays of the others."""
    return {str(n): c.array if _is_categorical(c) else c.to_numpy() for n, c in frame.items()}


def _told(syntax: Syntax, gaps: Gaps) -> Syntax:
    """With the indicators in the fixed part."""
    return syntax._replace(fixed=" + ".join([syntax.fixed, *(f"`{n}`" for n in gaps.names)]))


def _check_response(syntax: Syntax) -> None:
    """A column is not explained by itself; ``I(after - before) ~ before`` is another matter."""
    response = syntax.response.strip("`")
    if response in _variables(syntax._replace(facts=())):
        raise FormulaError.at(
            syntax.text,
            syntax.response,
            f"the response {response!r} is also among the inputs: take it away after '~'.",
        )


def _check_text(syntax: Syntax, frame: pd.DataFrame) -> None:
    """Refuse text that would become a category although numbers or dates were meant.

    ``C(x)`` says that a category is meant.
    """
    for text in _known_texts(syntax):
        for name in _named(syntax, [text]):
            if not pd.api.types.is_numeric_dtype(frame[name]):
                raise FormulaError.at(
                    syntax.text,
                    name,
                    f"an offset is one column of numbers, as trials, bounds and weights are, and "
                    f"column {name!r} is not numeric: give numbers.",
                )
    terms = [term for text in _texts(syntax) for term in terms_of(syntax, text)]
    named = {factor.expr for term in terms for factor in term.factors}
    for name in frame.columns[frame.columns.isin(named)]:
        column = frame[name]
        if pd.api.types.is_datetime64_any_dtype(column):
            raise DataError(f"column {name!r} holds dates: {dates_remedy(name)}")
        if pd.api.types.is_object_dtype(column) or pd.api.types.is_string_dtype(column):
            said = None if _is_categorical(column) else misread(column.to_numpy(object), name)
            if said is not None:
                raise DataError(f"{said} If a category is meant, write C({name}) in the formula.")


def _is_categorical(column: pd.Series) -> bool:
    return isinstance(column.dtype, pd.CategoricalDtype)


def _warn_of_levels(learnt: Learnt, num_rows: int) -> None:
    for factor, levels in learnt.categories.items():
        if len(levels) > max(MANY_LEVELS, num_rows / FEW_ROWS):
            warn(
                f"{factor} is a category of {len(levels)} levels in {num_rows} rows, and every "
                f"level has a coefficient of its own: merge levels, or let them be groups, "
                f"'(1 | {factor})'."
            )


def has_intercept(syntax: Syntax) -> bool:
    """Whether the fixed part has one."""
    return any(str(term) == "1" for term in terms_of(syntax, syntax.fixed))


def variables(formula: str) -> tuple[str, ...]:
    """Columns of the data frame that a fit reads, those of the response included."""
    syntax = parse(formula)
    response = variables_of(syntax, terms_of(syntax, syntax.response))
    return tuple(dict.fromkeys((*response, *_variables(syntax))))


def bounds_of(formula: str) -> tuple[str, ...]:
    """Columns that are bounds, which may be infinite."""
    syntax = parse(formula)
    texts = {text.strip("`") for name, text in syntax.facts if name in ("lower", "upper")}
    return tuple(name for name in _variables(syntax) if name in texts)


def response_of(formula: str, data: Any) -> np.ndarray:
    """The left-hand side: a column as it is, or the values of an expression."""
    syntax = parse(formula)
    terms = terms_of(syntax, f"0 + {syntax.response}")
    frame = read_columns(data, variables_of(syntax, terms), remedy=NO_RESPONSE)
    if list(frame.columns) == [syntax.response.strip("`")]:
        return frame.iloc[:, 0].to_numpy()
    (side,), _ = evaluate([terms], frame, Learnt({}, {}), syntax)
    if len(side.names) != 1:
        raise FormulaError.at(
            formula, syntax.response, "the response must be one column of numbers."
        )
    check_finite(side.values, side.names)
    return side.values[:, 0]


def response_given(formula: str, data: Any, y: Any) -> Any:
    """The response of a fit: the left-hand side, with which ``y``, if it is given, must agree.

    ``y`` may be None, the name on the left-hand side, or its values; these are needed only where
    the data frame lacks the columns.
    """
    syntax = parse(formula)
    left = syntax.response.strip("`")
    if y is None or (isinstance(y, str) and y == left):
        return response_of(formula, data)
    if isinstance(y, str):
        raise FormulaError(
            f"y={y!r} contradicts the formula {formula!r}, whose left side is {left!r}: change one "
            "of them, or leave y out."
        )
    needed = variables_of(syntax, terms_of(syntax, syntax.response))
    if not set(needed) <= set(column_names(data)):
        name = getattr(y, "name", None)
        if needed == (left,) and name in (None, "", left):
            return y
        shown = "y" if name in (None, "") else f"y, which is called {name!r},"
        raise FormulaError(
            f"formula {formula!r}: {shown} cannot be checked against {left!r}, since X lacks "
            f"{', '.join(map(repr, needed))}: leave the column in X and y out."
        )
    ours = response_of(formula, data)
    given = read_response(y, len(ours))
    if not _agree(ours, given):
        raise FormulaError(
            f"y differs from {left!r}, the left side of the formula {formula!r}, as it is in X: "
            "leave y out, or correct one of them."
        )
    return ours


def _agree(ours: np.ndarray, given: np.ndarray) -> bool:
    if {ours.dtype.kind, given.dtype.kind} <= set("biuf"):
        return np.allclose(ours.astype(float), given.astype(float), rtol=1e-9, atol=0)
    return bool(np.all(ours == given))


def _model_texts(syntax: Syntax) -> list[str]:
    """Fixed part and random parts, as sums of terms."""
    return [syntax.fixed, *(text for text in syntax.random if text != EVERY_COLUMN)]


def _known_texts(syntax: Syntax) -> list[str]:
    """Offsets, and facts that are not numbers."""
    others = [*syntax.offsets, *(text for _, text in syntax.facts if _number(text) is None)]
    return [f"0 + {{{text}}}" for text in others]


def _texts(syntax: Syntax) -> list[str]:
    """All of these."""
    return [*_model_texts(syntax), *_known_texts(syntax)]


def _number(text: str) -> float | None:
    """The number that a fact is; None for an expression. No bound is a very far one."""
    try:
        return float(finite_bounds(np.asarray(float(text))))
    except ValueError:
        return None


def _variables(syntax: Syntax) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*_named(syntax, _texts(syntax)), *syntax.group_columns)))


def _named(syntax: Syntax, texts: list[str]) -> tuple[str, ...]:
    """Columns that sums of terms read."""
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
            what = "an offset" if text in syntax.offsets else "what is known about a row"
            raise FormulaError.at(syntax.text, text, f"{what} is one column of numbers.")
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
    """A logarithm of nothing is named as such."""
    lost = ~np.isfinite(total)
    if lost.any() and any(text.startswith("log(") for text in syntax.offsets):
        raise DataError(
            f"the offset {' + '.join(syntax.offsets)} is not finite in {count(lost)} "
            f"({places(lost)}): an exposure must be above 0; leave rows without exposure out."
        )


def _random_parts(syntax: Syntax, matrices: list[Matrix]) -> list[Matrix]:
    """The columns with effects of every factor."""
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
    """The columns of all terms of a factor, of which several have one column each."""
    for text, matrix in zip(factor.random, terms, strict=True):
        if len(terms) > 1 and len(matrix.names) > 1:
            raise FormulaError.at(
                syntax.text,
                f"({text}",
                "several terms of one group make their effects independent, and each may have "
                "one column ('(1 | g) + (0 + x | g)'): write one term, '(1 + x | g)'.",
            )
    names = sum((matrix.names for matrix in terms), ())
    place = f"({factor.random[-1]}"
    if not names:
        raise FormulaError.at(
            syntax.text, place, "nothing varies; write '(1 | g)' or leave it out."
        )
    if len(set(names)) < len(names):
        raise FormulaError.at(syntax.text, place, "a column is in two group terms; write it once.")
    return Matrix(np.concatenate([matrix.values for matrix in terms], axis=1), names)


def _labels(frame: pd.DataFrame, columns: tuple[str, ...]) -> np.ndarray:
    """Labels of a factor; of several columns, those of each with ':' between them."""
    labels = [read_labels(frame[name].to_numpy(), name) for name in columns]
    return labels[0] if len(labels) == 1 else combined(labels, columns)
