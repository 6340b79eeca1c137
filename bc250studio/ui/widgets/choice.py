"""One of a few words, changed with the left and right arrow or the space bar; takes one line."""

from __future__ import annotations

from collections.abc import Sequence

from textual.binding import Binding
from textual.message import Message
from textual.widgets import Static


class Choice(Static, can_focus=True):
    """``value`` is the chosen word; ``words`` are shown for it where they differ."""

    DEFAULT_CSS = """
    Choice { height: 1; padding: 0 1; background: $surface; text-wrap: nowrap; text-overflow: ellipsis; }
    Choice:focus { background: $boost; text-style: bold; }
    """
    BINDINGS = [
        Binding("right,space", "turn(1)", "Next word", show=False, id="choice.next"),
        Binding("left", "turn(-1)", "Word before", show=False, id="choice.before"),
        Binding("enter,down", "leave(1)", "On", show=False, id="choice.on"),
        Binding("up", "leave(-1)", "Field before", show=False, id="choice.up"),
    ]

    class Changed(Message):
        """Another word was chosen."""

        def __init__(self, choice: Choice) -> None:
            super().__init__()
            self.choice = choice

        @property
        def control(self) -> Choice:
            """The widget, for handlers."""
            return self.choice

    def __init__(
        self, values: Sequence[str], value: str, words: Sequence[str] = (), id: str | None = None, classes: str = ""
    ) -> None:
        super().__init__("", id=id, classes=classes, markup=False)
        self.values = list(values) if value in values else [value, *values]
        self.words = dict(zip(values, words, strict=True)) if words else {}
        self.value = value

    def on_mount(self) -> None:
        """The first word."""
        self._write()

    def _write(self) -> None:
        word = self.words.get(self.value, self.value) or "-"
        self.update(f"◂ {word} ▸" if len(self.values) > 1 else word)

    def put(self, value: str) -> None:
        """Choose a word without telling anybody."""
        self.value = value
        self._write()

    def action_turn(self, direction: int) -> None:
        """The next or the word before, round and round."""
        self.value = self.values[(self.values.index(self.value) + direction) % len(self.values)]
        self._write()
        self.post_message(self.Changed(self))

    def action_leave(self, direction: int) -> None:
        """To the field after or before."""
        (self.screen.focus_next if direction > 0 else self.screen.focus_previous)()
