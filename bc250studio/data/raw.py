"""One row as it stands in a file, before anybody asks what it means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAX_ROW_BYTES = 64 * 1024 * 1024
"""A single row larger than this is not read."""


@dataclass(slots=True)
class Raw:
    """``value`` is a dict (columns), a list (of messages) or a text; ``problem`` says why it could not be read.

    ``number`` counts from 1 and is the line in line-based files (``unit = "line"``), else the row.
    """

    number: int
    value: Any
    problem: str | None = None
    unit: str = "row"
    file: str = ""

    @property
    def where(self) -> str:
        """`line 12`, or `part-2.csv line 12` when there are several files."""
        return f"{self.file} {self.unit} {self.number}" if self.file else f"{self.unit} {self.number}"
