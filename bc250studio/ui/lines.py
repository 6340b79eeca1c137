"""New whole lines of a growing JSON-lines file, for whoever follows a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic_core import from_json


class Lines:
    """New whole lines of a growing file. Parses with pydantic's JSON reader: 100,000 steps in well under 1 s."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._inode = -1

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """New records, and whether the file began anew (replaced or cut) so that old ones are void."""
        fresh = False
        try:
            with self.path.open("rb") as file:
                stat = os.fstat(file.fileno())
                if stat.st_ino != self._inode or stat.st_size < self._offset:
                    fresh = self._inode != -1
                    self._inode, self._offset = stat.st_ino, 0
                if stat.st_size == self._offset:
                    return [], fresh
                file.seek(self._offset)
                block = file.read()
        except OSError:
            return [], False
        end = block.rfind(b"\n") + 1
        self._offset += end
        return _records(block[:end]), fresh


def _records(block: bytes) -> list[dict[str, Any]]:
    """All lines at once when all are sound, else line by line."""
    try:
        records = from_json(b"[" + block.strip().replace(b"\n", b",") + b"]")
    except ValueError:
        records = map(_record, block.splitlines())
    return [record for record in records if isinstance(record, dict)]


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = from_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
