"""One run in full: what it came to, its own frozen profile, its events, its files."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget

from bc250studio.errors import clean
from bc250studio.jobs import JobFolder
from bc250studio.ui.background import in_thread
from bc250studio.ui.draft import shown
from bc250studio.ui.follow import RunView
from bc250studio.ui.numbers import ago, duration, fixed, number, size
from bc250studio.ui.screens.base import StudioScreen
from bc250studio.ui.screens.training_words import events_text
from bc250studio.ui.stage_words import NOTES, table
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets.line import Line
from bc250studio.ui.words import hanging, verdict_text

WIDTH = 76
ANSWER_CHARACTERS = 300
PARTS = ("report", "profile", "events", "files")


class DetailsScreen(StudioScreen[None]):
    """Four pages of one run; tab turns them."""

    place = "Details"
    changes_things = frozenset({"modify"})
    BINDINGS = [
        Binding(
            "tab", "turn(1)", "Next page", id="details.next", priority=True, tooltip="Report, profile, events, files"
        ),
        Binding("shift+tab", "turn(-1)", "Page before", show=False, id="details.before", priority=True),
        Binding("m", "modify", "Modify", id="details.modify", tooltip="A new fine-tune from this run's own profile"),
        Binding("t", "charts", "Charts", id="details.charts", tooltip="The run's panes"),
        Binding("e", "steps", "Steps", id="details.steps", tooltip="Export, serve, prove"),
        Binding("l", "log", "Log", id="details.log", tooltip="The run's logs"),
    ]
    DEFAULT_CSS = """
    DetailsScreen #pages { height: 1; padding: 0 1; }
    DetailsScreen VerticalScroll { height: 1fr; padding: 0 1; }
    DetailsScreen #text { height: auto; }
    """

    def __init__(self, job: JobFolder, part: str = "report") -> None:
        super().__init__()
        self.job = job
        self.part = PARTS.index(part)
        self.place = f"Details ▸ {clean(job.name, 40)}"
        self._files = "reading ..."

    def body(self) -> Iterable[Widget]:
        """Page names, text."""
        yield Line(id="pages")
        with VerticalScroll(can_focus=True):
            yield Line(id="text")

    def on_mount(self) -> None:
        """Sizes are counted once, in a thread."""
        self.query_one(VerticalScroll).focus()
        self.run_worker(self._count(), group="count", exit_on_error=False)

    async def _count(self) -> None:
        self._files = await in_thread(files_text, self.job.path)
        if self.is_attached:
            self.show(self.studio.snapshot)

    def on_screen_resume(self) -> None:
        """Follow this run."""
        self.studio.watcher.follow(self.job)
        super().on_screen_resume()

    def show(self, snapshot: Snapshot) -> None:
        """The page that is open."""
        run = snapshot.run
        if run is None or run.job.path != self.job.path:
            return
        names: list[Any] = []
        for i, name in enumerate(PARTS):
            names += [(f" {name} ", "reverse bold" if i == self.part else "dim"), " "]
        self.query_one("#pages", Line).show(Content.assemble(*names))
        page = {"report": report, "profile": profile_text, "events": lambda r: events_text(r, 400)}.get(
            PARTS[self.part]
        )
        self.query_one("#text", Line).show(page(run) if page else self._files)

    def action_turn(self, direction: int) -> None:
        """Another page, from its top."""
        self.part = (self.part + direction) % len(PARTS)
        self.query_one(VerticalScroll).scroll_home(animate=False)
        self.show(self.studio.snapshot)

    async def action_modify(self) -> None:
        """A draft from what the run really did."""
        from bc250studio.ui.draft import Draft

        draft = await self.attempt(lambda: Draft.from_run(self.job))
        if draft is not None:
            self.studio.go("recipe", draft)

    def action_charts(self) -> None:
        """The run's panes."""
        self.studio.open_run(self.job)

    def action_steps(self) -> None:
        """The stages."""
        self.studio.go("steps", self.job)

    def action_log(self) -> None:
        """Logs."""
        self.studio.go("log", self.job.path / "logs" / "pipeline.log")


