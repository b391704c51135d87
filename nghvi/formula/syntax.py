"""Splits the text of a formula into response, fixed part, group terms and offsets.

    response ~ fixed + (random | group) + offset(expression) + exposure(expression)

The left-hand side may state facts that are known about every row: ``successes | trials(n)``,
``cbind(successes, failures)``, ``censored(y, lower, upper)`` or ``y | weights(w)``. An exposure is
an offset by its logarithm.

The effects of a group are independent if its term is written ``(random || group)`` or if it has
several terms of one column each. ``.`` as the random part stands for every column of the fixed
part. A factor is a column, or ``a:b`` for every combination of the levels of two or more columns;
``(1 | a/b)`` means ``(1 | a) + (1 | a:b)``.
"""

import functools
import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

from nghvi._core.errors import FormulaError, short

OPENING, CLOSING, QUOTES = "([{", ")]}", "\"'`"
NAME = re.compile(r"`[^`]+`|[^\W\d][\w.]*")
EVERY_COLUMN = "."
EXAMPLE = "for example 'score ~ ses + (1 + ses | school)'"


class Syntax(NamedTuple):
    """The parts of a formula, each still as text."""

    text: str
    response: str
    fixed: str
    factors: tuple["FactorSyntax", ...]
    offsets: tuple[str, ...]
    facts: tuple[tuple[str, str], ...] = ()
    """Facts known about every row, by name: each is a number or an expression."""
    exposed: bool = False
    """Whether one of the offsets was written as an exposure."""

    @property
    def group(self) -> str | tuple[str, ...] | None:
        """The name of the factor, a tuple of names if there are several, None if there is none."""
        names = tuple(factor.name for factor in self.factors)
        return names if len(names) > 1 else names[0] if names else None

    @property
    def random(self) -> tuple[str, ...]:
        """What varies by group: the part of every group term before its '|'."""
        return sum((factor.random for factor in self.factors), ())

    @property
    def group_columns(self) -> tuple[str, ...]:
        """Columns of the data that hold group labels."""
        return tuple(dict.fromkeys(name for factor in self.factors for name in factor.columns))

    def ungrouped(self) -> "Syntax":
        """The same model columns without the columns that hold group labels."""
        return self._replace(factors=tuple(f._replace(columns=()) for f in self.factors))


class FactorSyntax(NamedTuple):
    """All group terms of one factor."""

    columns: tuple[str, ...]
    """The columns whose combinations of levels are the levels of the factor."""
    random: tuple[str, ...]
    """What varies by group: the part of every term before its '|'."""
    independent: bool
    """Whether the formula makes the effects independent."""

    @property
    def name(self) -> str:
        """The name of the factor as a formula writes it, such as ``a:b``."""
        return ":".join(self.columns)


class _GroupTerm(NamedTuple):
    text: str
    random: str
    columns: tuple[str, ...]
    independent: bool


def parse(formula: str) -> Syntax:
    """Split a formula into its parts, or raise a FormulaError that shows what is wrong with it."""
    if not isinstance(formula, str) or not formula.strip():
        raise FormulaError(f"formula {short(formula)}: a formula is a text, {EXAMPLE}.")
    return _parsed(formula)


@functools.lru_cache(maxsize=64)
def _parsed(formula: str) -> Syntax:
    tildes = [i for i, char, depth in _outside_quotes(formula) if char == "~"]
    if len(tildes) != 1:
        raise FormulaError(
            f"formula {formula!r}: it needs exactly one '~' after the response, {EXAMPLE}."
        )
    response, right = formula[: tildes[0]].strip(), formula[tildes[0] + 1 :]
    if not response:
        raise FormulaError(f"formula {formula!r}: the response before '~' is missing, {EXAMPLE}.")
    if not right.strip():
        raise FormulaError(
            f"formula {formula!r}: there is nothing after '~'; write '{response} ~ 1' for an "
            "intercept alone."
        )
    response, stated = _stated(formula, response)
    fixed, terms, offsets, exposed = "", [], [], False
    for sign, piece in _summands(right):
        special = _group_terms(formula, piece) or _offset(piece)
        if special is None:
            fixed += f" {sign} {piece}"
        elif sign == "-":
            raise FormulaError.at(
                formula, piece, "group terms, offsets and exposures are added, never subtracted."
            )
        elif isinstance(special, str):
            offsets.append(special)
            exposed |= _called(piece, "exposure") is not None
        else:
            terms += special
    return Syntax(
        text=formula,
        response=_power(response),
        fixed=_power(fixed.strip().removeprefix("+").strip()) or "1",
        factors=_by_factor(formula, terms),
        offsets=tuple(map(_power, offsets)),
        facts=tuple((name, _power(text)) for name, text in stated),
        exposed=exposed,
    )


