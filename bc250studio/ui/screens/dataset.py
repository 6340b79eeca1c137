"""New fine-tune, second question: which data, and what is learnt from it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import DataTable, DirectoryTree, Input

from bc250studio.errors import BadInput, StudioError, clean
from bc250studio.ui.background import in_thread, twin
from bc250studio.ui.draft import Draft
from bc250studio.ui.screens.confirm import AskText
from bc250studio.ui.screens.dataset_words import check_text, preview_text
from bc250studio.ui.screens.wizard import WizardScreen
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets.line import Line
from bc250studio.ui.widgets.rows import Rows

SUFFIXES = {".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt", ".md", ".gz", ".zst"}


class DataTree(DirectoryTree):
    """Folders and files that could be data."""

    def filter_paths(self, paths: Iterable[Path]) -> Iterable[Path]:
        """No hidden files, no other kinds."""
        return [p for p in paths if not p.name.startswith(".") and (p.is_dir() or p.suffix.lower() in SUFFIXES)]


class DatasetScreen(WizardScreen):
    """Field, recent files or a file browser, and the check's verdict with the mask shown."""

    step = "dataset"
    BINDINGS = [
        Binding(
            "f5",
            "check",
            "Check rows",
            id="dataset.check",
            tooltip="Every row's verdict, with the model's own template",
        ),
        Binding("f7", "browse", "Browse", id="dataset.browse", tooltip="File browser, or the list of known files"),
        Binding(
            "f8",
            "preview",
            "Preview",
            id="dataset.preview",
            tooltip="The next rows as the model sees them; what is learnt stands out",
        ),
        Binding("f9", "columns", "Columns", id="dataset.columns", tooltip="Say by hand which column is which"),
        Binding("down", "list", "List", show=False, id="dataset.list"),
    ]
    DEFAULT_CSS = """
    DatasetScreen #choice { height: 8; }
    DatasetScreen Rows { height: 1fr; }
    DatasetScreen DataTree { display: none; height: 1fr; background: transparent; }
    DatasetScreen.-browsing Rows { display: none; }
    DatasetScreen.-browsing DataTree { display: block; }
    DatasetScreen #verdict { height: 1fr; padding: 0 1; border-top: solid $panel; }
    DatasetScreen #verdict Line { height: auto; }
    """

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self._from_row = 0

    def body(self) -> Iterable[Widget]:
        """Field, choice, verdict."""
        yield Line(self.way(), id="way")
        yield Line("Dataset: a file, a folder, hub:owner/name, or assets:demo.jsonl", classes="note")
        yield Input(str(self.draft.value("data.path")), id="path", compact=True)
        with Widget(id="choice"):
            yield Rows("dataset", "where", id="known")
            yield DataTree(Path.home(), id="tree")
        with VerticalScroll(id="verdict", can_focus=True):
            yield Line("F5 checks every row: format, lengths, what is learnt, duplicates.", id="said-check")
            yield Line(id="preview")

    async def on_mount(self) -> None:  # type: ignore[override]
        """The known files are gathered in a thread."""
        self.query_one("#path", Input).focus()
        found = await in_thread(_known, self.studio.snapshot)
        self.query_one("#known", Rows).show([(name, (clean(name, 60), where)) for name, where in found])

    def take(self) -> None:
        """The typed path."""
        self.draft.put("data.path", self.query_one("#path", Input).value.strip() or "assets:demo.jsonl")

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Enter goes on."""
        self.action_next()

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        """The row under the cursor is the choice."""
        table = self.query_one("#known", Rows)
        if table.has_focus and table.chosen:
            self.query_one("#path", Input).value = table.chosen

    def on_data_table_row_selected(self, _: DataTable.RowSelected) -> None:
        """Enter takes the row and goes on."""
        self.action_next()

    def on_directory_tree_file_selected(self, event: DirectoryTree.FileSelected) -> None:
        """A file of the browser."""
        self.query_one("#path", Input).value = str(event.path)
        self.query_one("#path", Input).focus()

    def action_list(self) -> None:
        """From the field into the list or the browser."""
        self.query_one("#tree" if self.has_class("-browsing") else "#known").focus()

    def action_browse(self) -> None:
        """Switch between list and browser."""
        self.toggle_class("-browsing")
        self.action_list()

    def action_columns(self) -> None:
        """``ours=theirs, ...`` with our names prompt, completion, system, messages, text, tools."""
        known = self.draft.value("data.columns")

        def written(text: str | None) -> None:
            if text is None:
                return
            pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
            try:
                self.draft.put("data.columns", {ours.strip(): theirs.strip() for ours, _, theirs in pairs})
            except BadInput as error:
                self.complain(error)
            else:
                self.run_worker(self._check(), group="check", exclusive=True, exit_on_error=False)

        self.app.push_screen(
            AskText(
                "Columns: ours=theirs, ...",
                ", ".join(f"{ours}={theirs}" for ours, theirs in known.items()),
                "Our names: prompt, completion, system, messages, text, tools. Empty looks by itself.",
            ),
            written,
        )

    async def action_check(self) -> None:
        """In a child process: reading and tokenising may take a while."""
        self.run_worker(self._check(), group="check", exclusive=True, exit_on_error=False)

    async def _check(self) -> None:
        said = self.query_one("#said-check", Line)
        try:
            self.take()
            said.show("Checking every row ...")
            said.show(check_text(await twin("data", "check", *self._what())))
        except StudioError as error:
            said.show(Content.styled(clean(error, 500), "bold $error"))

    def action_preview(self) -> None:
        """A few rows more each time."""
        self.run_worker(self._preview(), group="preview", exclusive=True, exit_on_error=False)

    async def _preview(self) -> None:
        shown = self.query_one("#preview", Line)
        try:
            self.take()
            rows = await twin("data", "preview", *self._what(), "--row", str(self._from_row + 1), "--count", "3")
            shown.show(preview_text(rows))
            self._from_row = self._from_row + 3 if rows else 0
        except StudioError as error:
            self._from_row = 0
            shown.show(Content.styled(clean(error, 500), "bold $error"))

    def _what(self) -> list[str]:
        return ["--profile", str(self.draft.file())]

    def show(self, snapshot: Snapshot) -> None:
        """Nothing here moves by itself."""


def _known(snapshot: Snapshot) -> list[tuple[str, str]]:
    from bc250studio import profiles

    found: dict[str, str] = {"assets:demo.jsonl": "ships with bc250studio"}
    sources: list[tuple[Any, str]] = [(profiles.load(name), f"profile {name}") for name in profiles.available()]
    for row in snapshot.jobs[:30]:
        try:
            sources.append((row.standing.job.profile(), "an earlier run"))
        except StudioError:
            continue
    for resolved, where in sources:
        found.setdefault(resolved.profile.data.path, where)
    return list(found.items())


SCREEN = DatasetScreen
