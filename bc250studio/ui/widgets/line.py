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
        """Replace the text when it differs; accepts a string or Content.

        The screen is laid out anew only when the text needs another number of lines: a layout costs more than
        everything else that a tick draws.
        """
        spans = list(getattr(text, "spans", ()))
        if text != self._shown or spans != self._spans:  # Content compares its words only, not its styles
            self._shown, self._spans = text, spans
            self.update(text, layout=False)
            if self.size.width and self.styles.is_auto_height and self._lines() != self.size.height:
                self.refresh(layout=True)

    def _lines(self) -> int:
        return self.get_content_height(self.container_size, self.app.size, self.size.width)

    @property
    def plain(self) -> str:
        """The text without its styles."""
        return str(self._shown)
