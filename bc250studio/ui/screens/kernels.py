"""Kernels: what is tuned, proven and mapped; what a step multiplies; the plan; a tuning job while it runs.

Whatever takes long is asked of the command line's twin in a child process; the tuning page follows the job's files.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget

from bc250studio import paths, profiles
from bc250studio.errors import StudioError, clean
from bc250studio.jobs import JobFolder, control
from bc250studio.jobs.folder import read_json
from bc250studio.ui import tuning
from bc250studio.ui.background import in_thread, twin
from bc250studio.ui.screens.base import StudioScreen
from bc250studio.ui.screens.confirm import Confirm
from bc250studio.ui.screens.kernels_words import plan_text, shapes_text, status_text, tuning_text
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets.line import Line

PAGES = ("library", "shapes", "plan", "tuning")
OF_A_PROFILE = ("shapes", "plan")
PROOFS_SHOWN = 6


class KernelsScreen(StudioScreen[None]):
    """Four pages; tab turns them, the arrow keys choose the profile whose step is meant."""

    place = "Kernels"
    changes_things = frozenset({"tune", "stop"})
    BINDINGS = [
        Binding("tab", "turn(1)", "Next page", id="kernels.next", priority=True, tooltip="Turn the page"),
        Binding("left", "profile(-1)", "Profile", id="kernels.left", priority=True, tooltip="Profile before"),
        Binding(
            "right", "profile(1)", "Profile", show=False, id="kernels.right", priority=True, tooltip="Profile after"
        ),
        Binding("r", "look", "Look again", id="kernels.look", tooltip="Ask again what this page shows"),
        Binding("t", "tune", "Tune", id="kernels.tune", tooltip="Tune the profile's products here (asks first)"),
        Binding("s", "stop", "Stop", id="kernels.stop", tooltip="Stop the tuning job; it can go on later"),
        Binding("l", "log", "Log", show=False, id="kernels.log", tooltip="The tuning job's log"),
    ]
    DEFAULT_CSS = """
    KernelsScreen #pages { height: 1; padding: 0 1; }
    KernelsScreen VerticalScroll { height: 1fr; padding: 0 1; }
    KernelsScreen #text { height: auto; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.page = "library"
        self.profile = ""
        self._profiles: list[str] = []
        self._texts: dict[tuple[str, str], Any] = {}
        self._asking: set[tuple[str, str]] = set()
        self._tuning: tuning.Tuning | None = None
        self._reading = False

    def body(self) -> Iterable[Widget]:
        """Page names, text."""
        yield Line(id="pages")
        with VerticalScroll(can_focus=True):
            yield Line("asking ...", id="text")

    def on_mount(self) -> None:
        """The page that matters most now: a tuning job that runs, else the library."""
        super().on_mount()
        self.query_one(VerticalScroll).focus()
        self._profiles = sorted(profiles.available())
        self.profile = self._first_profile()
        self._follow_tuning(self.studio.snapshot)
        if self.job is not None and self._is_live():
            self.page = "tuning"
        self._ask()
        self.show(self.studio.snapshot)

    def _first_profile(self) -> str:
        """That of the newest run; else the demo, else any."""
        used = (str(row.standing.state.get("profile") or "") for row in self.studio.snapshot.jobs)
        wanted = (*used, "demo", *self._profiles)
        return next((name for name in wanted if name in self._profiles), "")

    # What is seen

    def show(self, snapshot: Snapshot) -> None:
        """The page that is open; the tuning job is looked at again at every tick."""
        self._follow_tuning(snapshot)
        names: list[Any] = []
        for name in PAGES:
            names += [(f" {name} ", "reverse bold" if name == self.page else "dim"), " "]
        if self.page in OF_A_PROFILE:
            names.append((f"   ◂ {clean(self.profile or 'no profile', 40)} ▸", "bold"))
        self.query_one("#pages", Line).show(Content.assemble(*names))
        self.query_one("#text", Line).show(self._text())

    def _text(self) -> Any:
        if self.page == "tuning":
            if self._tuning is None:
                return "No kernels have been tuned on this machine yet. plan shows what would be, t starts it."
            return tuning_text(self._tuning, self.studio.machine.ui.ascii)
        return self._texts.get(self._key(), "A child process works it out ...")

    def _key(self) -> tuple[str, str]:
        return self.page, self.profile if self.page in OF_A_PROFILE else ""

    @property
    def job(self) -> JobFolder | None:
        """The newest tuning job."""
        return tuning.newest(self.studio.snapshot)

    def _is_live(self) -> bool:
        return any(
            row.standing.live and row.standing.state.get("kind") == tuning.KIND for row in self.studio.snapshot.jobs
        )

    def _follow_tuning(self, snapshot: Snapshot) -> None:
        job = tuning.newest(snapshot)
        if job is not None and not self._reading and (self.page == "tuning" or self._tuning is None):
            self._reading = True
            self.run_worker(self._read_tuning(job), group="tuning", exit_on_error=False)

    async def _read_tuning(self, job: JobFolder) -> None:
        try:
            self._tuning = await in_thread(tuning.read, job)
        finally:
            self._reading = False
        if self.is_attached and self.page == "tuning":
            self.query_one("#text", Line).show(self._text())

    # Asking

    def _ask(self) -> None:
        key = self._key()
        if self.page != "tuning" and key not in self._texts and key not in self._asking:
            self._asking.add(key)
            self.run_worker(self._answer(key), group=" ".join(key), exit_on_error=False)

    async def _answer(self, key: tuple[str, str]) -> None:
        page, profile = key
        try:
            self._texts[key] = await self._work_out(page, profile)
        except (StudioError, OSError) as error:
            self._texts[key] = Content.styled(clean(error, 600), "$error")
        finally:
            self._asking.discard(key)
        if self.is_attached:
            self.show(self.studio.snapshot)

    async def _work_out(self, page: str, profile: str) -> Any:
        if page == "library":
            found = await twin("kernels", "status", timeout_s=120)
            return status_text(found, await in_thread(proofs), time.time())
        if not profile:
            return "There is no profile yet; n on the home screen makes one."
        shapes = paths.private_dir(paths.cache_dir()) / f"shapes-{profile}.json"
        if page == "shapes" or not shapes.exists():
            found = await twin("kernels", "shapes", profile, "--no-count", "--out", str(shapes))
            self._texts["shapes", profile] = shapes_text(found, self.studio.machine.ui.ascii)
        if page == "shapes":
            return self._texts["shapes", profile]
        return plan_text(await twin("kernels", "plan", "--shapes", str(shapes)))

    # Keys

    def why_not(self, action: str) -> str | None:
        """Reasons."""
        if action == "profile" and self.page not in OF_A_PROFILE:
            return "Shapes and plan are of a profile; this page is of the machine."
        if action == "tune":
            if self._is_live():
                return "A tuning job runs already; the tuning page shows it."
            if not self.studio.machine.kernels.tensile:
                return "No Tensile is set: bc250studio settings set kernels.tensile FOLDER (docs/kernels.md)."
            if not self.profile:
                return "There is no profile whose products could be tuned."
        if action == "stop" and not self._is_live():
            return "No tuning job runs."
        if action == "log" and self.job is None:
            return "There is no tuning job yet."
        return None

    def action_turn(self, direction: int) -> None:
        """Another page, from its top."""
        self.page = PAGES[(PAGES.index(self.page) + direction) % len(PAGES)]
        self.query_one(VerticalScroll).scroll_home(animate=False)
        self._ask()
        self.show(self.studio.snapshot)
        self.refresh_bindings()

    def action_profile(self, direction: int) -> None:
        """Another profile."""
        if self._profiles:
            at = self._profiles.index(self.profile) if self.profile in self._profiles else 0
            self.profile = self._profiles[(at + direction) % len(self._profiles)]
            self._ask()
            self.show(self.studio.snapshot)

    def action_look(self) -> None:
        """Forget what this page said and ask again."""
        self._texts.pop(self._key(), None)
        if self.page == "plan":  # the profile may have changed: its products come first
            (paths.cache_dir() / f"shapes-{self.profile}.json").unlink(missing_ok=True)
        self._ask()
        self.show(self.studio.snapshot)
        self.studio.watcher.hurry()

    def action_tune(self) -> None:
        """As a job of its own, after a question."""

        async def answered(yes: bool | None) -> None:
            if yes:
                self.notify("Starting ...")
                words = ("kernels", "tune", self.profile, "--detach")
                if await self.attempt(lambda: twin(*words)) is not None:
                    self.page = "tuning"
                self.studio.watcher.hurry()

        question = f"Tune the products of {clean(self.profile, 40)}?"
        details = "The board is busy for hours (the plan page estimates it). It can be stopped and goes on later."
        self.app.push_screen(Confirm(question, details, yes="Tune", no="Not now"), answered)

    def action_stop(self) -> None:
        """Ends the part that runs; finished parts are kept."""
        job = self.job

        async def answered(yes: bool | None) -> None:
            if yes and job is not None:
                await self.attempt(lambda: in_thread(control.ask, job, "stop"))
                self.notify(f"Asked to stop. Go on with: bc250studio kernels tune --again {job.name}", markup=False)

        self.app.push_screen(Confirm("Stop tuning?", "Finished parts are kept.", yes="Stop", no="Go on"), answered)

    def action_log(self) -> None:
        """The job's log, as the client wrote it."""
        if self.job is not None:
            self.studio.go("log", self.job.path / "logs" / "tune.log")


def proofs() -> list[dict[str, Any]]:
    """The newest proofs on file."""
    folder = paths.data_dir() / "kernels" / "proofs"
    found = [read_json(file) for file in folder.glob("*.json")]
    return sorted((r for r in found if r.get("verdict")), key=_when, reverse=True)[:PROOFS_SHOWN]


def _when(record: dict[str, Any]) -> float:
    t = record.get("t")
    return float(t) if isinstance(t, (int, float)) else 0.0


SCREEN = KernelsScreen
