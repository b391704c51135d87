"""The directory of a run: the model, its summary, and what was asked for."""

import contextlib
import dataclasses
import fcntl
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import nghvi
from nghvi.cli import UsageError, as_json, writing
from nghvi.data import parquet
from nghvi.data.working_copy import StreamedRows
from nghvi.storage.file import replaced

if TYPE_CHECKING:
    from nghvi.estimators._base import MixedEstimator

MODEL, SUMMARY, SETTINGS = "model.nghvi", "summary.csv", "settings.json"
ROWS = "rows"
"""Working copy of rows that stay on disk."""
TEXTS = ("target", "formula", "group", "sep", "decimal", "thousands", "missing", "data", "sha256")
"""Answers in the settings of a run that are text or nothing."""
LIBRARIES = ("jax", "numpy", "pandas", "formulaic")


@contextlib.contextmanager
def claimed(out: pathlib.Path, *, occupied: bool) -> Iterator[None]:
    """Make the directory, and make sure that files can be written there before hours of work.

    Nobody else can claim the directory inside; a process that ends in any way gives it back.
    """
    with writing(out, "--out"):
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
        lock = os.open(out, os.O_RDONLY)
    try:
        _lock(out, lock)
        if not occupied and any(out.iterdir()):
            raise UsageError(
                f"{out}: the directory is not empty; choose another --out, or give --force to "
                "replace the run in it or --resume to continue it."
            )
        yield
    finally:
        os.close(lock)


def _lock(out: pathlib.Path, directory: int) -> None:
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"{out}: another fit is writing there now; wait until it has finished or choose "
            "another --out."
        ) from None
    except OSError:
        pass  # a file system without locks


def write(
    out: pathlib.Path, estimator: "MixedEstimator", asked: dict[str, Any], table: pathlib.Path
) -> None:
    """Write everything that a run keeps; of the table only its path and fingerprint are kept."""
    estimator.save(out / MODEL)
    versions = {name: importlib.metadata.version(name) for name in LIBRARIES}
    versions |= {"nghvi": nghvi.__version__, "python": platform.python_version()}
    settings = {"asked": asked, "table": str(table.resolve()), "versions": versions}
    for name, text in {
        SUMMARY: estimator.summary().to_csv(),
        SETTINGS: as_json(settings) + "\n",
    }.items():
        with replaced(out / name) as file:
            file.write(text.encode())


def load(out: pathlib.Path) -> Any:
    """Return the fitted estimator of a run."""
    if not (out / MODEL).is_file():
        raise UsageError(f"{out}: there is no run (no {MODEL}); give the --out of 'nghvi fit'.")
    estimator = nghvi.load(out / MODEL)
    inference = estimator.posterior_.inference
    if isinstance(inference.data, StreamedRows):  # the run may have been moved since
        data = dataclasses.replace(inference.data, directory=str((out / ROWS).absolute()))
        inference = dataclasses.replace(inference, data=data)
        estimator.posterior_ = estimator.posterior_._replace(inference=inference)
    return estimator


def settings_of(out: pathlib.Path) -> dict[str, Any]:
    """Return what a run says about itself."""
    try:
        settings = json.loads((out / SETTINGS).read_text())
        if not all(isinstance(settings["asked"].get(name), str | None) for name in TEXTS):
            raise TypeError
        if settings["asked"].get("target") is None and settings["asked"].get("formula") is None:
            raise KeyError
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UsageError(f"{out}: its {SETTINGS} cannot be read; fit again with --force.") from None
    return settings


def check_asked(out: pathlib.Path, asked: dict[str, Any]) -> None:
    """Raise an error unless a run continues with the arguments it was started with."""
    before = settings_of(out)["asked"]
    for name, value in json.loads(as_json(asked)).items():
        if name == "sha256" and before.get(name) != value:
            raise UsageError(
                f"{out}: {asked['data']} has changed since the run was begun; restore it, or fit "
                "again with --force."
            )
        if before.get(name) != value:
            raise UsageError(
                f"{out}: the run was begun with {name} {before.get(name)!r}, not {value!r}; repeat "
                "its arguments, or fit again with --force."
            )


def table_of(out: pathlib.Path) -> pathlib.Path:
    """Return the path of the table of the fit, if it is still there and the same."""
    settings = settings_of(out)
    path = pathlib.Path(str(settings.get("table") or settings["asked"].get("data")))
    try:
        found = fingerprint(path)
    except OSError as error:
        raise UsageError(
            f"{path}: the table of the fit cannot be read ({error.strerror})"
        ) from None
    if found != settings["asked"].get("sha256"):
        raise UsageError(f"{path}: the table has changed since the fit")
    return path


def seen_from_outside(path: pathlib.Path) -> str:
    """Return a hash of the names, sizes and times of Parquet files."""
    return hashlib.sha256(as_json(parquet.fingerprint(parquet.files_of(path))).encode()).hexdigest()


def fingerprint(path: pathlib.Path) -> str:
    """Return a hash of the content of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
