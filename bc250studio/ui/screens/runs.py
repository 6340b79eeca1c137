"""All runs: filter by typing, mark two to compare, delete with the size it frees."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from textual.binding import Binding
from textual.widget import Widget
from textual.widgets import DataTable, Input

from bc250studio.errors import clean
from bc250studio.jobs import standing
from bc250studio.ui.background import in_thread
from bc250studio.ui.numbers import size
from bc250studio.ui.screens.base import StudioScreen
from bc250studio.ui.screens.confirm import Confirm
from bc250studio.ui.screens.home_words import RUN_COLUMNS, RUN_ELASTIC, RUN_NUMBERS, run_cells
from bc250studio.ui.watch import JobRow, Snapshot
from bc250studio.ui.widgets.line import Line
from bc250studio.ui.widgets.rows import Rows


class RunsScreen(StudioScreen[None]):
    """A table with a filter."""

    place = "Runs"
    changes_things = frozenset({"delete", "export"})
    BINDINGS = [
        Binding(
            "slash", "filter", "Filter", id="runs.filter", tooltip="Words that must occur in name, verdict or profile"
        ),
        Binding("space", "mark", "Mark", id="runs.mark", tooltip="Mark for a comparison"),
        Binding("x", "compare", "Compare", id="runs.compare", tooltip="The two marked runs side by side"),
        Binding("i", "details", "Info", id="runs.details", tooltip="Report, profile, events, files"),
        Binding("e", "export", "Export", id="runs.export", tooltip="Export, serve, prove"),
        Binding("d", "delete", "Delete", id="runs.delete", tooltip="Delete the run's folder (asks first)"),
    ]
    DEFAULT_CSS = """
    RunsScreen Rows { height: 1fr; }
    RunsScreen Input { height: 1; border: none; padding: 0 1; background: $surface; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.marked: list[str] = []

    def body(self) -> Iterable[Widget]:
        """Filter, table."""
        yield Input(placeholder="filter: words in name, verdict, profile, kind", id="filter", compact=True)
        yield Rows("", *RUN_COLUMNS, id="runs", elastic=RUN_ELASTIC, right=RUN_NUMBERS)
        yield Line(id="count", classes="note")

    def on_mount(self) -> None:
        """The table first; the filter is for those who want it."""
        self.query_one("#runs", Rows).focus()

    def show(self, snapshot: Snapshot) -> None:
        """Rows that fit the filter."""
        words = self.query_one("#filter", Input).value.lower().split()
        rows = [row for row in snapshot.jobs if all(word in _haystack(row) for word in words)]
        self.marked = [name for name in self.marked if any(row.name == name for row in snapshot.jobs)]
        self.query_one("#runs", Rows).show(
            [(row.name, ("●" if row.name in self.marked else " ", *run_cells(row))) for row in rows]
        )
        self.query_one("#count", Line).show(f"{len(rows)} of {len(snapshot.jobs)} runs")

    @property
    def row(self) -> JobRow | None:
        """The run under the cursor."""
        chosen = self.query_one("#runs", Rows).chosen
        return next((row for row in self.studio.snapshot.jobs if row.name == chosen), None)

    def why_not(self, action: str) -> str | None:
        """Reasons."""
        if not self.ready:
            return None
        row = self.row
        if action in ("mark", "details", "export", "delete") and row is None:
            return "There is no run here."
        if action == "delete" and row is not None and row.standing.live:
            return "The run is live; stop it first."
        if action == "compare" and len(self.marked) != 2:
            return "Mark two runs with the space bar."
        return None

    def on_input_changed(self, _: Input.Changed) -> None:
        """Filter at every letter."""
        self.show(self.studio.snapshot)

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Into the table."""
        self.query_one("#runs", Rows).focus()

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        """Another row may allow other keys."""
        self.refresh_reasons()

    def on_data_table_row_selected(self, _: DataTable.RowSelected) -> None:
        """Enter opens."""
        if self.row is not None:
            self.studio.open_run(self.row.standing.job)

    def action_filter(self) -> None:
        """Type a filter."""
        self.query_one("#filter", Input).focus()

    def action_mark(self) -> None:
        """At most two; the older mark goes."""
        row = self.row
        if row is not None:
            if row.name in self.marked:
                self.marked.remove(row.name)
            else:
                self.marked = [*self.marked, row.name][-2:]
            self.show(self.studio.snapshot)
            self.refresh_reasons()

    def action_compare(self) -> None:
        """Side by side."""
        found = {row.name: row.standing.job for row in self.studio.snapshot.jobs}
        self.studio.go("compare", found[self.marked[0]], found[self.marked[1]])

    def action_details(self) -> None:
        """Everything of one."""
        if self.row is not None:
            self.studio.go("details", self.row.standing.job)

    def action_export(self) -> None:
        """Steps."""
        if self.row is not None:
            self.studio.go("steps", self.row.standing.job, True)

    async def action_delete(self) -> None:
        """Ask with the size."""
        row = self.row
        if row is None:
            return
        folder = row.standing.job.path
        freed = await in_thread(folder_bytes, folder)

        async def answered(yes: bool | None) -> None:
            if yes:
                gone = await self.attempt(lambda: in_thread(delete, row))
                if gone:
                    self.notify(f"{clean(row.name)} is deleted; {size(freed)} are free again.", markup=False)
                self.studio.watcher.hurry()

        self.app.push_screen(
            Confirm(
                f"Delete {clean(row.name)}?", f"{folder}\nfrees {size(freed)}; it cannot be undone.", "Delete", "Keep"
            ),
            answered,
        )


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(root) / name).lstat().st_size
            except OSError:
                continue
    return total


def delete(row: JobRow) -> bool:
    """Stop its server, remove its folder; never a live run. True when it is gone.

    Raises:
        BadInput: it is live now.
        OSError: it cannot be removed.
    """
    from bc250studio.errors import BadInput
    from bc250studio.serve import server

    job = row.standing.job
    if standing(job).live:
        raise BadInput(f"{job.name} is live; stop it first.")
    server.stop(job)
    shutil.rmtree(job.path)
    return True


def _haystack(row: JobRow) -> str:
    state = row.standing.state
    words = (row.name, row.standing.verdict, row.standing.phase, state.get("profile") or "", state.get("kind") or "")
    return " ".join(map(str, words)).lower()


SCREEN = RunsScreen
