"""New whole lines of a growing JSON-lines file, in blocks that fit beside a training, sampled where there are too many.

The guard writes 1.3 kB a second: a day of it is 110 MB, which nobody draws 360 points from. ``metrics.jsonl`` is a line
a step and always read whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pydantic_core import from_json

BLOCK = 8 * 2**20
SAMPLES = 720
WINDOW = 16 * 1024
"""Bytes read for one sample; holds several lines of every file we write."""


class Lines:
    """``sample``: take evenly spread lines instead of all where more than 8 MiB are new; ``sampled`` says so."""

    def __init__(self, path: Path, sample: bool = False) -> None:
        self.path = path
        self.sampled = False
        self.fresh = False
        """Whether the file of the last read was another one than before, so that old records are void."""
        self._sample = sample
        self._offset = 0
        self._inode = -1

    def read(self) -> list[dict[str, Any]]:
        """All new records at once; for files that stay small."""
        return [record for block in self.blocks() for record in block]

    def blocks(self) -> Iterator[list[dict[str, Any]]]:
        """New records, a block of the file at a time; an unreadable file has none."""
        self.fresh = False
        if not self.path.is_file():  # opening somebody's FIFO would wait for ever
            return
        try:
            with self.path.open("rb") as file:
                stat = os.fstat(file.fileno())
                if stat.st_ino != self._inode or stat.st_size < self._offset:
                    self.fresh = self._inode != -1
                    self._inode, self._offset, self.sampled = stat.st_ino, 0, False
                if self.fresh:
                    yield []
                if self._sample and stat.st_size - self._offset > BLOCK:
                    yield self._samples(file, stat.st_size)
                while self._offset < stat.st_size:
                    file.seek(self._offset)
                    block = file.read(BLOCK)
                    end = block.rfind(b"\n") + 1
                    if not end and len(block) < BLOCK:
                        break  # a line that is still being written
                    self._offset += end or len(block)
                    yield _records(block[:end])
        except OSError:
            return

    def _samples(self, file: BinaryIO, size: int) -> list[dict[str, Any]]:
        """Evenly spread whole lines up to the last window, which is then read as usual."""
        self.sampled = True
        found = []
        first, last = self._offset, size - WINDOW
        for i in range(SAMPLES):
            file.seek(first + (last - first) * i // SAMPLES)
            window = file.read(WINDOW).split(b"\n", 2)
            if len(window) == 3 and (record := _record(window[1])) is not None:
                found.append(record)
        file.seek(last)
        self._offset = last + file.read(WINDOW).find(b"\n") + 1
        return found


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
