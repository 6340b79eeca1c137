"""New fine-tune, last: what will happen, what it needs, and everything that is not default."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget

from bc250studio import pipeline, profiles
from bc250studio.errors import StudioError, clean
from bc250studio.jobs import JobFolder
from bc250studio.ui.background import in_thread, twin
from bc250studio.ui.draft import Draft, shown
from bc250studio.ui.screens import review_words
from bc250studio.ui.screens.wizard import WizardScreen
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets.line import Line
from bc250studio.ui.widgets.topline import board_text


class ReviewScreen(WizardScreen):
    """Start the whole way, only the training, or a rehearsal in two steps."""

    step = "review"
    narrow_footer = True
    changes_things = frozenset({"start", "train", "rehearse", "queue", "save"})
    BINDINGS = [
        Binding("s", "start", "Start", id="review.start", tooltip="Train, export, serve, prove and ask"),
        Binding("t", "train", "Train", id="review.train", tooltip="Only train; e exports and serves later"),
        Binding(
            "h", "rehearse", "Rehearse", id="review.rehearse", tooltip="Everything in two steps, before a long run"
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

    def body(self) -> Iterable[Widget]:
        """One page."""
        yield Line(self.way(), id="way")
        with VerticalScroll(can_focus=True):
            yield Line("looking at model, data, memory and export ...", id="found")
            yield Line(id="machine")
            yield Line(id="changed")

    def on_mount(self) -> None:
        """What is known at once, then what must be looked up."""
        self.query_one(VerticalScroll).focus()
        self.query_one("#changed", Line).show(_changed(self.draft))
        self.run_worker(self._look(), exclusive=True, exit_on_error=False)

    async def _look(self) -> None:
        resolved = self.draft.resolved()
        parts: list[Content] = []
        for name, look in review_words.LOOKS.items():
            try:
                parts.append(await in_thread(look, resolved))
            except (StudioError, OSError) as error:
                parts.append(Content.assemble((f"{name:<10}", "bold"), (clean(error, 400), "$error"), "\n"))
            except Exception as error:
                self.studio.complain(error)
                parts.append(Content(f"{name:<10}cannot be said: {type(error).__name__}\n"))
            self._found(parts)
        try:
            profile = str(await in_thread(self.draft.file))
            fit = await twin("models", "fit", resolved.profile.model.base, "--profile", profile, timeout_s=120)
            parts.append(review_words.memory(fit))
            self._found(parts)
            parts.append(review_words.rows(await twin("data", "check", "--profile", profile), resolved))
        except StudioError as error:
            parts.append(Content.styled(f"{clean(error, 400)}\n", "$error"))
        self._found(parts)

    def _found(self, parts: list[Content]) -> None:
        found = self.query_one_optional("#found", Line)
        if found is not None:
            found.show(Content.assemble(*parts))

    def show(self, snapshot: Snapshot) -> None:
        """How warm the board is now."""
        live = snapshot.live
        text = f"board     {board_text(snapshot.readings, snapshot.sensors_error)}"
        if live is not None:
            text += f"\n{live.name} is live; a second run shares the board with it."
        self.query_one("#machine", Line).show(text)

    def why_not(self, action: str) -> str | None:
        """Reasons."""
        if action in ("start", "train", "rehearse", "queue") and self._starting:
            return "It is being started."
        if action == "next":
            return "This is the last page: s starts, t only trains, h rehearses."
        return None

    def action_start(self) -> None:
        """The whole way."""
        self._launch(self.draft.resolved(), pipeline.STAGES)

    def action_train(self) -> None:
        """Only the training."""
        self._launch(self.draft.resolved(), ("train",))

    def action_rehearse(self) -> None:
        """Two steps of everything."""
        from bc250studio.pipeline.rehearsal import rehearsed

        short = rehearsed(self.draft.resolved())
        self._launch(short, pipeline.STAGES, f"{self.draft.name}-rehearsal", kind="rehearsal")

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
            self.notify(f"{resolved.name} waits its turn; {name} works on the queue.", markup=False)
            self.studio.action_home()

    def action_modify(self) -> None:
        """To the recipe."""
        self.studio.go("recipe", self.draft)

    def _launch(
        self, resolved: profiles.Resolved, stages: tuple[str, ...], title: str = "", kind: str = "train"
    ) -> None:
        self._starting = True
        self.refresh_reasons()
        self.notify("Starting ...", timeout=2)
        self.run_worker(self._start(lambda: pipeline.launch(resolved, stages, title, kind)), exit_on_error=False)

    async def _start(self, work: Callable[[], JobFolder]) -> None:
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
        self.studio.action_home()
        self.studio.open_run(job)
        self.studio.watcher.hurry()


def _changed(draft: Draft) -> Content:
    resolved = draft.resolved()
    profile = resolved.profile
    parts: list[Any] = []
    if profile.model.trust_remote_code:
        parts.append(("! Python code that comes with the model will run (model.trust_remote_code).\n", "bold $error"))
    if profile.serve.host not in ("127.0.0.1", "::1", "localhost"):
        parts.append((f"! The server will listen on {clean(profile.serve.host, 60)}, not only here.\n", "bold $error"))
    parts.append(("\nNot default\n", "bold"))
    for key, (value, origin) in draft.not_default().items():
        parts += [f"  {key:<26}", (clean(shown(value), 34), "bold"), (f"  {clean(origin, 40)}\n", "dim")]
    return Content.assemble(*parts)


SCREEN = ReviewScreen
