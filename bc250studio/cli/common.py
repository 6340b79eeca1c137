"""What every command shares: data on stdout, narration and progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from bc250studio.errors import clean


def emit(data: Any, as_json: bool, text: str | None = None) -> None:
    """Print the result: JSON when asked for, else ``text``."""
    if as_json:
        print(json.dumps(data, indent=1, ensure_ascii=False, default=str))
    elif text:
        print(text)


def narrate(text: str) -> None:
    """One line for the person, on stderr."""
    print(clean(text), file=sys.stderr, flush=True)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Plain aligned columns, numbers to the right."""
    body = [[clean("" if cell is None else cell) for cell in row] for row in rows]
    widths = [max([len(head[i]), *(len(row[i]) for row in body)]) for i in range(len(head))]
    numeric = [
        bool(body) and all(row[i].replace(".", "").replace("-", "").replace("%", "").strip().isdigit() for row in body)
        for i in range(len(head))
    ]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            c.rjust(w) if n else c.ljust(w) for c, w, n in zip(cells, widths, numeric, strict=True)
        ).rstrip()

    return "\n".join([line(list(head)), *map(line, body)])


def duration(seconds: float | None) -> str:
    """``1 h 04 m``, ``3 m 20 s``, ``12 s``."""
    if seconds is None or seconds != seconds or seconds == float("inf"):
        return "-"
    whole = max(0, int(seconds + 0.5))
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    if whole >= 60:
        return f"{whole // 60} m {whole % 60:02d} s"
    return f"{whole} s"


class Bar:
    """A progress line on stderr: redrawn in place on a terminal, a line now and then elsewhere. A ``Progress``."""

    def __init__(self, every_s: float = 10.0) -> None:
        self._terminal = sys.stderr.isatty()
        self._every_s = every_s
        self._last = 0.0
        self._began: dict[str, float] = {}
        self._width = 0
        self._text = ""

    def __call__(self, text: str, done: float | None = None, total: float | None = None) -> None:
        import time

        now = time.monotonic()
        began = self._began.setdefault(text, now)
        line = clean(text)
        if total:
            share = min(1.0, (done or 0) / total)
            filled = int(20 * share)
            eta = duration((now - began) * (1 - share) / share) if share > 0.01 else "-"
            line = f"{line} [{'#' * filled}{'.' * (20 - filled)}] {100 * share:3.0f} %  ETA {eta}"
        self.show(line, force=text != self._text)
        self._text = text

    def show(self, line: str, force: bool = False) -> None:
        """Draw ``line`` (on a terminal at most 5 a second, else every ten seconds or when forced)."""
        import shutil
        import time

        now = time.monotonic()
        if not force and now - self._last < (0.2 if self._terminal else self._every_s):
            return
        self._last = now
        if self._terminal:
            line = line[: shutil.get_terminal_size().columns - 1]
            print("\r" + line.ljust(self._width), end="", file=sys.stderr, flush=True)
            self._width = len(line)
        else:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Clear the line."""
        if self._terminal and self._width:
            print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)
            self._width = 0
