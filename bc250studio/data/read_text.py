"""Read .txt: paragraphs parted by blank lines are rows; a file without blank lines has a row a line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from bc250studio.data.raw import MAX_ROW_BYTES, Raw

_SNIFF = 1 << 20


def has_paragraphs(head: bytes) -> bool:
    """Are there blank lines between text in the first bytes of a file?"""
    return b"\n\n" in head.replace(b"\r\n", b"\n").strip()


def read_text(stream: IO[bytes], paragraphs: bool) -> Iterator[Raw]:
    """Rows as texts; bytes that are not UTF-8 make the row "not UTF-8 text"."""
    parts: list[bytes] = []
    number, begin, size = 0, 1, 0
    while line := stream.readline(MAX_ROW_BYTES):
        number += 1
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.strip() and paragraphs and size < MAX_ROW_BYTES:
            if not parts:
                begin = number
            parts.append(line)
            size += len(line)
        elif line.strip():
            yield _row(line, number)
        elif parts:
            yield _row(b"".join(parts), begin)
            parts, size = [], 0
    if parts:
        yield _row(b"".join(parts), begin)


def _row(data: bytes, number: int) -> Raw:
    if len(data) >= MAX_ROW_BYTES:
        return Raw(number, None, f"longer than {MAX_ROW_BYTES >> 20} MiB", "line")
    try:
        return Raw(number, data.decode("utf-8").replace("\r\n", "\n").rstrip("\n"), None, "line")
    except UnicodeDecodeError as error:
        return Raw(number, None, f"not UTF-8 text (byte {error.start + 1})", "line")
