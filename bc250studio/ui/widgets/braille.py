"""Curves as braille cells: pure functions, no terminal, no framework.

A cell is 2 dots wide and 4 high, so an 80-column pane of 6 rows has 160 x 24 dots. Chosen over
textual-plot 0.10.1, whose three panes at 80x24 sent 22 kB/s at one update a second (our budget for the
whole screen is 10 kB/s): this one says which cells changed, and only those are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bc250studio.ui.series import Bucket, Curve

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


@dataclass(frozen=True)
class Trace:
    """One curve to draw. ``role`` names its style: main, second, earlier; ``points`` draws marks only."""

    curve: Curve
    role: str = "main"
    points: bool = False


@dataclass(frozen=True)
class Limit:
    """A horizontal line with a meaning, such as the temperature at which the board throttles."""

    y: float
    name: str


@dataclass(frozen=True)
class Frame:
    """What part of the plane is shown."""

    x0: float
    x1: float
    y0: float
    y1: float


Cell = tuple[str, str]


def y_frame(traces: Sequence[Trace], limits: Sequence[Limit] = ()) -> tuple[float, float]:
    """A value range with round ends, so that it stands still while the values wander inside it."""
    buckets = [bucket for trace in traces for bucket in trace.curve]
    lows = [b.low for b in buckets]
    highs = [b.high for b in buckets]
    if not buckets:
        return 0.0, 1.0
    low, high = min(lows), max(highs)
    # A limit far above the values would flatten the curve; it is drawn when it is in sight.
    span = max(high - low, abs(high) * 0.02, 1e-9)
    for limit in limits:
        if low - 1.5 * span <= limit.y <= high + 1.5 * span:
            low, high = min(low, limit.y), max(high, limit.y)
    step = _round_step(max(high - low, span) / 4)
    return math.floor(low / step) * step, math.ceil(high / step + 1e-9) * step


def x_frame(traces: Sequence[Trace], total: float | None = None) -> tuple[float, float]:
    """From 0 to the next rung of a ladder (never beyond ``total``): the axis jumps seldom, not every step."""
    last = max((trace.curve[-1].x1 for trace in traces if trace.curve), default=0.0)
    first = min((trace.curve[0].x0 for trace in traces if trace.curve), default=0.0)
    rung: float = 10.0
    while rung < last:
        rung = math.ceil(rung * 1.25)
    if total is not None and total >= last:
        rung = min(rung, total)
    return min(first, 0.0), max(rung, last, 1.0)


def _round_step(raw: float) -> float:
    power = 10.0 ** math.floor(math.log10(raw))
    for factor in (1, 2, 5):
        if factor * power >= raw:
            return factor * power
    return 10 * power


def draw(
    traces: Sequence[Trace],
    limits: Sequence[Limit],
    frame: Frame,
    width: int,
    height: int,
    ascii_only: bool = False,
    spans: Sequence[tuple[float, float]] = (),
) -> list[list[Cell]]:
    """``height`` rows of ``width`` cells (character, role). Later traces lie on top; ``spans`` mark the last row."""
    cells: list[list[Cell]] = [[(" ", "main")] * width for _ in range(height)]
    if width < 1 or height < 1:
        return cells
    names: dict[int, str] = {}
    for limit in limits:
        if frame.y0 <= limit.y <= frame.y1:
            row = _dot(limit.y, frame.y0, frame.y1, height * 4) // 4
            line = ("-" if ascii_only else "┄") * width
            names[row] = f"{names[row]}, {limit.name}" if row in names else limit.name
            label = f" {names[row]} "
            if len(label) < width // 2:
                line = line[: width - len(label) - 1] + label + line[-1:]
            cells[row] = [(mark, "limit") for mark in line]
    for begin, end in spans:
        if begin <= frame.x1 and end >= frame.x0:
            for column in range(_column(begin, frame, width), _column(end, frame, width) + 1):
                cells[-1][column] = ("=" if ascii_only else "▄", "limit")
    for trace in traces:
        if trace.points:
            _draw_points(cells, trace, frame, width, height, ascii_only)
        else:
            _draw_line(cells, trace, frame, width, height, ascii_only)
    return cells


def _draw_line(cells: list[list[Cell]], trace: Trace, frame: Frame, width: int, height: int, ascii_only: bool) -> None:
    bits = [[0] * width for _ in range(height)]
    rows = height * 4
    before: tuple[int, int] | None = None
    for left, right, low, high, first, last in _by_column(trace.curve, frame, width * 2):
        top, bottom = _dot(high, frame.y0, frame.y1, rows), _dot(low, frame.y0, frame.y1, rows)
        if before is not None:
            _segment(bits, *before, left, _dot(first, frame.y0, frame.y1, rows))
        for column in range(left, right + 1):
            _vertical(bits, column, top, bottom)
        before = (right, _dot(last, frame.y0, frame.y1, rows))
    for row in range(height):
        for column in range(width):
            if bits[row][column]:
                mark = "*" if ascii_only else chr(0x2800 + bits[row][column])
                cells[row][column] = (mark, trace.role)


def _by_column(curve: Curve, frame: Frame, columns: int) -> list[list[Any]]:
    """Buckets that fall on one column of dots as one: columns, lowest, highest, first and last mean.

    A curve has more buckets than a pane has columns, and drawing is what a tick costs: this is its inner loop.
    """
    x0, x1, last_column = frame.x0, frame.x1, columns - 1
    scale = last_column / max(x1 - x0, 1e-12)
    found: list[list[Any]] = []
    end = -1
    for begins, ends, low, high, mean, _ in curve:
        if ends < x0 or begins > x1:
            continue
        left = min(last_column, max(0, int((begins - x0) * scale + 0.5)))
        right = left if ends == begins else min(last_column, max(0, int((ends - x0) * scale + 0.5)))
        if left == end:
            now = found[-1]
            now[2], now[3], now[5] = min(now[2], low), max(now[3], high), mean
            now[1] = end = right
        else:
            found.append([left, right, low, high, mean, mean])
            end = right
    return found


def _draw_points(
    cells: list[list[Cell]], trace: Trace, frame: Frame, width: int, height: int, ascii_only: bool
) -> None:
    for bucket in trace.curve:
        if frame.x0 <= bucket.x0 <= frame.x1 and frame.y0 <= bucket.mean <= frame.y1:
            row = _dot(bucket.mean, frame.y0, frame.y1, height * 4) // 4
            mark = ("|" if ascii_only else "│") if trace.role == "cursor" else ("o" if ascii_only else "●")
            cells[row][_column(bucket.x0, frame, width)] = (mark, trace.role)


def _column(x: float, frame: Frame, columns: int) -> int:
    share = (x - frame.x0) / max(frame.x1 - frame.x0, 1e-12)
    return min(columns - 1, max(0, int(share * (columns - 1) + 0.5)))


def _dot(y: float, y0: float, y1: float, rows: int) -> int:
    share = (y - y0) / max(y1 - y0, 1e-12)
    return min(rows - 1, max(0, int((1 - share) * (rows - 1) + 0.5)))


def _vertical(bits: list[list[int]], column: int, top: int, bottom: int) -> None:
    for row in range(top, bottom + 1):
        bits[row // 4][column // 2] |= _DOTS[row % 4][column % 2]


def _segment(bits: list[list[int]], x0: int, y0: int, x1: int, y1: int) -> None:
    steps = max(abs(x1 - x0), abs(y1 - y0), 1)
    for i in range(steps + 1):
        x, y = x0 + (x1 - x0) * i // steps, y0 + (y1 - y0) * i // steps
        bits[y // 4][x // 2] |= _DOTS[y % 4][x % 2]


def points(pairs: Sequence[tuple[float, float]]) -> Curve:
    """Pairs as a curve of single points."""
    return tuple(Bucket(x, x, y, y, y, 1) for x, y in pairs)
