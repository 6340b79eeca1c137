"""What all screens share: the top line, the footer, snapshots, and keys that say why they do nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Footer

from bc250studio.errors import StudioError, clean
from bc250studio.jobs import JobFolder
from bc250studio.ui.follow import RunView
from bc250studio.ui.numbers import size
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets.line import Line
from bc250studio.ui.widgets.topline import TopLine, board_text, summary_text

if TYPE_CHECKING:
    from bc250studio.ui.app import StudioApp

Result = TypeVar("Result")
COPIED_MOST = 48 * 1024
"""Characters; terminals take less than 100 kB by OSC 52."""


class StudioScreen(Screen[Result]):
    """A screen of the app. Subclasses give ``place``, ``body`` and ``show``; ``why_not`` greys out keys."""

    place = ""
    narrow_footer = False
    """True for screens with more keys than 80 columns hold at the usual spacing."""
    changes_things = frozenset[str]()
    """Actions that a read-only watcher may not take."""
    BINDINGS = [
        Binding("escape", "back", "Back", show=False, id="back", tooltip="Return to the screen before"),
        Binding("backspace", "back", "Back", show=False, id="back.too"),
        Binding("y", "copy", "Copy", show=False, id="copy", tooltip="Copy what this screen says to your clipboard"),
    ]
    DEFAULT_CSS = """
    StudioScreen { layout: vertical; background: $background; }
    StudioScreen .tiny { display: none; }
    StudioScreen.-tiny > .body { display: none; }
    StudioScreen.-low > .body { display: none; }
    StudioScreen.-tiny Footer, StudioScreen.-low Footer { display: none; }
    StudioScreen.-tiny > .tiny, StudioScreen.-low > .tiny { display: block; height: auto; }
    StudioScreen .head { height: 1; text-style: bold; color: $text-muted; padding: 0 1; }
    StudioScreen .note { height: auto; padding: 0 1; color: $text-muted; }
    StudioScreen .bad { color: $error; text-style: bold; }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (60, "-narrow"), (100, "-wide"), (140, "-huge")]
    VERTICAL_BREAKPOINTS = [(0, "-low"), (16, "-short"), (34, "-high")]

    @property
    def studio(self) -> StudioApp:
        """The app, typed."""
        return cast("StudioApp", self.app)

    def compose(self) -> ComposeResult:
        """Top line, one-line summary for tiny terminals, body, footer."""
        yield TopLine(self.place)
        yield Line(classes="tiny", id="tiny")
        with Widget(classes="body") as body:
            body.styles.height = "1fr"
            body.styles.layout = "vertical"
            yield from self.body()
        yield Footer(show_command_palette=False, compact=self.narrow_footer)

    def body(self) -> Iterable[Widget]:
        """The screen's own widgets."""
        return ()

    def show(self, snapshot: Snapshot) -> None:
        """Assign what a snapshot says. Called on arrival and at every tick while on top."""

    ready = False

    def on_mount(self) -> None:
        """All widgets are there now."""
        self.ready = True

    def observe(self, snapshot: Snapshot) -> None:
        """Top line and tiny summary, then the screen's own part."""
        if not self.ready or self.query_one_optional(TopLine) is None or self.query_one_optional(Footer) is None:
            return  # not composed yet, or already being taken apart
        run = snapshot.run
        labels = [f"RECORDING: {run.recording}"] if run is not None and run.recording else []
        labels += ["READ-ONLY"] if self.studio.read_only else []
        self.query_one(TopLine).show(
            label=" ".join(labels), board=board_text(snapshot.readings, snapshot.sensors_error)
        )
        self.query_one("#tiny", Line).show(summary_text(snapshot))
        self.show(snapshot)
        self.refresh_reasons()

    def on_screen_resume(self) -> None:
        """Coming back shows the newest snapshot at once."""
        self.call_after_refresh(self._observe_newest)

    def _observe_newest(self) -> None:
        if self.is_current:
            self.observe(self.studio.snapshot)

    # Keys that say why

    def why_not(self, action: str) -> str | None:
        """A sentence when ``action`` cannot be done now; None when it can."""
        return None

    def _why(self, action: str) -> str | None:
        if self.studio.read_only and action in self.changes_things:
            return "The app was opened with --readonly; it only watches."
        if action == "copy" and not self.copied():
            return "There is nothing to copy on this screen."
        return self.why_not(action)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Greyed out, never hidden."""
        return None if self._why(action) else True

    def refresh_reasons(self) -> None:
        """Redraw the footer only when a key became possible or impossible."""
        now = tuple(bool(self._why(b.action)) for b in self._own_bindings())
        if now != getattr(self, "_reasons", None):
            self._reasons = now
            self.refresh_bindings()

    def _own_bindings(self) -> list[Binding]:
        return [b for b in type(self).BINDINGS if isinstance(b, Binding)]

    def on_key(self, event: events.Key) -> None:
        """A key that is greyed out says why."""
        active = self.active_bindings.get(event.key)
        if active is not None and not active.enabled:
            reason = self._why(active.binding.action)
            if reason:
                event.stop()
                self.notify(reason, severity="warning", markup=False)

    def copied(self) -> str:
        """What ``y`` copies; empty when there is nothing. A page of text copies itself."""
        page = self.query_one_optional("#text", Line)
        return page.plain if page is not None else ""

    def action_copy(self) -> None:
        """By OSC 52, to the clipboard of the machine the user sits at; the end of a text that is too long."""
        text = self.copied()[-COPIED_MOST:]
        self.app.copy_to_clipboard(text)
        self.notify(f"Sent {size(len(text.encode()))} to your terminal's clipboard (OSC 52).", markup=False)

    def show_help(self) -> None:
        """All keys, with what they do and why they cannot."""
        from bc250studio.ui.screens.help import HelpScreen

        entries = []
        for active in self.active_bindings.values():
            binding = active.binding
            if binding.description and binding.id and not binding.system:
                keys = self.app.get_key_display(binding)
                what = binding.tooltip or binding.description
                entries.append((keys, what, self._why(binding.action) or ""))
        self.app.push_screen(HelpScreen(self.place, entries))

    def action_back(self) -> None:
        """Return to the screen before; the first screen stays."""
        if len(self.app.screen_stack) > 2:
            self.dismiss()

    def complain(self, error: BaseException) -> None:
        """An error as one sentence; the traceback is in the log."""
        self.studio.complain(error)

    async def attempt(self, work: Callable[[], Any]) -> Any:
        """Call, and show the sentence of an error that is meant for the user; None then."""
        try:
            outcome = work()
            return await outcome if hasattr(outcome, "__await__") else outcome
        except (StudioError, OSError) as error:
            self.complain(error)
            return None


class JobScreen(StudioScreen[Result]):
    """A screen about one job: snapshots follow the job while it is on top, and ``run`` is its newest view."""

    job: JobFolder
    under: JobFolder | None = None
    """An earlier run to be followed beside it."""

    def on_screen_resume(self) -> None:
        """Follow this run again after others were looked at."""
        self.studio.watcher.follow(self.job, self.under)
        super().on_screen_resume()

    @property
    def run(self) -> RunView | None:
        """The newest view of this run, None before the first."""
        view = self.studio.snapshot.run
        return view if view is not None and view.job.path == self.job.path else None


class Dialog(ModalScreen[Result]):
    """A small window over a screen; escape leaves it, and so does another key."""

    DEFAULT_CSS = """
    Dialog { align: center middle; }
    Dialog > Vertical { width: 70; max-width: 96%; height: auto; max-height: 90%; padding: 1 2;
        background: $surface; border: round $primary; }
    Dialog .title { text-style: bold; height: auto; }
    """
    BINDINGS = [Binding("escape", "leave", "Close", show=False, id="dialog.close")]

    def action_leave(self) -> None:
        """Close without a result."""
        self.dismiss(None)


def sentence(error: BaseException) -> str:
    """The text of an error, safe to show."""
    return clean(str(error) or type(error).__name__, 600)
