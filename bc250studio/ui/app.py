"""The app: one watcher thread, a stack of screens, and nothing that must be saved when it dies.

Every run is a detached process with a folder; the app starts runs through ``pipeline`` and otherwise
only reads. Leaving it, losing the line or killing it changes nothing but the view.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

from textual import constants
from textual.app import SystemCommand
from textual.binding import Binding
from textual.screen import Screen

from bc250studio import settings
from bc250studio.errors import BadInput, StudioError, clean
from bc250studio.jobs import JobFolder
from bc250studio.paths import command
from bc250studio.ui import calls, log, survival
from bc250studio.ui.terminal import TerminalApp
from bc250studio.ui.watch import Observed, Snapshot, Watcher

FALLBACK_THEME = "textual-dark"


class StudioApp(TerminalApp):
    """bc250studio in a terminal."""

    TITLE = "bc250studio"
    ENABLE_COMMAND_PALETTE = True
    COMMAND_PALETTE_BINDING = "colon"
    BINDINGS = [
        Binding("question_mark", "help", "Help", id="help", tooltip="All keys of this screen"),
        Binding("q", "detach", "Quit", id="quit", tooltip="Leave the app; a live run goes on"),
        Binding("ctrl+q", "detach", "Quit", show=False, id="quit.too", priority=True),
        Binding("1", "home", "Home", show=False, id="go.home", tooltip="Home: live run, profiles, runs"),
        Binding("2", "go_run", "Run", show=False, id="go.run", tooltip="The live run, or the last one"),
        Binding("3", "go_chat", "Chat", show=False, id="go.chat", tooltip="Chat with a served model"),
        Binding("4", "go_kernels", "Kernels", show=False, id="go.kernels", tooltip="Tuned matrix kernels"),
        Binding("5", "go_system", "System", show=False, id="go.system", tooltip="Sensors, doctor, settings"),
        Binding("6", "go_log", "Log", show=False, id="go.log", tooltip="The app's own log"),
        Binding(
            "b",
            "low_bandwidth",
            "Thin line",
            show=False,
            id="bandwidth",
            tooltip="Slower refresh and 16 colours for thin lines, and back",
        ),
        Binding("f5", "redraw", "Redraw", show=False, id="redraw", tooltip="Draw the whole screen again"),
    ]
    CSS: ClassVar[str] = """
    Toast { max-width: 76; }
    Footer { background: $panel; }
    VerticalScroll, Rows, DirectoryTree { scrollbar-size-vertical: 1; scrollbar-size-horizontal: 1; }
    """

    def __init__(
        self,
        read_only: bool = False,
        job: JobFolder | None = None,
        interval_s: float = 1.0,
        machine: settings.Settings | None = None,
    ) -> None:
        super().__init__()
        self.read_only = read_only
        self.first_job = job
        self.snapshot = Snapshot()
        self.machine, self._complaints = (machine, []) if machine else _load_settings()
        self.thin = self.machine.ui.low_bandwidth == "on"
        self._interval_s = interval_s
        self.watcher = Watcher(
            self.post_message, interval_s, lost_terminal=survival.hung_up if _stdin_is_terminal() else None
        )
        self.peeking: JobFolder | None = None
        self._seen: dict[str, calls.Seen] = {}

    def on_mount(self) -> None:
        """Theme, keys, the first screen, and the watcher last."""
        self._take_theme()
        self._take_keymap()
        self.push_screen(self._screen("home"))
        if self.first_job is not None:
            self.open_run(self.first_job)
        self.set_thin(self.thin)
        self.watcher.start()
        self.call_after_refresh(self._first_frame_is_there)
        for sentence in self._complaints:
            self.notify(sentence, severity="warning", timeout=10, markup=False)
        if self._line_may_be_thin():
            self.notify(
                "This terminal names no COLORTERM. On a slow line press b: fewer updates, 16 colours.", timeout=6
            )

    def _first_frame_is_there(self) -> None:
        """What has been imported stays for good; the collector need not look through it again and again."""
        if not self.is_headless:
            gc.freeze()
            gc.enable()

    def on_unmount(self) -> None:
        """Let the watcher go; it is a daemon and is not waited for."""
        self.watcher.stop()
        self.restore_window_title()

    # What is seen

    def on_observed(self, message: Observed) -> None:
        """Keep the snapshot and hand it to the screen on top."""
        from bc250studio.ui.screens.base import StudioScreen

        self.snapshot = message.snapshot
        calls.on_change(self, self._seen, message.snapshot)
        if not self.screen_stack:
            return  # the last news of the watcher, while the app is closing
        if isinstance(self.screen, StudioScreen):
            self.screen.observe(message.snapshot)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The palette (ctrl+p or :): every key of the screen by its words, then places, then Textual's own."""
        for active in screen.active_bindings.values():
            binding = active.binding
            if binding.id and binding.description and binding.tooltip and active.enabled:
                yield SystemCommand(
                    binding.description, binding.tooltip, partial(self._run_command, active.node, binding.action)
                )
        yield from super().get_system_commands(screen)

    async def _run_command(self, node: Any, action: str) -> None:
        await self.run_action(action, default_namespace=node)

    # Going places

    def _screen(self, name: str, *arguments: Any) -> Screen[Any]:
        """Screens are imported when first needed; the first frame waits for none of them but home."""
        from importlib import import_module

        module = import_module(f"bc250studio.ui.screens.{name}")
        return module.SCREEN(*arguments)  # type: ignore[no-any-return]

    def go(self, name: str, *arguments: Any) -> None:
        """Show a screen above the present one; the same screen is not stacked twice."""
        top = self.screen
        if type(top).__module__.endswith(f".{name}") and not arguments:
            return
        self.push_screen(self._screen(name, *arguments))

    def open_run(self, job: JobFolder) -> None:
        """Follow a job and show it: attaching is the normal way to look at anything."""
        self.watcher.follow(job)
        self.go("training", job)

    def action_home(self) -> None:
        """Back to the first screen."""
        while len(self.screen_stack) > 2:
            self.pop_screen()

    def action_go_run(self) -> None:
        """The live run, or the newest."""
        row = self.snapshot.live or (self.snapshot.jobs[0] if self.snapshot.jobs else None)
        if row is None:
            self.notify("There is no run yet. Press n on the home screen for a new fine-tune.")
        else:
            self.open_run(row.standing.job)

    def action_go_chat(self) -> None:
        """Chat with the followed run's server, or the newest one that has a server."""
        run = self.snapshot.run
        jobs = [run.job] if run is not None else []
        jobs += [row.standing.job for row in self.snapshot.jobs]
        for job in jobs:
            if (job.path / "server.json").exists():
                self.go("chat", job)
                return
        self.notify("Nothing is served yet. Press e on a trained run to export and serve it.")

    def action_help(self) -> None:
        """All keys of the screen on top."""
        from bc250studio.ui.screens.base import StudioScreen

        if isinstance(self.screen, StudioScreen):
            self.screen.show_help()

    def action_go_kernels(self) -> None:
        """Kernels."""
        self.go("kernels")

    def action_go_system(self) -> None:
        """Sensors, doctor, settings."""
        self.go("system")

    def action_go_log(self) -> None:
        """The app's own log."""
        self.go("log", log.file())

    # Leaving

    def action_detach(self) -> None:
        """Leave; say that a live run goes on and how to return."""
        row = self.snapshot.live
        message = None
        if row is not None:
            message = f"{row.name} goes on. Return with: {command()}   (or: {command()} attach {row.name})"
        if self.peeking is not None:
            message = (
                f"{self.peeking.name} stands stopped for a peek. Go on with: {command()} resume {self.peeking.name}"
            )
        self.exit(message=message)

    # Manners

    def complain(self, error: BaseException) -> None:
        """One sentence on screen, everything in the log."""
        log.exception(error)
        text = str(error) if isinstance(error, (StudioError, OSError)) else f"{type(error).__name__}: {error}"
        hint = "" if isinstance(error, StudioError) else "  (6 shows the log)"
        self.notify(clean(text, 500) + hint, severity="error", timeout=12, markup=False)

    def action_low_bandwidth(self) -> None:
        """Toggle between full and thin, for this and later times."""
        self.set_thin(not self.thin)
        said = "One update every three seconds, 16 colours." if self.thin else "One update a second, full colours."
        try:
            settings.put("ui.low_bandwidth", "on" if self.thin else "off")
        except (StudioError, OSError) as error:
            self.complain(error)
            said += " It is not remembered."
        self.notify(said)

    def set_thin(self, thin: bool) -> None:
        """Refresh rate, animation and theme for the line we are on."""
        self.thin = thin
        self.watcher.interval_s = self._interval_s * (3.0 if thin else 1.0)
        self.animation_level = "none" if thin else constants.TEXTUAL_ANIMATIONS
        if thin and not self.theme.startswith("ansi"):
            self.theme = "ansi-light" if self.current_theme and not self.current_theme.dark else "ansi-dark"
        elif not thin and self.theme.startswith("ansi"):
            self._take_theme()

    def action_redraw(self) -> None:
        """After something else wrote on the terminal."""
        self.refresh(layout=True)
        self.screen.refresh(layout=True)

    def _take_theme(self) -> None:
        wanted = os.environ.get("TEXTUAL_THEME") or self.machine.ui.theme
        if wanted in self.available_themes:
            self.theme = wanted
        else:
            self.theme = FALLBACK_THEME
            self._complaints.append(f"There is no theme {clean(wanted, 40)!r}; using {FALLBACK_THEME}.")

    def _take_keymap(self) -> None:
        keymap = self.machine.ui.keymap
        if keymap:
            from bc250studio.ui import keys

            self._complaints += keys.problems(keymap, keys.known_ids() | keys.ids_of(type(self)))
            self.set_keymap(keymap)

    def _line_may_be_thin(self) -> bool:
        """A terminal that does not say it has all colours is often at the end of a long line."""
        return self.machine.ui.low_bandwidth == "auto" and "COLORTERM" not in os.environ and not self.is_web


def _load_settings() -> tuple[settings.Settings, list[str]]:
    try:
        return settings.load(), []
    except BadInput as error:
        return settings.Settings(), [f"{error} Using defaults."]


def _stdin_is_terminal() -> bool:
    import sys

    try:
        return os.isatty(sys.__stdin__.fileno())  # type: ignore[union-attr]
    except (OSError, ValueError, AttributeError):
        return False


def main(
    arguments: Sequence[str] = (), read_only: bool = False, job: JobFolder | None = None, mouse: bool = True
) -> int:
    """Run the app until the user leaves it; the exit code."""
    log.to_file()
    app = StudioApp(read_only=read_only, job=job)
    survival.install(app)
    app.run(mouse=mouse)
    if app.return_code and app.return_code != survival.TERMINATED:
        print(f"The app ended with an error. Log: {log.file()}   If the terminal looks odd, type: reset")
    return app.return_code or 0
