"""The lines a job writes and everybody else reads: append-only JSON, one object a line.

Writers append whole lines with one ``write`` call; readers keep a partial last line until it is
whole, so neither needs a lock. Files: ``metrics.jsonl`` (one object a step), ``board.jsonl`` (one a
second) and ``events.jsonl`` (past-tense facts).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCHEMA = 1


class Writer:
    """Appends JSON objects to one file, mode 0600. One writer per file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._heal()

    def _heal(self) -> None:
        """A line torn by a crash must not swallow the first new one."""
        size = os.fstat(self._descriptor).st_size
        if size:
            with self.path.open("rb") as file:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    os.write(self._descriptor, b"\n")

    def write(self, record: dict[str, Any]) -> None:
        """Append one record; ``t`` (Unix seconds) is added when absent. NaN and inf become null."""
        line = json.dumps({"t": round(time.time(), 3), **_finite(record)}, ensure_ascii=False)
        os.write(self._descriptor, line.encode("utf-8", "replace") + b"\n")

    def close(self) -> None:
        """Close the file; further writes fail."""
        os.close(self._descriptor)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


class Tail:
    """Reads what was appended since the last call. A missing file reads as empty; a torn line waits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._inode = -1

    def read(self) -> list[dict[str, Any]]:
        """New whole records, oldest first. Lines that are not JSON objects are skipped."""
        try:
            with self.path.open("rb") as file:
                stat = os.fstat(file.fileno())
                if stat.st_ino != self._inode or stat.st_size < self._offset:
                    self._inode, self._offset = stat.st_ino, 0
                file.seek(self._offset)
                block = file.read()
        except OSError:
            return []
        end = block.rfind(b"\n") + 1
        self._offset += end
        return list(_records(block[:end]))


def read_all(path: Path) -> list[dict[str, Any]]:
    """Every whole record of a file."""
    return Tail(path).read()


def _records(block: bytes) -> Iterator[dict[str, Any]]:
    for line in block.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record
