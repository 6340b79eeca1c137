"""How the chat asks: system message, thinking switch, sampling. Holds from the next message on, for both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Input

from bc250studio.errors import BadInput, clean
from bc250studio.ui.draft import shown
from bc250studio.ui.screens.base import Dialog
from bc250studio.ui.widgets.choice import Choice
from bc250studio.ui.widgets.line import Line

if TYPE_CHECKING:
    from bc250studio.serve.chat import Chat

SWITCH = {"as trained": None, "on": True, "off": False}
HINTS = {
    "temperature": "0 is greedy: always the likeliest token",
    "top_p": "empty: the server's default",
    "seed": "the same seed, the same answer",
    "max_tokens": "longest answer",
}


class ChatSettings(Dialog[bool]):
    """True when they were changed. ``as_trained`` is what the thinking switch was in training."""

    BINDINGS = [Binding("f6,f4", "accept", "Accept", id="chat.settings.accept", tooltip="Take these values")]
    DEFAULT_CSS = """
    ChatSettings > Vertical { width: 76; }
    ChatSettings .field { height: 1; }
    ChatSettings .field .name { width: 17; }
    ChatSettings .field .hint { width: auto; color: $text-muted; padding: 0 1; }
    ChatSettings Input { height: 1; border: none; padding: 0 1; width: 1fr; background: $boost; }
    ChatSettings .short { width: 12; }
    ChatSettings #said { height: auto; }
    """

    def __init__(self, chat: Chat, as_trained: bool | None) -> None:
        super().__init__()
        self.chat, self.as_trained = chat, as_trained

    def compose(self) -> ComposeResult:
        """One line a value."""
        from bc250studio.serve.chat import LOWEST

        words = {True: "on", False: "off", None: "the template's own"}[self.as_trained]
        value = "as trained" if self.chat.thinking == self.as_trained else "on" if self.chat.thinking else "off"
        numbers = {**{name: getattr(self.chat.sampling, name) for name in LOWEST}, "max_tokens": self.chat.max_tokens}
        with Vertical():
            yield Line("How the chat asks", classes="title")
            yield self._field("system message", Input(self.chat.system or "", id="system", compact=True))
            choice = Choice(list(SWITCH), value, [f"as trained ({words})", "on", "off"], id="thinking")
            yield self._field("thinking", choice)
            for name, number in numbers.items():
                entry = Input(shown(number), id=f"value-{name}", classes="short", compact=True)
                yield self._field(name.replace("_", " "), entry, HINTS.get(name, ""))
            yield Line(f"\nKept in {clean(self.chat.transcript, 200)}", classes="hint")
            yield Line("enter or F6 accepts, tab moves, esc leaves all as it was", id="said")

    @staticmethod
    def _field(name: str, entry: Widget, hint: str = "") -> Horizontal:
        return Horizontal(Line(name, classes="name"), entry, Line(hint, classes="hint"), classes="field")

    def on_mount(self) -> None:
        """The first value."""
        self.query_one("#system", Input).focus()

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Enter accepts."""
        self.action_accept()

    def action_accept(self) -> None:
        """Check all, then take all."""
        from bc250studio.serve.chat import LOWEST

        before = self.chat.sampling, self.chat.max_tokens
        for name in (*LOWEST, "max_tokens"):
            entry = self.query_one(f"#value-{name}", Input)
            try:
                self.chat.put(name, entry.value)
            except BadInput as error:
                self.chat.sampling, self.chat.max_tokens = before
                self.query_one("#said", Line).show(clean(error, 200))
                entry.focus()
                return
        self.chat.system = self.query_one("#system", Input).value.strip() or None
        chosen = self.query_one("#thinking", Choice).value
        self.chat.thinking = self.as_trained if chosen == "as trained" else SWITCH[chosen]
        self.dismiss(True)
