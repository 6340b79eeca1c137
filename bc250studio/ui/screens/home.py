"""Home: the live run or the morning page first, then the queue, profiles with their last result, runs."""

from __future__ import annotations

from collections.abc import Iterable

from textual.binding import Binding
from textual.widget import Widget
from textual.widgets import DataTable

from bc250studio import pipeline, profiles
from bc250studio.errors import StudioError, clean
from bc250studio.jobs import JobFolder
from bc250studio.pipeline import queue
from bc250studio.ui import morning
from bc250studio.ui.background import in_thread
from bc250studio.ui.draft import Draft
from bc250studio.ui.screens.choose import Choose
from bc250studio.ui.screens.home_queue import QUEUE_KEYS, QueueOnHome
from bc250studio.ui.screens.home_words import (
    RUN_COLUMNS,
    RUN_ELASTIC,
    RUN_NUMBERS,
    live_text,
    profile_cells,
    run_cells,
)
from bc250studio.ui.watch import JobRow, Snapshot
from bc250studio.ui.widgets.line import Line
from bc250studio.ui.widgets.rows import Rows


class HomeScreen(QueueOnHome):
    """Tab moves between the queue, profiles and runs."""

    place = "Home"
    AUTO_FOCUS = "#profiles"
    narrow_footer = True
    changes_things = frozenset({"new", "repeat", "again", "modify", "export", "queue", *QUEUE_KEYS})
    BINDINGS = [
        Binding("n", "new", "New", id="home.new", tooltip="New fine-tune: model, dataset, recipe, review"),
        Binding("r", "repeat", "Repeat", id="home.repeat", tooltip="The profile (or the run's own) again"),
        Binding("R", "again", "Repeat now", show=False, id="home.again", tooltip="The same, without the review"),
        Binding("m", "modify", "Modify", id="home.modify", tooltip="Clone what is under the cursor and edit it"),
        Binding("w", "queue", "Queue", id="home.queue", tooltip="Let it wait its turn behind what runs now"),
        Binding("e", "export", "Export", id="home.export", tooltip="Export and serve the best checkpoint of the run"),
        Binding("c", "chat", "Chat", id="home.chat", tooltip="Chat with the run under the cursor, base and tuned"),
        Binding("v", "report", "Report", id="home.report", tooltip="What the run came to, on one page"),
        Binding("slash", "runs", "Runs", id="home.runs", tooltip="All runs: filter, compare, delete"),
    ]  # fmt: skip
    DEFAULT_CSS = """
    HomeScreen #live { height: auto; max-height: 5; padding: 0 1; }
    HomeScreen #waiting { display: none; height: auto; max-height: 7; }
    HomeScreen.-waits #waiting { display: block; }
    HomeScreen #queue { height: auto; max-height: 5; }
    HomeScreen #tables { height: 1fr; layout: vertical; }
    HomeScreen .half { height: 1fr; }
    HomeScreen .half Rows { height: 1fr; }
    HomeScreen.-huge #tables { layout: horizontal; }
    HomeScreen.-huge .half { width: 1fr; }
    """

    def body(self) -> Iterable[Widget]:
        """Live line or morning page, queue, two tables."""
        yield Line(id="live")
        with Widget(id="waiting"):
            yield Line(id="queue-head", classes="head")
            yield Rows("place", "waiting profile", "since", id="queue", elastic=("waiting profile",), right=("place",))
        with Widget(id="tables"):
            with Widget(classes="half"):
                yield Line("Profiles", classes="head")
                yield Rows(
                    "profile", "model", "data", "last result", id="profiles", elastic=("data", "model", "profile")
                )
            with Widget(classes="half"):
                yield Line("Runs", classes="head", id="runs-head")
                yield Rows(*RUN_COLUMNS, id="runs", elastic=RUN_ELASTIC, right=RUN_NUMBERS)

    def on_mount(self) -> None:
        """Profiles are few small files; they are read when the screen is shown."""
        self._profiles: dict[str, profiles.Resolved] = {}
        self._last: dict[str, JobRow] = {}
        self._seen = morning.seen_until()
        self._read_profiles()

    def on_screen_resume(self) -> None:
        """A profile may have been saved meanwhile."""
        self._read_profiles()
        self.studio.watcher.follow(None)
        super().on_screen_resume()

    def _read_profiles(self) -> None:
        found = {}
        try:
            names = profiles.available()
        except StudioError:
            names = {}
        for name in names:
            try:
                found[name] = profiles.load(name)
            except StudioError as error:
                self.studio.complain(error)
        self._profiles = found

    def show(self, snapshot: Snapshot) -> None:
        """Fill the tables."""
        runs = [row for row in snapshot.jobs if row.standing.state.get("kind") != "queue"]
        live = next((row for row in runs if row.standing.live), None) or snapshot.live
        ended = morning.unseen(runs, self._seen) if live is None else []
        self.query_one("#live", Line).show(
            morning.text(ended) if ended else live_text(live, self.studio.machine.ui.ascii)
        )
        self._show_queue(snapshot)
        self._last = {}
        for row in reversed(runs):
            self._last[str(row.standing.state.get("profile") or "")] = row
        self.query_one("#profiles", Rows).show(
            [(name, profile_cells(name, resolved, self._last.get(name))) for name, resolved in self._profiles.items()]
        )
        self.query_one("#runs-head", Line).show("Runs" if runs else "Runs: none yet")
        self.query_one("#runs", Rows).show([(row.name, run_cells(row)) for row in runs[:50]])

    # What is under the cursor

    def _on(self, table: str) -> bool:
        return self.query_one(f"#{table}", Rows).has_focus

    def _row(self) -> JobRow | None:
        """The run under the cursor; with the cursor on a profile, the last run of it; else the newest."""
        jobs = self.studio.snapshot.jobs
        if self._on("profiles"):
            return self._last.get(self.query_one("#profiles", Rows).chosen or "")
        chosen = self.query_one("#runs", Rows).chosen
        return next((row for row in jobs if row.name == chosen), None)

    def _job(self) -> JobFolder | None:
        row = self._row()
        return row.standing.job if row else None

    def why_not(self, action: str) -> str | None:
        """Reasons."""
        if not self.ready:
            return None
        row = self._row()
        if action in ("export", "chat", "report") and row is None:
            return "This profile has not been run yet." if self._on("profiles") else "There is no run yet."
        if action == "chat" and row is not None and not (row.standing.job.path / "server.json").exists():
            return "This run is not served; press e to export and serve it."
        if action in ("repeat", "again", "queue") and self._on("runs"):
            if row is None:
                return "There is no run yet."
            if row.standing.state.get("kind") == "rehearsal":
                return "This was a rehearsal in two steps; repeat its profile instead."
        return self.why_not_queue(action)

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        """Another row may allow other keys."""
        self.refresh_reasons()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter: a run opens, a profile starts a new fine-tune from it."""
        if event.data_table.id == "runs":
            job = self._job()
            if job is not None:
                self._saw()
                self.studio.open_run(job)
        elif event.data_table.id == "profiles":
            self.run_worker(self.action_modify())

    # Verbs

    def action_new(self) -> None:
        """The four questions, from the defaults, or the draft that was left unfinished."""
        draft = Draft.kept()
        if draft is None:
            self.studio.go("model", Draft.empty())
            return

        def answered(answer: str | None) -> None:
            if answer == "on" and draft is not None:
                self.studio.go("model", draft)
            elif answer == "new":
                Draft.forget()
                self.studio.go("model", Draft.empty())

        changed = ", ".join(f"{key} = {clean(value, 24)}" for key, value in list(draft.changes.items())[:6])
        answers = [("on", f"go on with {clean(draft.name, 40)}"), ("new", "begin a new one and forget it")]
        self.app.push_screen(Choose("There is an unfinished draft", answers, changed), answered)

    async def action_modify(self) -> None:
        """Clone and edit."""
        draft: Draft | None = await self.attempt(self._draft)
        if draft is not None:
            self.studio.go("recipe", draft)

    def action_repeat(self) -> None:
        """Once more, after a look at the review."""
        try:
            draft = self._draft()
        except (StudioError, OSError) as error:
            self.complain(error)
            return
        if draft is not None:
            self.studio.go("review", draft)

    def _draft(self) -> Draft | None:
        if self._on("runs"):
            job = self._job()
            return Draft.from_run(job) if job else None
        if self._on("queue"):
            entry = self._entry()
            return Draft.from_profile(str(entry), queue.name_of(entry)) if entry else None
        chosen = self.query_one("#profiles", Rows).chosen
        return Draft.from_profile(chosen) if chosen else None

    def action_again(self) -> None:
        """At once, as it is."""
        self.run_worker(self._again(), group="start", exclusive=True, exit_on_error=False)

    async def _again(self) -> None:
        draft: Draft | None = await self.attempt(self._draft)
        if draft is not None:
            self.notify("Starting ...", timeout=2)
            job = await self.attempt(lambda: in_thread(pipeline.launch, draft.resolved()))
            if job is not None:
                self.studio.open_run(job)
                self.studio.watcher.hurry()

    def action_export(self) -> None:
        """Steps from adapter to proof."""
        job = self._job()
        if job is not None:
            self.studio.watcher.follow(job)
            self.studio.go("steps", job, True)

    def action_chat(self) -> None:
        """Chat."""
        job = self._job()
        if job is not None:
            self.studio.watcher.follow(job)
            self.studio.go("chat", job)

    def action_runs(self) -> None:
        """All runs."""
        self.studio.go("runs")

    def action_report(self) -> None:
        """The morning page."""
        job = self._job()
        ended = morning.unseen(self.studio.snapshot.jobs, self._seen)
        if ended and not self._on("runs"):
            job = ended[0].standing.job
        if job is not None:
            self._saw()
            self.studio.watcher.follow(job)
            self.studio.go("details", job)

    def action_back(self) -> None:
        """Hide the morning page."""
        self._saw()
        self.show(self.studio.snapshot)

    def _saw(self) -> None:
        morning.mark_seen()
        self._seen = max(self._seen, morning.seen_until())


SCREEN = HomeScreen
