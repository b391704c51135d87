"""The errors for input that is refused, and the warning for input that is only suspicious.

Also what their messages call a row, and what they take an unknown name to mean.
"""

import contextlib
import contextvars
import difflib
import os
import pathlib
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator

import numpy as np

PACKAGE = str(pathlib.Path(__file__).parent.parent)
"""The folder of this package, whose frames :func:`warn` skips."""

LONGEST = 300
"""The most characters of a value that a message shows."""


class InputError(ValueError):
    """Raised if data, a formula, a setting or a file cannot be used.

    The message says what is wrong, where, and what to do. This is the base class of all such
    errors, so that one ``except nghvi.InputError`` catches them.
    """


class DataError(InputError):
    """Raised if the data cannot be used; the message names the column and the remedy."""


class DataWarning(UserWarning):
    """Issued if data may not be what was meant, or do not determine all parameters."""


def warn(said: str) -> None:
    """Issue a :class:`DataWarning` that points at the line which called nghvi."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(said, DataWarning, stacklevel=level)


PlaceOf = Callable[[int], str]
_place_of: contextvars.ContextVar[PlaceOf | None] = contextvars.ContextVar("place_of", default=None)


@contextlib.contextmanager
def naming_rows(place_of: PlaceOf) -> Iterator[None]:
    """Errors and warnings inside call a row what this function of its position says, "line 5".

    Otherwise rows are called by their position in the table, of which the first is 0; whoever reads
    a message about a file looks for its line.
    """
    token = _place_of.set(place_of)
    try:
        yield
    finally:
        _place_of.reset(token)


def naming_kept(kept: np.ndarray | None) -> contextlib.AbstractContextManager[None]:
    """Errors inside name rows as they were before some were left out.

    ``kept`` are the positions, among all rows, of those that are left; None if all are.
    """
    if kept is None:
        return contextlib.nullcontext()
    name = _place_of.get() or "row {}".format
    return naming_rows(lambda row: name(int(kept[row])))


def row_name(row: int) -> str:
    """What messages call the row at that position."""
    return (_place_of.get() or "row {}".format)(int(row))


def row_names(rows: Iterable[int]) -> str:
    """What they call several, the kind of place said once: "lines 5, 9"."""
    name = _place_of.get() or "position {}".format
    kinds, numbers = zip(*(name(int(row)).rsplit(" ", 1) for row in rows), strict=True)
    return f"{kinds[0]}{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"


def short(value: object) -> str:
    """Return a value as a message shows it: what does not fit on a line by its kind only."""
    shown = repr(value)
    return shown if len(shown) <= LONGEST and "\n" not in shown else f"a {type(value).__name__}"


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a sentence on what an unknown name may mean: the closest name, or the known ones."""
    known = [str(k) for k in known]
    folded = {k.casefold(): k for k in known}
    near = difflib.get_close_matches(name, known, n=1) or [
        folded[k] for k in difflib.get_close_matches(name.casefold(), folded, n=1)
    ]
    if near:
        return f"Did you mean {near[0]!r}?"
    more = ", ..." if len(known) > 10 else ""
    return f"There are {', '.join(map(repr, known[:10]))}{more}."


class FormulaError(DataError):
    """Raised if a formula cannot be used; the message shows where, and what to do."""

    @staticmethod
    def at(formula: str, place: str, reason: str) -> "FormulaError":
        """Return the error about one piece of a formula."""
        # A parsed piece may have other spaces than the formula.
        found = re.search(r"\s*".join(map(re.escape, place.replace(" ", ""))), formula)
        shown = f", at {found[0]!r} (character {found.start() + 1})" if found and place else ""
        return FormulaError(f"formula {formula!r}{shown}: {reason}")


def as_table(data: object) -> str:
    """Return how to make a table of data that are none, as the end of a clause."""
    if isinstance(data, str | os.PathLike):
        return "; read the file first, for example with pandas.read_csv"
    return "; make it one (pandas.DataFrame(data))"


def in_backticks(name: str, columns: Iterable[str]) -> str | None:
    """Return a sentence on a column of whose name a formula has read only a part, or None."""
    for column in map(str, columns):
        if not column.isidentifier() and name in re.split(r"[^\w.]+", column):
            return f"If you mean the column {column!r}, write it in backticks: `{column}`."
    return None


class StorageError(InputError):
    """Raised if a model cannot be saved or loaded; the message says why and what to do."""