def report(run: RunView) -> Content:
    """What a run came to, on one page: what a person wants to know in the morning."""
    state, train = run.state, run.stages.get("train", {})
    parts: list[Any] = [(f"{verdict_text(run.standing)}\n", "bold")]
    if run.recording:
        parts.append((f"This is a recording: {run.recording}\n", "bold $warning"))
    if state.get("error"):
        parts.append((f"{clean(state['error'], 500)}\n", "$error"))
    created, finished = state.get("created"), state.get("finished")
    if isinstance(created, (int, float)):
        clock = time.strftime("%Y-%m-%d %H:%M", time.localtime(created))
        took = f", took {duration(finished - created)}" if isinstance(finished, (int, float)) else ""
        parts.append(f"started {clock} ({ago(time.time() - created)}){took}\n")
    before, after = train.get("eval_loss_before"), train.get("eval_loss_after")
    if before is None and run.evaluations:
        before = run.evaluations[0][1]
    parts.append(f"evaluation loss {fixed(before)} before, {fixed(after)} after, best {fixed(run.best_eval)}\n")
    temps = run.curves.get("gpu_temp_c") or run.curves.get("cpu_temp_c") or ()
    if temps:
        name = "GPU" if run.curves.get("gpu_temp_c") else "CPU"
        parts.append(
            f"{name} {number(temps[0].mean)} °C at the start, {number(max(b.high for b in temps))} °C at most, "
            f"paused {duration(run.paused_s)}"
        )
        parts.append(f", mean power {run.mean_power_w:.0f} W\n" if run.mean_power_w is not None else "\n")
    parts.append("\n")
    for name, note in NOTES.items():
        record = run.stages.get(name)
        if record:
            text = (
                note(record) if record.get("verdict") in ("done", "passed") or name == "prove" else record.get("error")
            )
            label = f"{'':<10}{clean(record.get('verdict'), 10):<8} "
            parts += [(f"{name:<10}", "bold"), hanging(label, clean(text or "", 300), WIDTH)[10:] + "\n"]
    parts += answers(run)
    warnings = [
        event for event in run.events if event.get("event") in ("warning", "error", "stall", "fallback", "note")
    ]
    if warnings:
        parts.append(("\nWarnings and notes\n", "bold"))
        parts += [hanging("  ", clean(event.get("text") or "", 300), WIDTH) + "\n" for event in warnings[-20:]]
    return Content.assemble(*parts)


def answers(run: RunView) -> list[Any]:
    """What base and tuned model said to the profile's questions, each in a few lines."""
    asked = run.stages.get("ask", {}).get("answers")
    parts: list[Any] = []
    for answer in asked[:5] if isinstance(asked, list) else []:
        if not isinstance(answer, Mapping):
            continue
        parts.append((f"\n{clean(answer.get('prompt') or '', 200)}\n", "bold"))
        for side, style in (("base", "dim"), ("tuned", "")):
            text = " ".join(clean(table(answer, side).get("text") or "", ANSWER_CHARACTERS).split())
            parts.append((hanging(f"  {side:<6} ", text or "(nothing)", WIDTH) + "\n", style))
    return parts


def profile_text(run: RunView) -> Content | str:
    """The run's own frozen profile; what differs from the defaults stands out."""
    if run.resolved is None:
        return "This run has no readable profile."
    from bc250studio.profiles import Profile
    from bc250studio.profiles.profile import sections

    plain = Profile()
    parts: list[Any] = []
    for section in sections():
        values, defaults = getattr(run.resolved.profile, section), getattr(plain, section)
        parts.append((f"[{section}]\n", "bold"))
        for key in type(values).model_fields:
            value = getattr(values, key)
            changed = value != getattr(defaults, key)
            mark = "* " if changed else "  "
            parts.append((f"{mark}{key:<22} {clean(shown(value), 200) or '-'}\n", "$success" if changed else "dim"))
    return Content.assemble(*parts)


def files_text(folder: Path) -> str:
    """Every file of the run with its size, folders summed."""
    lines, total = [], 0
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(root) / name
            try:
                count = path.lstat().st_size
            except OSError:
                continue
            total += count
            lines.append(f"{size(count):>10}  {clean(path.relative_to(folder))}")
    return f"{folder}\n{size(total):>10}  together\n\n" + "\n".join(lines)


SCREEN = DetailsScreen
