"""Text that is drawn again only when it changed."""

from __future__ import annotations

from typing import Any

from textual.widgets import Static


class Line(Static):
    """A Static without markup (foreign text stays text) that compares before it draws."""

    def __init__(self, text: Any = "", **options: Any) -> None:
        super().__init__(text, markup=False, **options)
        self._shown: Any = text
        self._spans: Any = None

    def show(self, text: Any) -> None:
        """Replace the text when it differs; accepts a string or Content."""
        spans = list(getattr(text, "spans", ()))
        if text != self._shown or spans != self._spans:  # Content compares its words only, not its styles
            self._shown, self._spans = text, spans
            self.update(text)
