"""Home: the live run first, then profiles with their last result, then runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from textual.binding import Binding
from textual.content import Content
from textual.widget import Widget
from textual.widgets import DataTable

from bc250studio import profiles
from bc250studio.errors import StudioError, clean
from bc250studio.jobs import JobFolder
from bc250studio.ui.draft import Draft
from bc250studio.ui.numbers import NA, age, ago, bar, duration, fixed, number
from bc250studio.ui.screens.base import StudioScreen
from bc250studio.ui.stage_words import table
from bc250studio.ui.watch import JobRow, Snapshot
from bc250studio.ui.widgets.line import Line
from bc250studio.ui.widgets.rows import Rows
from bc250studio.ui.words import GLYPHS, short_base, verdict_text


class HomeScreen(StudioScreen[None]):
    """Tab moves between profiles and runs."""

    place = "Home"
    changes_things = frozenset({"new", "repeat", "modify", "export", "delete"})
    BINDINGS = [
        Binding("n", "new", "New", id="home.new", tooltip="New fine-tune: model, dataset, recipe, review"),
        Binding(
            "r", "repeat", "Repeat", id="home.repeat", tooltip="Run the profile (or the run's profile) again as it is"
        ),
        Binding("m", "modify", "Modify", id="home.modify", tooltip="Clone the profile under the cursor and edit it"),
        Binding("e", "export", "Export", id="home.export", tooltip="Export and serve the best checkpoint of the run"),
        Binding("c", "chat", "Chat", id="home.chat", tooltip="Chat with the run under the cursor, base and tuned"),
        Binding("slash", "runs", "Runs", id="home.runs", tooltip="All runs: filter, compare, delete"),
        Binding("v", "report", "Report", show=False, id="home.report", tooltip="What the run came to, on one page"),
    ]
    DEFAULT_CSS = """
    HomeScreen #live { height: auto; max-height: 3; padding: 0 1; }
    HomeScreen #tables { height: 1fr; layout: vertical; }
    HomeScreen .half { height: 1fr; }
    HomeScreen Rows { height: 1fr; }
    HomeScreen.-huge #tables { layout: horizontal; }
    HomeScreen.-huge .half { width: 1fr; }
    """

    def body(self) -> Iterable[Widget]:
        """Live line, two tables."""
        yield Line(id="live")
        with Widget(id="tables"):
            with Widget(classes="half"):
                yield Line("Profiles", classes="head")
                yield Rows("profile", "model", "data", "last result", id="profiles")
            with Widget(classes="half"):
                yield Line("Runs", classes="head")
                yield Rows("run", "verdict", "loss", "best", "tok/s", "peak", "age", id="runs")

    def on_mount(self) -> None:
        """Profiles are few small files; they are read when the screen is shown."""
        self._profiles: dict[str, profiles.Resolved] = {}
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
        self.query_one("#live", Line).show(_live(snapshot, self.studio.machine.ui.ascii))
        last = {}
        for row in reversed(snapshot.jobs):
            last[str(row.standing.state.get("profile") or "")] = row
        self.query_one("#profiles", Rows).show(
            [(name, _profile_cells(name, resolved, last.get(name))) for name, resolved in self._profiles.items()]
        )
        self.query_one("#runs", Rows).show([(row.name, run_cells(row)) for row in snapshot.jobs[:50]])

    # What is under the cursor

    @property
    def _on_runs(self) -> bool:
        return self.query_one("#runs", Rows).has_focus

    def _row(self) -> JobRow | None:
        chosen = self.query_one("#runs", Rows).chosen
        return next((row for row in self.studio.snapshot.jobs if row.name == chosen), None)

    def _job(self) -> JobFolder | None:
        row = self._row()
        return row.standing.job if row else None

    def why_not(self, action: str) -> str | None:
        """Reasons."""
        row = self._row() if self.ready else None
        if action in ("export", "chat", "report") and row is None:
            return "There is no run yet."
        if action == "chat" and row is not None and not (row.standing.job.path / "server.json").exists():
            return "This run is not served; press e to export and serve it."
        return None

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        """Another row may allow other keys."""
        self.refresh_reasons()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter: a run opens, a profile starts a new fine-tune from it."""
        if event.data_table.id == "runs":
            job = self._job()
            if job is not None:
                self.studio.open_run(job)
        else:
            self.run_worker(self.action_modify())

    # Verbs

    def action_new(self) -> None:
        """The four questions, from the defaults."""
        self.studio.go("model", Draft.empty())

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
        if self._on_runs:
            job = self._job()
            return Draft.from_run(job) if job else None
        chosen = self.query_one("#profiles", Rows).chosen
        return Draft.from_profile(chosen) if chosen else None

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
        if job is not None:
            self.studio.watcher.follow(job)
            self.studio.go("details", job)


def _live(snapshot: Snapshot, ascii_only: bool) -> Any:
    queue = ("\nwaiting: " + clean(", ".join(snapshot.waiting), 100), "dim") if snapshot.waiting else ""
    return Content.assemble(_live_run(snapshot.live, ascii_only), queue)


def _live_run(row: JobRow | None, ascii_only: bool) -> Content:
    if row is None:
        return Content.assemble(("No live run. ", "dim"), ("n", "bold"), (" starts a new fine-tune.", "dim"))
    state = row.standing.state
    head = Content.assemble((f"{verdict_text(row.standing)} ", "bold $primary"), (clean(row.name), "bold"))
    if state.get("stage") == "train" and state.get("steps"):
        share = (state.get("step") or 0) / state["steps"]
        return Content.assemble(
            head, f"\n{bar(share, 24, ascii_only)} step {state.get('step', 0)}/{state['steps']} · "
            f"loss {fixed(state.get('loss_ema') or state.get('loss'))} · "
            f"{number(state.get('real_tokens_per_s'))} tok/s · ETA {duration(state.get('eta_s'))}",
        )  # fmt: skip
    return Content.assemble(head, f"\n{clean(state.get('stage_text') or '', 100)}")


def _profile_cells(name: str, resolved: profiles.Resolved, last: JobRow | None) -> tuple[Any, ...]:
    profile = resolved.profile
    data = short_base(profile.data.path.removeprefix("assets:"))
    if last is None:
        result = "never run"
    else:
        loss = last.train.get("eval_loss_after")
        result = f"{GLYPHS.get(last.standing.verdict, '·')} {last.standing.verdict}"
        result += f" {fixed(loss)}" if loss is not None else ""
        result += f", {ago(_age(last))}"
    return name, short_base(profile.model.base), data, result


def run_cells(row: JobRow) -> tuple[Any, ...]:
    """The cells of one run in a list."""
    state, train = row.standing.state, row.train
    loss = train.get("eval_loss_after", state.get("eval_loss"))
    best = state.get("best_eval_loss")
    rates = table(train, "rates")
    rate = rates.get("real_tokens_per_s", state.get("real_tokens_per_s"))
    verdict = verdict_text(row.standing)
    if row.prove.get("verdict") == "failed":
        verdict = "✗ proof failed"
    if state.get("recording"):
        verdict += " (rec)"
    return (
        clean(row.name, 34),
        verdict,
        fixed(loss) if loss is not None else fixed(state.get("loss_ema")),
        fixed(best),
        number(rate),
        f"{row.peak_temp_c:.0f} °C" if row.peak_temp_c is not None else NA,
        age(_age(row)),
    )


def _age(row: JobRow) -> float | None:
    import time

    created = row.standing.state.get("created")
    return max(0.0, time.time() - created) if isinstance(created, (int, float)) else None


SCREEN = HomeScreen
