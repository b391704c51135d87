"""The text of a formula, taken apart: response, fixed part, group term, offsets.

    response ~ fixed + (random | group) + offset(expression) + exposure(expression)

The response may state what is known about every row: ``successes | trials(n)``,
``cbind(successes, failures)``, ``censored(y, lower, upper)`` or ``y | weights(w)``. An exposure is
an offset of its logarithm.

``(random || group)``, and several terms of one column each for one group, make the effects
independent. ``.`` as the random part stands for every column of the fixed part.
"""

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

from nghvi._core.errors import FormulaError

OPENING, CLOSING, QUOTES = "([{", ")]}", "\"'`"
NAME = re.compile(r"`[^`]+`|[^\W\d][\w.]*")
EVERY_COLUMN = "."
EXAMPLE = "for example 'score ~ ses + (1 + ses | school)'"


class Syntax(NamedTuple):
    """The parts of a formula, each still text."""

    text: str
    response: str
    fixed: str
    random: tuple[str, ...]
    """The left-hand side of every group term."""
    group: str | None
    independent: bool
    """Whether the effects are said to be independent."""
    offsets: tuple[str, ...]
    facts: tuple[tuple[str, str], ...] = ()
    """What is known about every row, by name: a number or an expression each."""


class _GroupTerm(NamedTuple):
    text: str
    random: str
    group: str
    independent: bool


def parse(formula: str) -> Syntax:
    """Take a formula apart; everything that is wrong with the whole is said here."""
    if not isinstance(formula, str) or not formula.strip():
        raise FormulaError(f"formula {formula!r}: give a text, {EXAMPLE}.")
    tildes = [i for i, char, depth in _outside_quotes(formula) if char == "~"]
    if len(tildes) != 1:
        raise FormulaError(f"formula {formula!r}: it needs one '~' after the response, {EXAMPLE}.")
    response, right = formula[: tildes[0]].strip(), formula[tildes[0] + 1 :]
    if not response:
        raise FormulaError(f"formula {formula!r}: the response before '~' is missing, {EXAMPLE}.")
    if not right.strip():
        raise FormulaError(
            f"formula {formula!r}: nothing stands after '~'; write '{response} ~ 1' for an "
            "intercept alone."
        )
    response, stated = _stated(formula, response)
    fixed, terms, offsets = "", [], []
    for sign, piece in _summands(right):
        special = _group_term(formula, piece) or _offset(piece)
        if special is None:
            fixed += f" {sign} {piece}"
        elif sign == "-":
            raise FormulaError.at(formula, piece, "it can only be added, not taken away.")
        elif isinstance(special, _GroupTerm):
            terms.append(special)
        else:
            offsets.append(special)
    _check_one_group(formula, terms)
    return Syntax(
        text=formula,
        response=_power(response),
        fixed=_power(fixed.strip().removeprefix("+").strip()) or "1",
        random=tuple(_power(term.random) for term in terms),
        group=terms[0].group if terms else None,
        independent=len(terms) > 1 or any(term.independent for term in terms),
        offsets=tuple(map(_power, offsets)),
        facts=tuple((name, _power(text)) for name, text in stated),
    )


def _outside_quotes(text: str) -> Iterator[tuple[int, str, int]]:
    """Position, character and depth of brackets, quoted parts left out."""
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
                    text, text[i:], "this bracket was not opened; take it away or open it."
                )
            yield i, char, len(open_brackets)
        else:
            yield i, char, len(open_brackets)
            open_brackets += [i] if char in OPENING else []
    if quote is not None:
        raise FormulaError(f"formula {text!r}: the quote {quote} is not closed.")
    if open_brackets:
        raise FormulaError.at(
            text, text[open_brackets[-1] :], "this bracket is not closed; close it."
        )


def _summands(text: str) -> Iterator[tuple[str, str]]:
    """The pieces between + and -, each with its sign."""
    signs = [(i, c) for i, c, depth in _outside_quotes(text) if depth == 0 and c in "+-"]
    cuts = [(-1, "+"), *signs, (len(text), "+")]
    for (start, sign), (stop, _) in itertools.pairwise(cuts):
        piece = text[start + 1 : stop].strip()
        bars = [depth for _, char, depth in _outside_quotes(piece) if char == "|"]
        if sign == "+" and bars and min(bars) > 1 and _is_one_bracket(piece):
            yield from _summands(piece[1:-1])  # a sum of group terms, as lme4 prints '||'
        elif piece or start >= 0:
            yield sign, piece


