"""A question before something that cannot be undone, and questions for one line or several lines of text."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Input, TextArea

from bc250studio.ui.screens.base import Dialog
from bc250studio.ui.widgets.line import Line


class Confirm(Dialog[bool]):
    """True when the user presses y."""

    BINDINGS = [
        Binding("y", "answer(True)", "Yes", id="confirm.yes"),
        Binding("n,q,escape", "answer(False)", "No", id="confirm.no"),
    ]

    def __init__(self, question: str, details: str = "", yes: str = "Yes", no: str = "No") -> None:
        super().__init__()
        self.question, self.details, self.yes, self.no = question, details, yes, no

    def compose(self) -> ComposeResult:
        """Question, consequences, keys."""
        with Vertical():
            yield Line(self.question, classes="title")
            if self.details:
                yield Line(self.details)
            yield Line(f"\ny  {self.yes}        n  {self.no}")

    def action_answer(self, answer: bool) -> None:
        """Close with the answer."""
        self.dismiss(answer)


class _Ask(Dialog[str]):
    """A question that is answered in text; None when left."""

    hint = ""

    def __init__(self, question: str, value: str = "", details: str = "") -> None:
        super().__init__()
        self.question, self.value, self.details = question, value, details

    def field(self) -> Widget:
        """Where the answer is typed."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        """Question, field and how it is left."""
        with Vertical():
            yield Line(self.question, classes="title")
            if self.details:
                yield Line(self.details)
            yield self.field()
            yield Line(self.hint)


class AskText(_Ask):
    """One line of text; None when left."""

    hint = "enter accepts, esc leaves"

    def field(self) -> Widget:
        """A line."""
        return Input(self.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close with the text."""
        self.dismiss(event.value)


class AskLong(_Ask):
    """Several lines of text, enter begins a new one; None when left."""

    BINDINGS = [Binding("f9,ctrl+s", "accept", "Accept", id="text.accept", tooltip="Take this text")]
    DEFAULT_CSS = """
    AskLong TextArea { height: 10; border: none; padding: 0 1; background: $boost; }
    """
    hint = "F9 accepts, enter begins a new line, esc leaves"

    def field(self) -> Widget:
        """Several lines."""
        return TextArea(self.value, soft_wrap=True, compact=True, tab_behavior="focus")

    def on_mount(self) -> None:
        """All of it is marked: typing replaces it, an arrow key keeps it."""
        area = self.query_one(TextArea)
        area.focus()
        area.select_all()

    def action_accept(self) -> None:
        """Close with the text."""
        self.dismiss(self.query_one(TextArea).text)
