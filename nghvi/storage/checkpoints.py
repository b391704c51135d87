"""Checkpoints of a running fit: numbered files in a directory, of which the newest readable counts.

A file is complete or absent and is read only if its checksums agree (:mod:`nghvi.storage.file`),
so a fit that was killed at any moment continues from the last file as if nothing had happened. If
that file is damaged, the one before it is used. With several processes, the first one writes.
"""

import os
import pathlib
import time
import warnings
from typing import Any

from nghvi._core.errors import StorageError
from nghvi._core.hosts import any_process, is_first, on_host, same_everywhere
from nghvi.recipes.run import Position
from nghvi.storage import file
from nghvi.storage.codec import decode, encode

SUFFIX = ".checkpoint"
KEPT = 3
"""Files that stay; older ones are removed."""


class CheckpointWarning(UserWarning):
    """Issued if a checkpoint cannot be read and an earlier one is used."""


class Checkpoints:
    """The checkpoints of one fit.

    ``facts``: everything that decides its course, by name; checkpoints of another fit are refused.
    ``every``: seconds between two checkpoints; 0 writes one after every chunk of steps.
    """

    def __init__(self, directory: str | os.PathLike, facts: dict[str, str], every: float) -> None:
        self.directory = pathlib.Path(directory)
        self._facts, self._every = facts, every
        self._written = time.monotonic()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"{directory}: cannot keep checkpoints there ({error.strerror}); give another "
                "directory."
            ) from None

    def newest(self) -> Position | None:
        """Return the position in the newest checkpoint that can be read; None if there are none.

        All processes must call this.
        """
        files = checkpoint_files(self.directory)
        found = None
        for path in reversed(files):
            try:
                found = self._read(path)
                break
            except file.DamagedError as error:
                warnings.warn(f"{error} An earlier one is used.", CheckpointWarning, stacklevel=3)
        if files and found is None:
            raise StorageError(
                f"{self.directory}: none of {len(files)} checkpoints can be read; remove them to "
                "start again."
            )
        # Also a barrier: nothing is written before all have read.
        if not same_everywhere(-1 if found is None else number(path)):
            raise StorageError(
                f"{self.directory}: processes see different checkpoints there; give a directory "
                "that all hosts share."
            )
        return found

    def offer(self, position: Position, ends: bool) -> None:
        """Save the position if it is time to, or if the fit ends here.

        All processes must call this.
        """
        due = time.monotonic() - self._written >= self._every
        if not any_process(ends or due):
            return
        position = on_host(position)
        if is_first():
            self._write(position)
        self._written = time.monotonic()

    def _write(self, position: Position) -> None:
        files = checkpoint_files(self.directory)
        after = number(files[-1]) + 1 if files else 1
        described, arrays = encode(position)
        content = {"facts": self._facts, "checkpoint": described}
        file.write(self.directory / f"{after:08d}{SUFFIX}", content, arrays)
        unfinished = self.directory.glob(f".*{SUFFIX}.*.tmp")  # of a process that was killed
        for old in (*files[: 1 - KEPT], *unfinished):
            old.unlink(missing_ok=True)

    def _read(self, path: pathlib.Path) -> Position:
        stored = file.read(path)
        if not isinstance(stored.model, dict) or stored.model.keys() != {"facts", "checkpoint"}:
            raise StorageError(f"{path}: this is not a checkpoint; keep other files elsewhere.")
        if not isinstance(stored.model["facts"], dict):
            raise file.DamagedError(f"{path}: the file was altered: it does not say of which fit.")
        differing = _differing(stored.model["facts"], self._facts)
        if differing:
            raise StorageError(
                f"{path}: the checkpoint is of another fit: {differing}. Repeat what it was begun "
                "with, or give another directory."
            )
        try:
            position = decode(stored.model["checkpoint"], stored.arrays)
            if isinstance(position, dict):  # as earlier versions wrote it
                refinements = position["refinements"]
                position = position["position"]._replace(refinements=refinements)
        except (StorageError, AttributeError, KeyError) as error:
            raise file.DamagedError(f"{path}: {error}") from error
        if not isinstance(position, Position):
            raise file.DamagedError(f"{path}: the file was altered: it does not say where it was.")
        return position


def checkpoint_files(directory: pathlib.Path) -> list[pathlib.Path]:
    """Return the checkpoints in a directory, the newest last."""
    return sorted(p for p in directory.glob(f"*{SUFFIX}") if p.stem.isdigit())


def number(path: pathlib.Path) -> int:
    """Return the place of a checkpoint among all."""
    return int(path.stem)


def _differing(before: dict[str, Any], now: dict[str, str]) -> str:
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return "; ".join(f"{name} was {before.get(name)}, now {now.get(name)}" for name in names)
