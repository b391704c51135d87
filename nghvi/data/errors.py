"""What is wrong with data."""


class DataError(ValueError):
    """The data cannot be used; the message names the column and the remedy."""
