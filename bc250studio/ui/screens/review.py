"""New fine-tune, last: what will happen, what it needs, and everything that is not default."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget

from bc250studio import pipeline, profiles
from bc250studio.errors import StudioError, clean
from bc250studio.jobs import FINISHED, JobFolder
from bc250studio.ui.background import in_thread, twin
from bc250studio.ui.draft import Draft, shown
from bc250studio.ui.measured import Measured, newest
from bc250studio.ui.screens import review_words
from bc250studio.ui.screens.wizard import WizardScreen
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets.line import Line
from bc250studio.ui.widgets.topline import board_text
from bc250studio.ui.words import hanging


class ReviewScreen(WizardScreen):
    """Start the whole way, only the training, or a rehearsal in two steps."""

    step = "review"
    narrow_footer = True
    changes_things = frozenset({"start", "train", "rehearse", "queue", "save"})
    BINDINGS = [
        Binding("s", "start", "Start", id="review.start", tooltip="Train, export, serve, prove and ask"),
        Binding("t", "train", "Train", id="review.train", tooltip="Only train; e exports and serves later"),
        Binding(
            "h", "rehearse", "Rehearse", id="review.rehearse", tooltip="Everything in two steps with a kill between"
        ),
        Binding("w", "queue", "Queue", id="review.queue", tooltip="Run it after what runs and waits now"),
        Binding("m", "modify", "Modify", show=False, id="review.modify", tooltip="Change the recipe"),
    ]
    DEFAULT_CSS = """
    ReviewScreen VerticalScroll { height: 1fr; padding: 0 1; }
    ReviewScreen VerticalScroll Line { height: auto; }
    """

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self._starting = False
        self._looked_at: object = None

    def body(self) -> Iterable[Widget]:
        """One page."""
        yield Line(self.way(), id="way")
        with VerticalScroll(can_focus=True):
            yield Line("looking at model, data, memory and export ...", id="found")
            yield Line(id="machine")
            yield Line(id="changed")

    def on_mount(self) -> None:
        """The page scrolls by the arrow keys."""
        self.query_one(VerticalScroll).focus()

    def on_screen_resume(self) -> None:
        """Look, and look again when the draft was changed or a run (perhaps a rehearsal) has ended meanwhile."""
        self.query_one("#changed", Line).show(_changed(self.draft))
        ended = sum(row.standing.verdict in FINISHED for row in self.studio.snapshot.jobs)
        now = (self.draft.name, repr(self.draft.changes), ended)
        if now != self._looked_at:
            self._looked_at = now
            self.run_worker(self._look(), group="look", exclusive=True, exit_on_error=False)

    async def _look(self) -> None:
        resolved = self.draft.resolved()
        parts: list[Content] = []
        for name, look in review_words.LOOKS.items():
            parts.append(await self._said(name, in_thread(look, resolved)))
            self._found([*parts, Content.styled("looking ...\n", "dim")])
        tokens: list[float | None] = [None]

        async def rows() -> Content:
            profile = str(await in_thread(self.draft.file))
            text, tokens[0] = review_words.rows(await twin("data", "check", "--profile", profile), resolved)
            return text

        parts.append(await self._said("rows", rows()))
        measured = await in_thread(_measured, resolved, self.studio.snapshot)
        parts.append(review_words.time(tokens[0], measured))
        self._found(parts)

    async def _said(self, name: str, found: Awaitable[Content]) -> Content:
        """What a look found, or why it could not."""
        try:
            return await found
        except (StudioError, OSError) as error:
            text = review_words.line(name, f"✗ {clean(error, 400)}")
            return text.stylize("$error", 0, len(text.plain))
        except Exception as error:
            self.studio.complain(error)
            return review_words.line(name, f"cannot be said: {type(error).__name__} (6 shows the log)")

    def _found(self, parts: list[Content]) -> None:
        found = self.query_one_optional("#found", Line)
        if found is not None:
            found.show(Content.assemble(*parts))

    def show(self, snapshot: Snapshot) -> None:
        """How warm the board is now."""
        live = snapshot.live
        now = review_words.line("board", f"{board_text(snapshot.readings, snapshot.sensors_error)} now")
        if live is not None:
            busy = f"{clean(live.name)} is live; a second run shares the board with it. w queues this one behind it."
            now = Content.assemble(now, (hanging(" " * 10, busy, 76) + "\n", "$warning"))
        self.query_one("#machine", Line).show(now)

    def why_not(self, action: str) -> str | None:
        """Reasons."""
        if action in ("start", "train", "rehearse", "queue") and self._starting:
            return "It is being started."
        if action == "next":
            return "This is the last page: s starts, t only trains, h rehearses."
        return None

    def action_start(self) -> None:
        """The whole way."""
        self._launch(pipeline.STAGES)

    def action_train(self) -> None:
        """Only the training."""
        self._launch(("train",))

    def action_rehearse(self) -> None:
        """Two steps of everything with a kill in mid-training; conducted by a process of its own."""
        from bc250studio.pipeline import rehearsal

        resolved = self.draft.resolved()
        self._begin(lambda: rehearsal.detached(resolved), last=False)

    async def action_queue(self) -> None:
        """Behind what runs now; its runner works on without the app."""
        from bc250studio.pipeline import preflight, queue

        resolved = self.draft.resolved()

        def put() -> str:
            preflight.check(resolved, ("train",))
            queue.add(resolved)
            return queue.ensure_runner().name

        name = await self.attempt(lambda: in_thread(put))
        if name is not None:
            self.draft.forget()
            self.notify(f"{resolved.name} waits its turn; {name} works on the queue.", markup=False)
            self.studio.action_home()

    def action_modify(self) -> None:
        """To the recipe."""
        self.studio.go("recipe", self.draft)

    def _launch(self, stages: tuple[str, ...]) -> None:
        resolved = self.draft.resolved()
        self._begin(lambda: pipeline.launch(resolved, stages), last=True)

    def _begin(self, work: Callable[[], JobFolder], last: bool) -> None:
        """``last``: the draft has become a run and the way is over; else esc returns here."""
        self._starting = True
        self.refresh_reasons()
        self.notify("Starting ...", timeout=2)
        self.run_worker(self._start(work, last), exit_on_error=False)

    async def _start(self, work: Callable[[], JobFolder], last: bool) -> None:
        try:
            job: Any = await in_thread(work)
        except (StudioError, OSError) as error:
            self.complain(error)
            return
        except Exception as error:
            self.complain(error)
            return
        finally:
            self._starting = False
            self.refresh_reasons()
        if last:
            self.draft.forget()
            self.studio.action_home()
        self.studio.open_run(job)
        self.studio.watcher.hurry()


def _measured(resolved: profiles.Resolved, snapshot: Snapshot) -> Measured | None:
    """The rate of an earlier run on the device this one would take."""
    from bc250studio.board import presets

    on_gpu = resolved.profile.model.device != "cpu" and presets.detect().name != "cpu"
    return newest(resolved, snapshot.jobs, on_gpu)


def _changed(draft: Draft) -> Content:
    resolved = draft.resolved()
    profile = resolved.profile
    parts: list[Any] = []
    if profile.model.trust_remote_code:
        parts.append(("! Python code that comes with the model will run (model.trust_remote_code).\n", "bold $error"))
    if profile.serve.host not in ("127.0.0.1", "::1", "localhost"):
        parts.append((f"! The server will listen on {clean(profile.serve.host, 60)}, not only here.\n", "bold $error"))
    parts.append(("\nNot default\n", "bold"))
    changed = draft.not_default()
    for key, (value, origin) in changed.items():
        text = clean(shown(value) or "not set", 34)
        parts += [f"  {key:<26}", (f"{text:<20}", "bold"), (f"  {clean(origin, 24)}\n", "dim")]
    if not changed:
        parts.append("  nothing: all values are the defaults\n")
    return Content.assemble(*parts)


SCREEN = ReviewScreen
