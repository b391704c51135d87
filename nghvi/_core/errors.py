"""The errors for input that is refused, and the warning for input that is only suspicious."""

import pathlib
import re
import sys
import warnings

PACKAGE = str(pathlib.Path(__file__).parent.parent)
"""The folder of this package, whose frames :func:`warn` skips."""


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


class FormulaError(DataError):
    """Raised if a formula cannot be used; the message shows where, and what to do."""

    @staticmethod
    def at(formula: str, place: str, reason: str) -> "FormulaError":
        """Return the error about one piece of a formula."""
        # A parsed piece may have other spaces than the formula.
        found = re.search(r"\s*".join(map(re.escape, place.replace(" ", ""))), formula)
        shown = f", at {found[0]!r} (character {found.start() + 1})" if found and place else ""
        return FormulaError(f"formula {formula!r}{shown}: {reason}")


class StorageError(InputError):
    """Raised if a model cannot be saved or loaded; the message says why and what to do."""
