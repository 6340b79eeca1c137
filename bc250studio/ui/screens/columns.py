"""Which column is which, by hand: every column with an example, and a choice for each of our names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content

from bc250studio.errors import clean
from bc250studio.ui.screens.base import Dialog
from bc250studio.ui.widgets.choice import Choice
from bc250studio.ui.widgets.line import Line

SLOTS = ("prompt", "completion", "system", "messages", "text", "tools")
FORMATS = ("auto", "messages", "sharegpt", "alpaca", "prompt_completion", "question_answer", "text", "preference")
NOT_SAID = ""


class Columns(Dialog[dict[str, Any]]):
    """Values for the keys of [data] that were changed; None when left.

    ``columns``: name -> example. ``found``: our name -> the file's, as recognised. ``data``: the [data] of the draft.
    """

    BINDINGS = [Binding("f9,f4", "accept", "Accept", id="columns.accept", tooltip="Take these choices")]
    DEFAULT_CSS = """
    Columns > Vertical { width: 76; }
    Columns #examples { height: auto; max-height: 7; border-bottom: solid $panel; }
    Columns #examples Line { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    Columns .field { height: 1; }
    Columns .field Line { width: 22; }
    Columns .field Choice { width: 1fr; }
    """

    def __init__(self, columns: Mapping[str, str], found: Mapping[str, str], data: Any) -> None:
        super().__init__()
        self.columns, self.found, self.data = columns, found, data

    def compose(self) -> ComposeResult:
        """Examples above, choices below."""
        names = list(self.columns)
        with Vertical():
            yield Line("Which column is which", classes="title")
            with VerticalScroll(id="examples", can_focus=False):
                width = min(24, max((len(name) for name in names), default=0))
                for name, example in self.columns.items():
                    yield Line(
                        Content.assemble((f"{clean(name, 24):<{width}}  ", "bold"), (example or "(empty)", "dim"))
                    )
                if not names:
                    yield Line("The rows have no columns.")
            yield self._field("format", Choice(FORMATS, self.data.format, id="format"))
            for slot in SLOTS:
                by_itself = f"as recognised: {clean(self.found[slot], 30)}" if slot in self.found else "not used"
                words = [by_itself, *[clean(name, 40) for name in names]]
                given = self.data.columns.get(slot, NOT_SAID)
                values = [NOT_SAID, *names]
                if given not in values:
                    values, words = [*values, given], [*words, clean(given, 40)]
                yield self._field(slot, Choice(values, given, words, id=f"slot-{slot}"))
            chosen = "true" if self.data.use_chosen else "false"
            yield self._field("use chosen answers", Choice(("false", "true"), chosen, ("no", "yes"), id="use_chosen"))
            yield Line("\n◂ ▸ change, ↑ ↓ move, F9 accepts, esc leaves all as it was")

    def _field(self, name: str, choice: Choice) -> Horizontal:
        return Horizontal(Line(name), choice, classes="field")

    def on_mount(self) -> None:
        """The first choice."""
        self.query_one("#format", Choice).focus()

    def action_accept(self) -> None:
        """The choices as values of the profile."""
        columns = {k: v for k, v in self.data.columns.items() if k not in SLOTS}
        for slot in SLOTS:
            value = self.query_one(f"#slot-{slot}", Choice).value
            if value != NOT_SAID:
                columns[slot] = value
        self.dismiss(
            {
                "data.format": self.query_one("#format", Choice).value,
                "data.columns": columns,
                "data.use_chosen": self.query_one("#use_chosen", Choice).value == "true",
            }
        )