def _group_term(formula: str, piece: str) -> _GroupTerm | None:
    bars = [(i, depth) for i, char, depth in _outside_quotes(piece) if char == "|"]
    if not bars:
        return None
    if not _is_one_bracket(piece) or any(depth != 1 for _, depth in bars):
        raise FormulaError.at(
            formula, piece, "a group term stands on its own in brackets, as in 'x + (1 | school)'."
        )
    first, last = bars[0][0], bars[-1][0]
    if len(bars) > 2 or last - first > 1:
        raise FormulaError.at(formula, piece, "a group term has one '|' or one '||': '(1 | g)'.")
    random, group = piece[1:first].strip(), piece[last + 1 : -1].strip()
    if not random:
        raise FormulaError.at(formula, piece, "say what varies by group, for example '(1 | g)'.")
    if not NAME.fullmatch(group):
        raise FormulaError.at(formula, piece, _not_one_factor(group))
    return _GroupTerm(piece, random, group.strip("`"), len(bars) == 2)


def _offset(piece: str) -> str | None:
    if (inside := _called(piece, "offset")) is not None:
        return inside
    inside = _called(piece, "exposure")
    return None if inside is None else f"log({inside})"


def _called(piece: str, name: str) -> str | None:
    """What stands in the brackets, if the piece is a call of that name."""
    inside = piece.removeprefix(name).strip()
    called = piece.startswith(name) and inside.startswith("(") and _is_one_bracket(inside)
    return inside[1:-1].strip() if called else None


def _stated(formula: str, response: str) -> tuple[str, list[tuple[str, str]]]:
    """The response itself, and the facts that the left-hand side states about its rows."""
    if (inside := _called(response, "cbind")) is not None:
        parts = _arguments(inside)
        if len(parts) != 2:
            raise FormulaError.at(
                formula, response, "give two columns, 'cbind(successes, failures)'."
            )
        return _quoted(parts[0]), [("trials", f"({parts[0]}) + ({parts[1]})")]
    if (inside := _called(response, "censored")) is not None:
        parts = _arguments(inside)
        if len(parts) not in (2, 3):
            raise FormulaError.at(
                formula, response, "give 'censored(y, lower)' or 'censored(y, lower, upper)'."
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


def _arguments(text: str) -> list[str]:
    commas = [i for i, char, depth in _outside_quotes(text) if char == "," and depth == 0]
    return [text[a + 1 : b].strip() for a, b in itertools.pairwise([-1, *commas, len(text)])]


def _quoted(text: str) -> str:
    """A name as it is, and a calculation so that its signs mean numbers."""
    return text if NAME.fullmatch(text) else f"{{{text}}}"


def _is_one_bracket(piece: str) -> bool:
    """Whether the first bracket opens at the beginning and closes at the end."""
    closed = [i for i, char, depth in _outside_quotes(piece) if char == ")" and depth == 0]
    return piece.startswith("(") and closed[:1] == [len(piece) - 1]


def _check_one_group(formula: str, terms: list[_GroupTerm]) -> None:
    for term in terms[1:]:
        if term.group != terms[0].group:
            both = f"{terms[0].group} {term.group}"
            raise FormulaError.at(formula, term.text, _not_one_factor(both))
    if len(terms) > 1 and len({term.random for term in terms}) < len(terms):
        raise FormulaError.at(
            formula, terms[-1].text, "the same group term occurs twice; leave one out."
        )


def _not_one_factor(group: str) -> str:
    names = NAME.findall(group)
    if not names:
        return "name the column of the groups after '|', for example '(1 | school)'."
    joined = " and ".join(names) if len(names) > 1 else names[0]
    return (
        f"one grouping factor is supported, not two or more yet ({joined}): keep the term of the "
        "most important one and put the other among the fixed effects, or make one column of "
        "both, for example data['a'].astype(str) + '/' + data['b'].astype(str)."
    )


def _power(text: str) -> str:
    """R's sign for a power is Python's."""
    signs = [i for i, char, _ in _outside_quotes(text) if char == "^"]
    for i in reversed(signs):
        text = f"{text[:i]}**{text[i + 1 :]}"
    return text
