"""Rows as the model sees them, one at a time; what is learnt stands between brackets, in colour where there is any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content

from bc250studio.errors import clean
from bc250studio.ui.numbers import number
from bc250studio.ui.widgets.line import Line


class Preview(VerticalScroll, can_focus=True):
    """``put`` takes what ``data preview --json`` says; left and right turn the rows."""

    DEFAULT_CSS = """
    Preview { padding: 0 1; }
    Preview Line { height: auto; }
    """
    BINDINGS = [
        Binding("right,n", "turn(1)", "Next row", show=False, id="preview.next", tooltip="The next row"),
        Binding("left,p", "turn(-1)", "Row before", show=False, id="preview.before", tooltip="The row before"),
    ]

    def __init__(self, ascii_only: bool = False, id: str | None = None) -> None:
        super().__init__(id=id)
        self.marks = ("[[", "]]") if ascii_only else ("⟦", "⟧")
        self.rows: list[Mapping[str, Any]] = []
        self.place = 0
        self._title, self._text = Line(id="preview-title"), Line(id="preview-text")

    def compose(self):  # type: ignore[no-untyped-def]
        """Title, row."""
        yield self._title
        yield self._text

    def wait(self) -> None:
        """While rows are being rendered."""
        self.rows = []
        self._title.show("Rendering rows with the model's own template ...")
        self._text.show("")

    def put(self, rows: Any) -> None:
        """Show the first of these rows."""
        self.rows = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
        self.place = 0
        self._write()

    def turn(self, direction: int) -> bool:
        """Another row, round and round; false when there is none."""
        if not self.rows:
            return False
        self.place = (self.place + direction) % len(self.rows)
        self.scroll_home(animate=False)
        self._write()
        return True

    def action_turn(self, direction: int) -> None:
        """For the keys."""
        self.turn(direction)

    def _write(self) -> None:
        if not self.rows:
            self._title.show("No row is left to learn from; F5 says why.")
            self._text.show("")
            return
        row = self.rows[self.place]
        self._title.show(title(row, self.place, len(self.rows)))
        self._text.show(row_text(row, self.marks))


def title(row: Mapping[str, Any], place: int, count: int) -> Content:
    """Which row, how long, how much of it is learnt."""
    cut = row.get("full_tokens") if row.get("verdict") == "cut" else None
    length = f"{number(row.get('tokens'))} tokens" + (f" (cut from {number(cut)})" if cut else "")
    return Content.assemble(
        (f"row {place + 1} of {count}", "bold"),
        f" · {clean(row.get('where') or '', 40)} · {length} · {number(row.get('labelled'))} learnt",
        ("   ◂ ▸ other rows", "dim"),
    )


def row_text(row: Mapping[str, Any], marks: tuple[str, str]) -> Content:
    """The row; marks around what is learnt, because colour may be missing."""
    parts: list[Any] = []
    segments = row.get("segments")
    for segment in segments if isinstance(segments, list) else []:
        if isinstance(segment, Mapping):
            text = clean(segment.get("text") or "", 20_000)
            learnt = bool(segment.get("learnt"))
            parts.append((f"{marks[0]}{text}{marks[1]}", "$success bold") if learnt else (text, "dim"))
    return Content.assemble(*parts) if parts else Content("(nothing to show)")
