"""All keys of the screen below, what they do, and why some cannot be used now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content

from bc250studio.ui.screens.base import Dialog
from bc250studio.ui.widgets.line import Line


class HelpScreen(Dialog[None]):
    """Closed by any of: escape, q, ?, enter."""

    DEFAULT_CSS = """
    HelpScreen > VerticalScroll { width: 76; max-width: 96%; height: auto; max-height: 90%; padding: 0 2;
        background: $surface; border: round $primary; }
    """
    BINDINGS = [Binding("q,question_mark,enter,escape", "leave", "Close", id="help.close")]

    def __init__(self, place: str, entries: Sequence[tuple[str, str, str]]) -> None:
        super().__init__()
        self.place = place
        self.entries = entries

    def compose(self) -> ComposeResult:
        """One line a key."""
        with VerticalScroll() as box:
            box.border_title = f"Keys: {self.place}"
            box.border_subtitle = "q closes"
            yield Line("Arrows, page up and down move; tab goes to the next part; enter opens.\n", classes="note")
            width = max((len(keys) for keys, _, _ in self.entries), default=0)
            seen = set()
            for keys, what, reason in self.entries:
                if (keys, what) in seen:
                    continue
                seen.add((keys, what))
                parts: list[Any] = [(keys.rjust(width), "bold"), "  ", (what, "dim" if reason else "")]
                if reason:
                    parts.append((f"  (not now: {reason})", "italic"))
                yield Line(Content.assemble(*parts))
