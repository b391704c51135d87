"""What is wrong with data, and what is only suspicious."""

import pathlib
import sys
import warnings

from nghvi._core.errors import InputError

PACKAGE = str(pathlib.Path(__file__).parent.parent)


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
