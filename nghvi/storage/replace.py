"""Files that are complete or absent: written beside their place, then moved there."""

import contextlib
import os
import pathlib
import secrets
from collections.abc import Iterator
from typing import BinaryIO

from nghvi.storage.errors import StorageError


def place_of(path: str | os.PathLike) -> pathlib.Path:
    """Where a file is to be written, if it can be."""
    place = pathlib.Path(os.path.realpath(path))
    if not place.parent.is_dir():
        raise StorageError(f"{path}: there is no directory {place.parent}; create it first.")
    if place.is_dir():
        raise StorageError(f"{path}: this is a directory; give the name of a file.")
    return place


@contextlib.contextmanager
def replaced(place: pathlib.Path) -> Iterator[BinaryIO]:
    """A file to write; it takes its place when the block ends without an error."""
    beside = place.with_name(f".{place.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(beside, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, place)
    finally:
        beside.unlink(missing_ok=True)
