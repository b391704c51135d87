"""The model file: a zip with ``model.json`` and ``arrays.safetensors``, both uncompressed.

A file is complete or absent: it is written next to its destination and then moved there. It is read
only if both checksums agree, so a damaged file never becomes a model that is slightly wrong.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import pathlib
import secrets
import stat
import struct
import zipfile
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from nghvi._core.errors import StorageError

FORMAT = "nghvi-model"
FORMAT_VERSION = 1
DESCRIPTION, ARRAYS = "model.json", "arrays.safetensors"
AGAIN = "get another copy of it or save the model again"
UNREADABLE = (
    *(zipfile.BadZipFile, struct.error, EOFError, OSError),
    *(NotImplementedError, RuntimeError, ValueError, OverflowError),
)
"""What zipfile raises on archives that are damaged or not for it."""


class DamagedError(StorageError):
    """Raised if a file is not what was written."""


class Stored(NamedTuple):
    """The content of a model file."""

    model: Any
    arrays: dict[str, np.ndarray]
    library_version: str
    """Version of the nghvi that wrote the file."""


def write(path: str | os.PathLike, model: Any, arrays: dict[str, np.ndarray]) -> None:
    """Write a model file; an existing one is replaced completely or not at all."""
    place = place_of(path)
    tensors = safetensors.numpy.save(arrays)
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "library_version": library_version(),
        "arrays_sha256": hashlib.sha256(tensors).hexdigest(),
        "model": model,
    }
    description = _canonical({**content, "sha256": hashlib.sha256(_canonical(content)).hexdigest()})
    try:
        with replaced(place) as file:
            _write_zip(file, {DESCRIPTION: description, ARRAYS: tensors})
    except OSError as error:
        raise StorageError(
            f"{path}: the file cannot be written ({error}); free some space or choose another "
            "place."
        ) from error


def read(path: str | os.PathLike) -> Stored:
    """Read a model file and check everything that can be checked without knowing the model."""
    members = _members(path)
    content = _description(path, members[DESCRIPTION])
    if hashlib.sha256(members[ARRAYS]).hexdigest() != content["arrays_sha256"]:
        raise _damaged(path, "its arrays are not the ones that were saved")
    try:
        arrays = safetensors.numpy.load(members[ARRAYS])
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise _damaged(path, f"its arrays cannot be read: {error}") from error
    return Stored(content["model"], arrays, str(content["library_version"]))


def _write_zip(file: BinaryIO, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            # A ZipInfo of its own has a fixed date: the same model gives the same file.
            archive.writestr(zipfile.ZipInfo(name), data)


def _members(path: str | os.PathLike) -> dict[str, bytes]:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # reading a pipe would wait forever
            raise StorageError(
                f"{path}: this is not a model file but a directory, a pipe or a device; give a "
                "file that was written by save."
            )
        with open(path, "rb") as file:
            if file.read(2) != b"PK":
                raise DamagedError(
                    f"{path}: this is not a model file; give one that was written by save."
                )
            with zipfile.ZipFile(file) as archive:
                _check_members(path, archive)
                return {name: archive.read(name) for name in (DESCRIPTION, ARRAYS)}
    except FileNotFoundError:
        raise StorageError(f"{path}: there is no such file; check the path.") from None
    except (IsADirectoryError, PermissionError) as error:
        raise StorageError(
            f"{path}: the file cannot be opened ({error.strerror}); check its permissions."
        ) from error
    except StorageError:
        raise
    except UNREADABLE as error:
        raise _damaged(path, f"truncated or altered: {error}") from error


def _check_members(path: str | os.PathLike, archive: zipfile.ZipFile) -> None:
    entries = archive.infolist()
    names = [entry.filename for entry in entries]
    if DESCRIPTION not in names:
        raise DamagedError(
            f"{path}: this zip is not a model file (it has no {DESCRIPTION}); give one that was "
            "written by save."
        )
    if sorted(names) != sorted([DESCRIPTION, ARRAYS]):
        raise DamagedError(
            f"{path}: a model file holds {DESCRIPTION} and {ARRAYS} and nothing else, not {names}; "
            f"it was altered: {AGAIN}."
        )
    for entry in entries:
        # Nothing is ever inflated, so what is read can be no larger than the file.
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise DamagedError(
                f"{path}: {entry.filename} is compressed, as save never does; it was packed "
                f"again by another program: {AGAIN}."
            )


def _description(path: str | os.PathLike, data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"{DESCRIPTION} is not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DamagedError(
            f"{path}: this is not a model file of nghvi; give one that was written by save."
        )
    version = content.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise StorageError(
            f"{path}: the file has format {version}, written by nghvi "
            f"{content.get('library_version')}; this nghvi reads up to format {FORMAT_VERSION}: "
            "update it."
        )
    expected = content.pop("sha256", None)
    if hashlib.sha256(_canonical(content)).hexdigest() != expected:
        raise _damaged(path, f"{DESCRIPTION} is not what was saved")
    if not {"model", "arrays_sha256", "library_version"} <= content.keys():
        raise _damaged(path, f"{DESCRIPTION} is incomplete")
    return content


def _canonical(content: dict[str, Any]) -> bytes:
    return json.dumps(content, allow_nan=True, separators=(",", ":")).encode("ascii")


def _damaged(path: str | os.PathLike, reason: str) -> "DamagedError":
    return DamagedError(f"{path}: the file is damaged ({reason}); {AGAIN}.")


def library_version() -> str:
    """Return the version of the nghvi that is running."""
    try:
        return importlib.metadata.version("nghvi")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def place_of(path: str | os.PathLike) -> pathlib.Path:
    """Return where a file is to be written, or raise an error if it cannot be."""
    place = pathlib.Path(os.path.realpath(path))
    if not place.parent.is_dir():
        raise StorageError(f"{path}: there is no directory {place.parent}; create it first.")
    if place.is_dir():
        raise StorageError(f"{path}: this is a directory; give the name of a file.")
    return place


@contextlib.contextmanager
def replaced(place: pathlib.Path) -> Iterator[BinaryIO]:
    """Open a file to write, which takes its place when the block ends without an error."""
    beside = place.with_name(f".{place.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(beside, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, place)
    finally:
        beside.unlink(missing_ok=True)
