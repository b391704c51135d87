"""Finished cells of a study, one JSON line each: written whole or not at all, never run twice."""

import json
import pathlib
from typing import Any

from nghvi.storage.file import replaced

FORMAT = 1
Row = dict[str, Any]


class StudyError(Exception):
    """A study cannot continue; the message says why and what to do."""


class Store:
    """The rows of one study in ``folder/NAME.jsonl``."""

    def __init__(
        self, folder: pathlib.Path, name: str, version: str, *, any_version: bool = False
    ) -> None:
        self.path, self._version = folder / f"{name}.jsonl", version
        self._any_version = any_version
        self.rows = self._read()

    def _read(self) -> list[Row]:
        if not self.path.exists():
            return []
        return [self._row(*line) for line in enumerate(self.path.read_text().splitlines(), 1)]

    def _row(self, number: int, line: str) -> Row:
        try:
            row: Row = json.loads(line)
        except json.JSONDecodeError:
            raise StudyError(
                f"{self.path}, line {number}: not a row of a study; choose another --out or "
                "remove the file."
            ) from None
        made_by = (row.get("format"), row.get("version"))
        wanted = (FORMAT, made_by[1] if self._any_version else self._version)
        if made_by != wanted:
            raise StudyError(
                f"{self.path} holds rows of nghvi {made_by[1]} (format {made_by[0]}), this is "
                f"nghvi {self._version} (format {FORMAT}). Choose another --out, remove the file, "
                "or count rows of all versions as finished by --any-version."
            )
        return row

    def has(self, cell: Row) -> bool:
        """Whether this cell was finished earlier."""
        return any(all(row.get(k) == v for k, v in cell.items()) for row in self.rows)

    def add(self, row: Row) -> None:
        """Save a finished row on disk, along with those that other processes have added."""
        rows = [*self._read(), {"format": FORMAT, "version": self._version, **row}]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replaced(self.path) as file:
                file.write("".join(json.dumps(r) + "\n" for r in rows).encode())
        except OSError as error:
            raise StudyError(
                f"cannot write {self.path}: {error.strerror}; the {len(self.rows)} rows finished "
                "before are kept. Free some space or choose another --out, and run it again."
            ) from error
        self.rows = rows
