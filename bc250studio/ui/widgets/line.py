"""Text that is drawn again only when it changed."""

from __future__ import annotations

from typing import Any

from textual.widgets import Static


class Line(Static):
    """A Static without markup (foreign text stays text) that compares before it draws."""

    def __init__(self, text: Any = "", **options: Any) -> None:
        super().__init__(text, markup=False, **options)
        self._shown: Any = text

    def show(self, text: Any) -> None:
        """Replace the text when it differs; accepts a string or Content."""
        if text != self._shown:
            self._shown = text
            self.update(text)
