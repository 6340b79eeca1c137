"""Read .csv and .tsv as text: every cell is what the file says, never a number, a date or a missing value.

Delimiter from the header (comma, semicolon, tab, bar); BOM, CRLF, quoted newlines and Windows-1252 bytes are read;
a row whose cells do not match the header is reported with its line, not guessed at.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from typing import IO

from bc250studio.data.raw import MAX_ROW_BYTES, Raw
from bc250studio.errors import BadInput, clean

_DELIMITERS = ",;\t|"
_LONE_RETURN = re.compile(r"(?<=\r)(?=[^\n])")


def read_table(stream: IO[bytes], name: str, notes: list[str]) -> Iterator[Raw]:
    """Rows of a table with a header, as dicts of texts; ``notes`` gets a sentence on anything unusual.

    Raises:
        BadInput: no header.
    """
    csv.field_size_limit(MAX_ROW_BYTES)
    lines = _Lines(stream)
    header_line = next(lines, None)
    while header_line is not None and not header_line.strip():
        header_line = next(lines, None)
    if header_line is None:
        return
    delimiter = "\t" if name.lower().removesuffix(".gz").endswith(".tsv") else _delimiter(header_line)
    reader = csv.reader(_chain(header_line, lines), delimiter=delimiter)
    try:
        header = _unique([cell.strip() for cell in next(reader)], notes)
    except csv.Error as error:
        raise BadInput(f"The header of {name} cannot be read: {clean(error, 80)}.") from error
    begin = lines.number + 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            yield Raw(begin, None, f"broken CSV: {clean(error, 80)}", "line")
            begin = lines.number + 1
            continue
        number, begin = begin, lines.number + 1
        if not cells or (len(cells) == 1 and not cells[0].strip() and len(header) > 1):
            continue
        if len(cells) != len(header):
            yield Raw(number, None, f"broken CSV: {len(cells)} cells where the header has {len(header)}", "line")
            continue
        yield Raw(number, dict(zip(header, cells, strict=True)), None, "line")
    if lines.guessed:
        notes.append(f"{lines.guessed} lines are not UTF-8 and were read as Windows-1252 (first: line {lines.first}).")


def _delimiter(header: str) -> str:
    """The delimiter that splits the header into the most cells, quotes respected."""

    def cells(delimiter: str) -> int:
        try:
            return len(next(csv.reader([header], delimiter=delimiter), []))
        except csv.Error:
            return 0

    return max(_DELIMITERS, key=cells)


def _unique(header: list[str], notes: list[str]) -> list[str]:
    """Column names made unique; a repeated one is renamed `name (2)` so that nothing is silently lost."""
    seen: dict[str, int] = {}
    names = []
    for index, cell in enumerate(header, 1):
        name = cell or f"column {index}"
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    twice = [name for name, count in seen.items() if count > 1]
    if twice:
        notes.append(
            f"The header names {', '.join(clean(n, 40) for n in twice)} more than once; the first one is used."
        )
    return names


def _chain(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


class _Lines:
    """Decoded lines with their numbers; UTF-8, else Windows-1252 (Latin-1 for the bytes that has no letter for).

    A carriage return alone ends a line too, as in files of old Macs.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.number, self.guessed, self.first = stream, 0, 0, 0
        self.waiting: list[str] = []

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        if not self.waiting:
            line = self.stream.readline(MAX_ROW_BYTES)
            if not line:
                raise StopIteration
            self.waiting = _LONE_RETURN.split(self._decoded(line))[::-1]
        self.number += 1
        return self.waiting.pop()

    def _decoded(self, line: bytes) -> str:
        if self.number == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError:
            self.guessed += 1
            self.first = self.first or self.number + 1
        try:
            return line.decode("cp1252")
        except UnicodeDecodeError:
            return line.decode("latin-1")
