"""A question with a few answers, the default first: arrow keys and enter, or the answer's number."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from bc250studio.ui.screens.base import Dialog
from bc250studio.ui.widgets.line import Line


class Choose(Dialog[str]):
    """The key of the chosen answer; None when left. ``answers`` are (key, words)."""

    DEFAULT_CSS = """
    Choose OptionList { height: auto; max-height: 12; border: none; background: transparent; margin: 1 0; }
    """

    def __init__(self, question: str, answers: Sequence[tuple[str, str]], details: str = "") -> None:
        super().__init__()
        self.question, self.answers, self.details = question, answers, details

    def compose(self) -> ComposeResult:
        """Question, answers, keys."""
        with Vertical():
            yield Line(self.question, classes="title")
            if self.details:
                yield Line(self.details)
            yield OptionList(
                *[Option(Content(f"{i + 1}  {words}"), id=key) for i, (key, words) in enumerate(self.answers)],
                markup=False,
            )
            yield Line("enter takes the marked one, a number takes that one, esc leaves it open")

    def on_mount(self) -> None:
        """The default is marked."""
        self.query_one(OptionList).highlighted = 0

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Close with it."""
        self.dismiss(event.option.id)

    def on_key(self, event: events.Key) -> None:
        """1 is the first answer."""
        if event.key.isdigit() and 1 <= int(event.key) <= len(self.answers):
            event.stop()
            self.dismiss(self.answers[int(event.key) - 1][0])
