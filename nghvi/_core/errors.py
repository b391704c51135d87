"""What is refused, and what is only suspicious: the errors and the warning that users meet."""

import pathlib
import re
import sys
import warnings

PACKAGE = str(pathlib.Path(__file__).parent.parent)


class InputError(ValueError):
    """Data, a formula, a setting or a file cannot be used; the message says where and the remedy.

    The common base of all such complaints, so that one ``except nghvi.InputError`` catches them.
    """


class DataError(InputError):
    """The data cannot be used; the message names the column and the remedy."""


class DataWarning(UserWarning):
    """The data can be used, but may not be what was meant, or do not determine everything."""


def warn(said: str) -> None:
    """A warning about data that points at the line which called nghvi."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(said, DataWarning, stacklevel=level)


class FormulaError(DataError):
    """A formula cannot be used; the message shows the place in it and the remedy."""

    @staticmethod
    def at(formula: str, place: str, reason: str) -> "FormulaError":
        """An error at a piece of the formula."""
        # The parts of a formula are parsed with spaces of their own.
        found = re.search(r"\s*".join(map(re.escape, place.replace(" ", ""))), formula)
        shown = f", at {found[0]!r} (character {found.start() + 1})" if found and place else ""
        return FormulaError(f"formula {formula!r}{shown}: {reason}")


class StorageError(InputError):
    """A model cannot be saved or loaded; the message says why and what to do."""
