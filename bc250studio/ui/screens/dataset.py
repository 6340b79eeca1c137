"""New fine-tune, second question: which data, and what is learnt from it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import DataTable, Input

from bc250studio.errors import StudioError, clean
from bc250studio.ui.background import in_thread, twin
from bc250studio.ui.dataset_look import is_remote, quick
from bc250studio.ui.dataset_look import known as _known
from bc250studio.ui.draft import Draft
from bc250studio.ui.local_models import present_folder
from bc250studio.ui.screens.dataset_ask import DatasetQuestions
from bc250studio.ui.screens.dataset_words import check_text, look_text
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets.files import Files
from bc250studio.ui.widgets.line import Line
from bc250studio.ui.widgets.preview import Preview
from bc250studio.ui.widgets.rows import Rows

VIEWS = ("known", "tree", "verdict", "preview")
SETTLE_S = 0.3


class DatasetScreen(DatasetQuestions):
    """Field, then one of: known datasets, file browser, every row's verdict, rows as the model sees them."""

    step = "dataset"
    narrow_footer = True
    BINDINGS = [
        Binding("f5", "check", "Check", id="dataset.check", tooltip="Verdict of every row"),
        Binding("f7", "browse", "Browse", id="dataset.browse", tooltip="File browser, or the list of known datasets"),
        Binding("f8", "preview", "Preview", id="dataset.preview", tooltip="Rows as the model sees them, with the mask"),
        Binding("f9", "columns", "Columns", id="dataset.columns", tooltip="Say by hand which column is which"),
        Binding("down", "list", "List", show=False, id="dataset.list", tooltip="From the field into what is below"),
    ]  # fmt: skip
    DEFAULT_CSS = """
    DatasetScreen #about { height: auto; max-height: 3; padding: 0 1; }
    DatasetScreen .view { display: none; height: 1fr; }
    DatasetScreen #verdict { padding: 0 1; }
    DatasetScreen #verdict Line { height: auto; }
    DatasetScreen.-known #known, DatasetScreen.-tree #tree { display: block; }
    DatasetScreen.-verdict #verdict, DatasetScreen.-preview #preview { display: block; }
    """

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self._settling: asyncio.Task[None] | None = None

    def body(self) -> Iterable[Widget]:
        """Field, what was found by a look, views."""
        yield Line(self.way(), id="way")
        yield Line("Dataset: a file, a folder, hub:owner/name, or assets:demo.jsonl", classes="note")
        yield Input(str(self.draft.value("data.path")), id="path", compact=True)
        yield Line(id="about")
        yield Rows(
            "dataset",
            "size",
            "where from",
            id="known",
            elastic=("where from", "dataset"),
            right=("size",),
            classes="view",
        )
        files = Files(id="tree")
        files.add_class("view")
        yield files
        with VerticalScroll(id="verdict", can_focus=True, classes="view"):
            yield Line("F5 checks every row: format, lengths, what is learnt, duplicates.", id="said-check")
        preview = Preview(self.studio.machine.ui.ascii, id="preview")
        preview.add_class("view")
        yield preview

    def on_mount(self) -> None:
        """The known datasets are gathered in a thread."""
        self._see("known")
        self.query_one("#path", Input).focus()
        self.run_worker(self._gather(), group="gather", exit_on_error=False)

    async def _gather(self) -> None:
        found = await in_thread(_known, self.studio.snapshot)
        if self.is_attached:
            self.query_one("#known", Rows).show([(path, (clean(path), size, where)) for path, size, where in found])

    def _see(self, view: str) -> None:
        for name in VIEWS:
            self.set_class(name == view, f"-{name}")

    @property
    def view(self) -> str:
        """The name of what is shown below the field."""
        return next(name for name in VIEWS if self.has_class(f"-{name}"))

    def take(self) -> None:
        """The typed path."""
        self.draft.put("data.path", self.query_one("#path", Input).value.strip() or "assets:demo.jsonl")

    # Choosing

    def on_input_changed(self, event: Input.Changed) -> None:
        """Look at what is typed, once the typing pauses."""
        if event.input.id == "path":
            if self._settling is not None:
                self._settling.cancel()
            self._settling = asyncio.create_task(self._look_soon())

    async def _look_soon(self) -> None:
        await asyncio.sleep(SETTLE_S)
        try:
            self.take()
            path = str(self.draft.value("data.path"))
            self._about("Fetched from the hub by the check (F5) or the run." if is_remote(path) else await self._look())
        except (StudioError, OSError) as error:
            self._about(error)

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Enter goes on."""
        self.action_next()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """The row under the cursor is the choice."""
        table = self.query_one("#known", Rows)
        if event.data_table is table and table.has_focus and table.chosen:
            self.query_one("#path", Input).value = table.chosen

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter takes the row and goes on."""
        if event.data_table.id == "known":
            self.action_next()

    def on_files_picked(self, event: Files.Picked) -> None:
        """A file of the browser: under the cursor it is looked at, enter takes it."""
        self.query_one("#path", Input).value = str(event.path)
        if event.final:
            self.query_one("#path", Input).focus()

    def on_files_moved(self, event: Files.Moved) -> None:
        """Say where the browser is."""
        self._about(event.said)

    def action_list(self) -> None:
        """From the field into what is below."""
        self.query_one(f"#{self.view}").focus()

    async def action_browse(self) -> None:
        """The browser, from the typed path's folder; again: the list of known datasets."""
        if self.view == "tree":
            self._see("known")
        else:
            if self._settling is not None:
                self._settling.cancel()  # what the browser says is newer than a look that has not answered yet
            self._see("tree")
            typed = Path(self.query_one("#path", Input).value.strip() or ".").expanduser()
            here = typed if typed.is_dir() else typed.parent
            start = here if typed.is_absolute() and here.is_dir() else present_folder()
            await self.query_one("#tree", Files).open(start, typed.name)
        self.action_list()

    # Check and preview

    def action_check(self) -> None:
        """In a child process: reading and tokenising may take a while."""
        self.run_worker(self._check(), group="check", exclusive=True, exit_on_error=False)

    async def _check(self) -> None:
        said = self.query_one("#said-check", Line)
        try:
            if not await self._ready():
                return
            self._see("verdict")
            said.show("Checking every row ...")
            said.show(check_text(await twin("data", "check", *self._what())))
            self.query_one("#verdict").focus()
        except (StudioError, OSError) as error:
            said.show("")
            self._about(error)

    def action_preview(self) -> None:
        """The first rows; again: the next one."""
        if self.view == "preview" and self.query_one("#preview", Preview).turn(1):
            return
        self.run_worker(self._preview(), group="preview", exclusive=True, exit_on_error=False)

    async def _preview(self) -> None:
        preview = self.query_one("#preview", Preview)
        try:
            if not await self._ready():
                return
            self._see("preview")
            preview.wait()
            preview.put(await twin("data", "preview", *self._what(), "--count", "50"))
            preview.focus()
        except (StudioError, OSError) as error:
            self._see("known")
            self._about(error)

    async def _ready(self) -> bool:
        """Taken and settled; a dataset of the hub is only fetched by the twin."""
        self.take()
        if is_remote(str(self.draft.value("data.path"))):
            return True
        found = await self._settle()
        if found is not None:
            self._about(look_text(found))
        return found is not None

    def _what(self) -> list[str]:
        return ["--profile", str(self.draft.file())]

    # On

    def action_next(self) -> None:
        """On to the recipe only with rows that can be learnt."""
        self.run_worker(self._next(), group="next", exclusive=True, exit_on_error=False)

    async def _next(self) -> None:
        try:
            if not await self._ready():
                return
            if not is_remote(str(self.draft.value("data.path"))):
                found = await in_thread(quick, self.draft.resolved().profile)
                if found.refusal and not await self._accept_chosen(found.refusal):
                    return
        except (StudioError, OSError) as error:
            self._about(error)
            self.complain(error)
            return
        super().action_next()

    def show(self, snapshot: Snapshot) -> None:
        """Nothing here moves by itself."""


SCREEN = DatasetScreen