def _outside_quotes(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield position, character and bracket depth of all that is not quoted."""
    open_brackets: list[int] = []
    quote = None
    for i, char in enumerate(text):
        if quote is not None:
            quote = None if char == quote else quote
        elif char in QUOTES:
            quote = char
        elif char in CLOSING:
            if not open_brackets or OPENING.index(text[open_brackets.pop()]) != CLOSING.index(char):
                raise FormulaError.at(
                    text, text[i:], "this bracket was never opened; remove it or open it."
                )
            yield i, char, len(open_brackets)
        else:
            yield i, char, len(open_brackets)
            open_brackets += [i] if char in OPENING else []
    if quote is not None:
        raise FormulaError(f"formula {text!r}: the quote {quote} is never closed.")
    if open_brackets:
        raise FormulaError.at(text, text[open_brackets[-1] :], "this bracket is never closed.")


def _summands(text: str) -> Iterator[tuple[str, str]]:
    """Yield the pieces between + and -, each with its sign."""
    signs = [(i, c) for i, c, depth in _outside_quotes(text) if depth == 0 and c in "+-"]
    cuts = [(-1, "+"), *signs, (len(text), "+")]
    for (start, sign), (stop, _) in itertools.pairwise(cuts):
        piece = text[start + 1 : stop].strip()
        bars = [depth for _, char, depth in _outside_quotes(piece) if char == "|"]
        if sign == "+" and bars and min(bars) > 1 and _is_one_bracket(piece):
            yield from _summands(piece[1:-1])  # a sum of group terms, which is how lme4 prints '||'
        elif piece or start >= 0:
            yield sign, piece


def _group_terms(formula: str, piece: str) -> list[_GroupTerm] | None:
    """Return one group term per factor that the piece names, or None if it is no group term."""
    bars = [(i, depth) for i, char, depth in _outside_quotes(piece) if char == "|"]
    if not bars:
        return None
    if not _is_one_bracket(piece) or any(depth != 1 for _, depth in bars):
        raise FormulaError.at(
            formula, piece, "a group term needs its own brackets, as in 'x + (1 | school)'."
        )
    first, last = bars[0][0], bars[-1][0]
    if len(bars) > 2 or last - first > 1:
        raise FormulaError.at(
            formula, piece, "a group term has one '|' or one '||', as in '(1 | school)'."
        )
    random, group = piece[1:first].strip(), piece[last + 1 : -1].strip()
    if not random:
        raise FormulaError.at(
            formula, piece, "write what varies by group before '|', as in '(1 | school)'."
        )
    return [_GroupTerm(piece, random, f, len(bars) == 2) for f in _factors(formula, piece, group)]


def _factors(formula: str, piece: str, group: str) -> list[tuple[str, ...]]:
    """Return the columns of every factor: ``a/b/c`` names a, a:b and a:b:c."""
    found: list[tuple[str, ...]] = []
    for part in _between(group, "/"):
        names = _between(part, ":")
        if not all(map(NAME.fullmatch, names)):
            raise FormulaError.at(
                formula,
                piece,
                "name the group column after '|', as in '(1 | school)'; 'a:b' stands for every "
                "combination of two columns, and 'a/b' for 'a' and 'a:b'. Write one term per "
                "factor, as in '(1 | a) + (1 | b)'.",
            )
        columns = (*(found[-1] if found else ()), *(name.strip("`") for name in names))
        if len(set(columns)) < len(columns):
            twice = next(name for name in columns if columns.count(name) > 1)
            raise FormulaError.at(
                formula, piece, f"{twice!r} is nested in itself: name every column once."
            )
        found.append(columns)
    return found


def _between(text: str, sign: str) -> list[str]:
    """Return the pieces of a text between occurrences of a sign outside brackets."""
    cuts = [i for i, char, depth in _outside_quotes(text) if char == sign and depth == 0]
    return [text[a + 1 : b].strip() for a, b in itertools.pairwise([-1, *cuts, len(text)])]


def _offset(piece: str) -> str | None:
    if (inside := _called(piece, "offset")) is not None:
        return inside
    inside = _called(piece, "exposure")
    return None if inside is None else f"log({inside})"


def _called(piece: str, name: str) -> str | None:
    """Return the text in the brackets if the piece is a call of that name, or None."""
    inside = piece.removeprefix(name).strip()
    called = piece.startswith(name) and inside.startswith("(") and _is_one_bracket(inside)
    return inside[1:-1].strip() if called else None


def _stated(formula: str, response: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the response itself, and the facts that the left-hand side states about the rows."""
    if (inside := _called(response, "cbind")) is not None:
        parts = _between(inside, ",")
        if len(parts) != 2:
            raise FormulaError.at(
                formula, response, "cbind takes two columns: 'cbind(successes, failures)'."
            )
        return _quoted(parts[0]), [("trials", f"({parts[0]}) + ({parts[1]})")]
    if (inside := _called(response, "censored")) is not None:
        parts = _between(inside, ",")
        if len(parts) not in (2, 3):
            raise FormulaError.at(
                formula, response, "write 'censored(y, lower)' or 'censored(y, lower, upper)'."
            )
        lower, upper = (*parts[1:], "inf")[:2]
        return _quoted(parts[0]), [("lower", lower), ("upper", upper)]
    bars = [i for i, char, depth in _outside_quotes(response) if char == "|" and depth == 0]
    if not bars:
        return response, []
    for name in ("trials", "weights"):
        said = _called(response[bars[0] + 1 :].strip(), name)
        if said and len(bars) == 1:
            return response[: bars[0]].strip(), [(name, said)]
    raise FormulaError.at(formula, response, "write 'successes | trials(n)' or 'y | weights(w)'.")


def _quoted(text: str) -> str:
    """Return a name as it is, and a calculation in braces, so that its signs mean arithmetic."""
    return text if NAME.fullmatch(text) else f"{{{text}}}"


def _is_one_bracket(piece: str) -> bool:
    """Return whether one pair of brackets encloses the whole piece."""
    closed = [i for i, char, depth in _outside_quotes(piece) if char == ")" and depth == 0]
    return piece.startswith("(") and closed[:1] == [len(piece) - 1]


def _by_factor(formula: str, terms: list[_GroupTerm]) -> tuple[FactorSyntax, ...]:
    """Collect the terms of each factor, in the order in which the factors first appear."""
    found: dict[frozenset[str], list[_GroupTerm]] = {}
    for term in terms:
        same = found.setdefault(frozenset(term.columns), [])
        if any(term.random == other.random for other in same):
            raise FormulaError.at(
                formula, term.text, "the same group term appears twice; remove one."
            )
        same.append(term)
    return tuple(
        FactorSyntax(
            same[0].columns,
            tuple(_power(term.random) for term in same),
            len(same) > 1 or same[0].independent,
        )
        for same in found.values()
    )


def _power(text: str) -> str:
    """Write R's sign for a power, ``^``, as Python's ``**``."""
    signs = [i for i, char, _ in _outside_quotes(text) if char == "^"]
    for i in reversed(signs):
        text = f"{text[:i]}**{text[i + 1 :]}"
    return text
