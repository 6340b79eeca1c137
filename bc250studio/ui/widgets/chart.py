"""A small chart with its numbers' range at the left; draws only the cells that changed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from bc250studio.ui.numbers import number
from bc250studio.ui.widgets.braille import Cell, Frame, Limit, Trace, draw, x_frame, y_frame


class Chart(Widget):
    """Curves over a shared range. ``show`` replaces what is drawn; an empty chart shows ``empty``."""

    DEFAULT_CSS = """
    Chart { height: 1fr; min-height: 2; }
    Chart > .chart--main { color: $primary; }
    Chart > .chart--second { color: $secondary; }
    Chart > .chart--earlier { color: $text-disabled; }
    Chart > .chart--mark { color: $warning; text-style: bold; }
    Chart > .chart--cursor { color: $text; text-style: bold; }
    Chart > .chart--limit { color: $error; }
    Chart > .chart--axis { color: $text-muted; }
    """
    COMPONENT_CLASSES = {f"chart--{role}" for role in ("main", "second", "earlier", "mark", "cursor", "limit", "axis")}

    def __init__(
        self, empty: str = "no values yet", axis: bool = False, ascii_only: bool = False, **options: str
    ) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.empty = empty
        self.axis = axis
        self.ascii_only = ascii_only
        self.frame: Frame | None = None
        self._traces: tuple[Trace, ...] = ()
        self._limits: tuple[Limit, ...] = ()
        self._total: float | None = None
        self._given: Frame | None = None
        self._spans: tuple[tuple[float, float], ...] = ()
        self._x_text = lambda x: number(x)
        self._cells: list[list[Cell]] = []

    def show(
        self,
        traces: Sequence[Trace],
        limits: Sequence[Limit] = (),
        total: float | None = None,
        frame: Frame | None = None,
        empty: str | None = None,
        spans: Sequence[tuple[float, float]] = (),
    ) -> None:
        """Draw these curves; ``total`` is where the x axis ends at most, ``frame`` fixes the part shown."""
        shown = (tuple(traces), tuple(limits), total, frame, empty or self.empty, tuple(spans))
        if shown == (self._traces, self._limits, self._total, self._given, self.empty, self._spans):
            return
        self._traces, self._limits, self._total, self._given, self.empty, self._spans = shown
        self._redraw()

    def on_resize(self) -> None:
        """The cells depend on the size."""
        self._redraw()

    def _redraw(self) -> None:
        width, height = self.size
        before, self._cells = self._cells, self._layout(width, height)
        if len(before) != height or (before and len(before[0]) != width):
            self.refresh()
            return
        regions = [
            Region(first, row, last - first + 1, 1)
            for row, (old, new) in enumerate(zip(before, self._cells, strict=True))
            if old != new
            for first, last in [_changed(old, new)]
        ]
        if regions:
            self.refresh(*regions)

    def _layout(self, width: int, height: int) -> list[list[Cell]]:
        if width < 1 or height < 1:
            return []
        if not any(trace.curve for trace in self._traces):
            self.frame = None
            return _message(self.empty, width, height)
        if self._given is not None:
            self.frame = self._given
        else:
            self.frame = Frame(*x_frame(self._traces, self._total), *y_frame(self._traces, self._limits))
        top, bottom = number(self.frame.y1), number(self.frame.y0)
        gutter = max(len(top), len(bottom)) + 1
        rows = height - 1 if self.axis and height > 3 else height
        cells = draw(self._traces, self._limits, self.frame, max(1, width - gutter), rows, self.ascii_only, self._spans)
        labels = [top if row == 0 else bottom if row == rows - 1 else "" for row in range(rows)]
        lines = [_text(label.rjust(gutter - 1) + " ") + row for label, row in zip(labels, cells, strict=True)]
        if rows < height:
            left, right = self.x_text(self.frame.x0), self.x_text(self.frame.x1)
            lines.append(_text(" " * gutter + left + right.rjust(max(0, width - gutter - len(left)))))
        return [(line + _text(" " * width))[:width] for line in lines]

    def x_text(self, x: float) -> str:
        """How the ends of the x axis are written; screens that show time replace it."""
        return self._x_text(x)

    def render_line(self, y: int) -> Strip:
        """One row of cells as a strip."""
        if y >= len(self._cells):
            return Strip.blank(self.size.width, self.rich_style)
        segments: list[Segment] = []
        run, role = "", ""
        for mark, kind in [*self._cells[y], ("", "\0")]:
            if kind != role:
                if run:
                    segments.append(Segment(run, self._style(role)))
                run, role = "", kind
            run += mark
        return Strip(segments, self.size.width)

    def _style(self, role: str):  # type: ignore[no-untyped-def]
        return self.get_component_rich_style(f"chart--{role}")


def _changed(old: list[Cell], new: list[Cell]) -> tuple[int, int]:
    differing = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
    return differing[0], differing[-1]


def _text(text: str) -> list[Cell]:
    return [(mark, "axis") for mark in text]


def _message(text: str, width: int, height: int) -> list[list[Cell]]:
    import textwrap

    lines = textwrap.wrap(text, max(4, width - 2))[:height]
    first = max(0, (height - len(lines)) // 2)
    rows = [""] * first + lines + [""] * (height - first - len(lines))
    return [_text(line.center(width)[:width]) for line in rows[:height]]
