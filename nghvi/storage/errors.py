"""The one error of this package."""

from nghvi._core.errors import InputError


class StorageError(InputError):
    """A model cannot be saved or loaded; the message says why and what to do."""
