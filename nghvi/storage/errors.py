"""The one error of this package."""


class StorageError(ValueError):
    """A model cannot be saved or loaded; the message says why and what to do."""
