"""Read .jsonl (an object per line) and .json (a list, or objects one after the other) in flat memory.

A broken line costs one row. A broken element of a list costs that element: reading goes on at the next `{` that
follows a `},`, so one bad comma does not hide the rest of the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import IO, Any

from bc250studio.data.raw import MAX_ROW_BYTES, Raw
from bc250studio.errors import clean

_CHUNK = 1 << 20
_SPACE = re.compile(r"[\s\ufeff]*")
_NEXT_OBJECT = re.compile(r"\}\s*,?\s*(?=\{)")
_UNDECODED = re.compile("[\udc80-\udcff]")
_DECODER = json.JSONDecoder()


def read_lines(stream: IO[bytes]) -> Iterator[Raw]:
    """Each non-blank line is one row."""
    number = 0
    for line in _limited_lines(stream):
        number += 1
        if line is None:
            yield Raw(number, None, f"longer than {MAX_ROW_BYTES >> 20} MiB", "line")
            continue
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line.strip():
            continue
        yield _line(line, number)


def _line(line: bytes, number: int) -> Raw:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return Raw(number, None, f"not UTF-8 text (byte {error.start + 1})", "line")
    try:
        return Raw(number, json.loads(text), None, "line")
    except (json.JSONDecodeError, RecursionError, ValueError) as error:
        return Raw(number, None, f"broken JSON: {_words(error)}", "line")


def _limited_lines(stream: IO[bytes]) -> Iterator[bytes | None]:
    """Lines of a stream; None stands for a line longer than the limit."""
    while line := stream.readline(MAX_ROW_BYTES):
        if len(line) >= MAX_ROW_BYTES and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = stream.readline(_CHUNK)
            yield None
        else:
            yield line


def _words(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return clean(f"{error.msg} at character {error.pos + 1}")
    return "nested too deeply" if isinstance(error, RecursionError) else clean(error, 80)


def read_document(stream: IO[bytes]) -> Iterator[Raw]:
    """A list of rows, or objects one after the other; one object that wraps a list of rows counts as that list."""
    source = _Buffer(stream)
    first = source.peek()
    if first == "[":
        source.skip(1)
        yield from _elements(source)
        return
    rows = _elements(source, closed=False)
    head = next(rows, None)
    if head is None:
        return
    second = next(rows, None)
    inner = _wrapped(head.value) if second is None else None
    if inner is not None:
        for number, value in enumerate(inner, 1):
            yield Raw(number, value)
        return
    yield head
    if second is not None:
        yield second
    yield from rows


def _wrapped(value: Any) -> list[Any] | None:
    """The list of rows inside `{"data": [...]}`, when that is what the object is."""
    if not isinstance(value, dict) or any(isinstance(value.get(k), str) for k in ("role", "content", "prompt", "text")):
        return None
    lists = [(k, v) for k, v in value.items() if isinstance(v, list) and v and all(isinstance(e, dict) for e in v)]
    conversation = {"messages", "conversations", "conversation", "dialog", "chat", "turns"}
    if len(lists) == 1 and lists[0][0].lower() not in conversation and len(value) <= 8:
        rows = lists[0][1]
        if all(set(e) >= {"row"} and isinstance(e["row"], dict) for e in rows):  # the hub's dataset viewer
            return [e["row"] for e in rows]
        return rows
    return None


def _elements(source: _Buffer, closed: bool = True) -> Iterator[Raw]:
    number = 0
    while True:
        head = source.peek()
        if head == "":
            if closed:
                yield Raw(number + 1, None, "broken JSON: the file ends before the list is closed")
            return
        if head == "," or (head == "]" and not closed):
            source.skip(1)
            continue
        if head == "]":
            return
        number += 1
        value, problem = source.value()
        yield Raw(number, value, problem)


class _Buffer:
    """A window over the decoded text of a stream that values are cut from."""

    def __init__(self, stream: IO[bytes]) -> None:
        import codecs

        self.stream, self.text, self.at, self.ended = stream, "", 0, False
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")

    def more(self, size: int | None = None) -> bool:
        """Read on; False at the end of the file. What was consumed is forgotten."""
        if self.ended:
            return False
        data = self.stream.read(size or _CHUNK)
        self.ended = not data
        added = self.decoder.decode(data, final=self.ended)
        self.text = self.text[self.at :] + added
        self.at = 0
        return bool(data)

    def peek(self) -> str:
        """The next character that is not space, empty at the end."""
        while True:
            match = _SPACE.match(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def skip(self, count: int) -> None:
        self.at += count

    def value(self) -> tuple[Any, str | None]:
        """The JSON value that begins here, or (None, problem) with the window behind the broken part."""
        size = _CHUNK
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text, self.at)
                # A bare number could go on in the next chunk; every other value knows its own end.
                if end < len(self.text) or self.ended or isinstance(value, (dict, list, str)):
                    broken = _UNDECODED.search(self.text, self.at, end)
                    self.at = end
                    return value, "not UTF-8 text" if broken else None
            except RecursionError:
                self.resume(self.at)
                return None, "broken JSON: nested too deeply"
            except json.JSONDecodeError as error:
                unfinished = error.pos >= len(self.text) - 12 or error.msg.startswith("Unterminated string")
                if not unfinished or self.ended or len(self.text) - self.at > MAX_ROW_BYTES:
                    too_long = unfinished and not self.ended
                    where = f"{error.msg} after {error.pos - self.at} characters of this row"
                    self.resume(max(error.pos, self.at) if not unfinished else self.at)
                    return (
                        None,
                        f"longer than {MAX_ROW_BYTES >> 20} MiB" if too_long else f"broken JSON: {clean(where)}",
                    )
            except ValueError as error:  # an integer with thousands of digits
                self.resume(self.at)
                return None, f"broken JSON: {clean(error, 80)}"
            self.more(size)
            size = min(size * 2, MAX_ROW_BYTES)

    def resume(self, position: int) -> None:
        """Go to the next object after ``position``, or to the end of the file."""
        start = position
        while True:
            match = _NEXT_OBJECT.search(self.text, max(start - 64, self.at))
            if match and match.end() > self.at:
                self.at = match.end()
                return
            tail = len(self.text) - self.at
            keep = min(tail, 256)
            self.at = len(self.text) - keep
            if not self.more():
                self.at = len(self.text)
                return
            start = 0
