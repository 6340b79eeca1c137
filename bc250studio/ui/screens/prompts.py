"""Pick a question: the profile's own, its prompts file's, and those of the rows that were kept away from training."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import DataTable

from bc250studio.errors import StudioError, clean
from bc250studio.jobs import JobFolder
from bc250studio.ui.background import twin
from bc250studio.ui.screens.base import Dialog
from bc250studio.ui.widgets.line import Line
from bc250studio.ui.widgets.rows import Rows


class Prompts(Dialog[str]):
    """The chosen question; None when left. The profile's own stand there at once, the others when they are read."""

    DEFAULT_CSS = """
    Prompts > Vertical { width: 96; }
    Prompts Rows { height: auto; max-height: 14; }
    """

    def __init__(self, job: JobFolder, own: Sequence[str]) -> None:
        super().__init__()
        self.job = job
        self.questions = [(text, "profile") for text in own]

    def compose(self) -> ComposeResult:
        """The list."""
        with Vertical():
            yield Line("Questions", classes="title")
            yield Rows("question", "from", elastic=("question",), id="questions")
            yield Line("reading the held-out rows ...", id="said")

    def on_mount(self) -> None:
        """Own questions now, the rest by the command-line twin: it may have to read a large dataset."""
        self._show()
        self.query_one(Rows).focus()
        self.run_worker(self._look(), exclusive=True, exit_on_error=False)

    def on_resize(self) -> None:
        """Wider terminals show longer questions."""
        self._show()

    async def _look(self) -> None:
        said = "enter takes the one under the cursor, esc leaves"
        try:
            found = (await twin("ask", str(self.job.path), "--list"))["questions"]
            self.questions = [(str(question["text"]), str(question["from"])) for question in found]
            self._show()
        except StudioError as error:
            said = f"The held-out rows cannot be read: {clean(error, 160)}\n{said}"
        self.query_one("#said", Line).show(said)

    def _show(self) -> None:
        rows = [
            (str(i), (" ".join(clean(text, 200).split()), clean(origin, 14)))
            for i, (text, origin) in enumerate(self.questions)
        ]
        self.query_one(Rows).show(rows)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Close with it."""
        chosen = self.query_one(Rows).chosen
        if chosen is not None:
            self.dismiss(self.questions[int(chosen)][0])
