"""Training: live panes for loss, tokens/s and temperature, numbers beside every graph, last events."""

from __future__ import annotations

from collections.abc import Iterable

from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget

from bc250studio import pipeline
from bc250studio.errors import StudioError, clean
from bc250studio.jobs import JobFolder, control
from bc250studio.ui.background import in_thread
from bc250studio.ui.screens.base import JobScreen
from bc250studio.ui.screens.confirm import AskText, Confirm
from bc250studio.ui.screens.training_words import events_text, held_up, progress, sample_line, summary
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets import panes
from bc250studio.ui.widgets.chart import Chart
from bc250studio.ui.widgets.line import Line


class TrainingScreen(JobScreen[None]):
    """One run, live or finished; ``q`` leaves it running."""

    place = "Run"
    changes_things = frozenset({"pause", "checkpoint", "stop", "note", "export", "go_on", "peek"})
    BINDINGS = [
        Binding("p", "pause", "Pause", id="run.pause", tooltip="Pause between two steps, or go on"),
        Binding("k", "checkpoint", "Save", id="run.checkpoint", tooltip="Write a checkpoint now"),
        Binding("s", "stop", "Stop", id="run.stop", tooltip="Finish the step, save, end (asks first)"),
        Binding("e", "export", "Export", id="run.export", tooltip="Export, serve, prove: the visible steps"),
        Binding("c", "chat", "Chat", id="run.chat", tooltip="Chat with base and tuned model"),
        Binding("z", "zoom", "Zoom", id="run.zoom", tooltip="One chart over the whole screen; scrub, overlay"),
        Binding("i", "details", "Info", id="run.details", tooltip="Frozen profile, events, files, results"),
        Binding(
            "a", "answers", "Answers", show=False, id="run.answers", tooltip="Sample answers at evaluations, in full"
        ),
        Binding("l", "log", "Log", show=False, id="run.log", tooltip="The run's own logs"),
        Binding("g", "note", "Note", show=False, id="run.note", tooltip="Write a note into the run's events"),
        Binding(
            "v",
            "peek",
            "Peek",
            show=False,
            id="run.peek",
            tooltip="Stop at a checkpoint, chat with what it is so far, then go on",
        ),
        Binding(
            "u", "go_on", "Resume", show=False, id="run.resume", tooltip="Go on with a stopped, failed or lost run"
        ),
    ]
    DEFAULT_CSS = """
    TrainingScreen #progress { height: 2; padding: 0 1; }
    TrainingScreen #alert { height: auto; max-height: 3; padding: 0 1; display: none; }
    TrainingScreen #sample { height: 1; padding: 0 1; display: none; text-wrap: nowrap; text-overflow: ellipsis; }
    TrainingScreen .row { height: 1fr; min-height: 4; }
    TrainingScreen .pane { width: 1fr; height: 1fr; padding: 0 1; }
    TrainingScreen .pane Line { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    TrainingScreen #figures { height: 1fr; }
    TrainingScreen #events { height: 5; padding: 0 1; border-top: solid $panel; text-wrap: nowrap;
        text-overflow: ellipsis; }
    TrainingScreen.-high #events { height: 10; }
    TrainingScreen.-short #alert { max-height: 2; }
    TrainingScreen.-short.-with-sample #events { height: 4; }
    TrainingScreen.-short.-with-alert #events { height: 3; }
    TrainingScreen.-short.-with-alert.-with-sample #events { height: 2; }
    TrainingScreen .only-huge { display: none; }
    TrainingScreen.-huge .only-huge { display: block; }
    """

    def __init__(self, job: JobFolder) -> None:
        super().__init__()
        self.job = job
        self.place = clean(job.name, 44)

    def body(self) -> Iterable[Widget]:
        """Two rows of two panes (three at 140 columns), events below."""
        plain = self.studio.machine.ui.ascii
        yield Line(id="progress")
        yield Line(id="alert")
        with Horizontal(classes="row"):
            with Vertical(classes="pane"):
                yield Line("loss", id="loss-text")
                yield Chart(id="loss", empty="no step yet", ascii_only=plain)
            with Vertical(classes="pane"):
                yield Line("tokens/s", id="rate-text")
                yield Chart(id="rate", empty="no step yet", ascii_only=plain)
            with Vertical(classes="pane only-huge"):
                yield Line("gradient norm", id="grad-text")
                yield Chart(id="grad", empty="no step yet", ascii_only=plain)
        with Horizontal(classes="row"):
            with Vertical(classes="pane"):
                yield Line("temperature", id="temp-text")
                yield Chart(id="temp", empty="waiting for the sensors", ascii_only=plain)
            with Vertical(classes="pane"):
                yield Line("numbers", id="numbers-title")
                yield Line(id="figures")
            with Vertical(classes="pane only-huge"):
                yield Line("memory", id="memory-text")
                yield Chart(id="memory", empty="no step yet", ascii_only=plain)
        yield Line(id="sample")
        yield Line(id="events")

    def show(self, snapshot: Snapshot) -> None:
        """Assign; every widget draws only what changed."""
        run = self.run
        if run is None:
            return
        plain = self.studio.machine.ui.ascii
        self.query_one("#progress", Line).show(progress(run, self.size.width, plain))
        self._reveal("#alert", held_up(run))
        self._reveal("#sample", sample_line(run) if run.told.samples else None)
        total = panes.total_steps(run)
        for name, pane in panes.PANES.items():
            drawn = pane(run)
            self.query_one(f"#{name}-text", Line).show(drawn.numbers)
            by_step = total if name != "temp" else None
            self.query_one(f"#{name}", Chart).show(
                drawn.traces, drawn.limits, by_step, empty=drawn.empty, spans=drawn.spans
            )
        self.query_one("#numbers-title", Line).show(panes.number_title(run))
        self.query_one("#figures", Line).show(panes.figures(run, roomy=self.has_class("-high")))
        events = self.query_one("#events", Line)
        events.show(events_text(run, events.size.height or 4))

    def _reveal(self, selector: str, text: Content | None) -> None:
        """A line that takes room only while it has something to say."""
        line = self.query_one(selector, Line)
        line.display = text is not None
        self.set_class(line.display, f"-with-{line.id}")
        if text is not None:
            line.show(text)

    def copied(self) -> str:
        """Name, progress and figures."""
        run = self.run
        return summary(run) if run is not None else ""

    # Verbs

    def why_not(self, action: str) -> str | None:
        """Reasons."""
        run = self.run
        if run is None:
            return "The run has not been read yet." if action != "back" else None
        live = run.standing.live
        if action in self.changes_things and run.from_the_future:
            return "This run was written by a newer bc250studio; update before changing it."
        if action in ("pause", "checkpoint", "stop", "peek"):
            if not live:
                return f"The run is not live; it is {run.standing.verdict}."
            if action != "stop" and run.state.get("stage") not in (None, "train"):
                return f"The run is {run.standing.phase}; this works while it trains."
        if action == "answers" and not run.told.samples:
            return "There is no sample answer yet; one is made at every evaluation (train.eval_every)."
        if action == "chat" and not run.server:
            return "Nothing is served yet; press e to export and serve."
        if action == "go_on" and (live or run.standing.verdict == "done"):
            return "There is nothing to resume."
        return None

    async def _ask(self, verb: str, said: str) -> None:
        try:
            await in_thread(control.ask, self.job, verb)
        except OSError as error:
            self.complain(error)
            return
        self.notify(said)
        self.studio.watcher.hurry()

    async def action_pause(self) -> None:
        """Pause or go on."""
        run = self.run
        if run is not None and run.standing.phase == "paused":
            await self._ask("resume", "Asked the run to go on.")
        else:
            await self._ask("pause", "Asked the run to pause after this step.")

    async def action_checkpoint(self) -> None:
        """A checkpoint between two steps."""
        await self._ask("checkpoint", "Asked for a checkpoint after this step.")

    def action_stop(self) -> None:
        """Stop, after a question."""

        async def answered(yes: bool | None) -> None:
            if yes:
                await self._ask("stop", "Asked the run to finish its step, save and end.")

        self.app.push_screen(
            Confirm(
                f"Stop {self.job.name}?",
                "It finishes the step, saves a checkpoint and ends. Resume with u, or export what is there with e.",
                yes="Stop it",
                no="Let it run",
            ),
            answered,
        )

    def action_peek(self) -> None:
        """Chat in mid-training; leaving the chat goes on."""

        def answered(yes: bool | None) -> None:
            if yes:
                self.app.run_worker(self._peek(), exclusive=True, group="peek", exit_on_error=False)

        question = "Training stops at a checkpoint while you chat, and goes on when you leave the chat."
        self.app.push_screen(Confirm("Peek?", question, yes="Peek", no="Let it run"), answered)

    async def _peek(self) -> None:
        from bc250studio.ui import peek
        from bc250studio.ui.screens.chat import ChatScreen

        try:
            remaining = await peek.begin(self.job, lambda text: self.notify(text, timeout=10))
        except (StudioError, OSError) as error:
            self.complain(error)
            return
        chat = ChatScreen(self.job)
        self.studio.peeking = self.job
        await self.app.push_screen(chat)
        await peek.left(self.app, chat)
        self.studio.peeking = None
        await self.attempt(lambda: peek.end(self.job, remaining))
        self.notify("Training goes on from its checkpoint.")
        self.studio.watcher.hurry()

    def action_note(self) -> None:
        """A line for later, kept with the run."""

        async def written(text: str | None) -> None:
            if text and text.strip():
                await self.attempt(lambda: in_thread(self.job.event, "note", text.strip()))
                self.studio.watcher.hurry()

        self.app.push_screen(AskText("Note for this run"), written)

    async def action_go_on(self) -> None:
        """Resume a run that ended early."""
        run = self.run
        stages = (run.state.get("stages") if run else None) or pipeline.STAGES
        self.notify("Going on ...")
        if await self.attempt(lambda: in_thread(pipeline.go_on, self.job, stages)) is None:
            self.studio.watcher.hurry()

    def action_export(self) -> None:
        """Steps; starts them when nobody works on the run."""
        self.studio.go("steps", self.job, True)

    def action_chat(self) -> None:
        """Chat."""
        self.studio.go("chat", self.job)

    def action_answers(self) -> None:
        """What the model said at each evaluation."""
        self.studio.go("answers", self.job)

    def action_zoom(self) -> None:
        """One chart."""
        self.studio.go("zoom", self.job)

    def action_details(self) -> None:
        """Everything the folder holds."""
        self.studio.go("details", self.job)

    def action_log(self) -> None:
        """The run's newest log."""
        logs = sorted((self.job.path / "logs").glob("*.log"), key=lambda f: f.stat().st_mtime, reverse=True)
        if logs:
            self.studio.go("log", logs[0])
        else:
            self.notify("This run has written no log yet.")


SCREEN = TrainingScreen
