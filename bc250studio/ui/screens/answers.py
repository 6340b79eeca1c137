"""Answers: what the model said to one held-out question at each evaluation, the newest first, in full."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget

from bc250studio.errors import clean
from bc250studio.jobs import JobFolder
from bc250studio.ui.follow import RunView
from bc250studio.ui.numbers import fixed
from bc250studio.ui.screens.base import JobScreen
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets.line import Line


class AnswersScreen(JobScreen[None]):
    """A page that grows at the top while the run is followed."""

    place = "Answers"
    DEFAULT_CSS = """
    AnswersScreen VerticalScroll { height: 1fr; padding: 0 1; }
    AnswersScreen #text { height: auto; }
    """

    def __init__(self, job: JobFolder) -> None:
        super().__init__()
        self.job = job
        self.place = f"Answers ▸ {clean(job.name, 40)}"

    def body(self) -> Iterable[Widget]:
        """Text."""
        with VerticalScroll(can_focus=True):
            yield Line(id="text")

    def on_mount(self) -> None:
        """Keys scroll the page."""
        super().on_mount()
        self.query_one(VerticalScroll).focus()

    def show(self, snapshot: Snapshot) -> None:
        """All samples."""
        run = self.run
        if run is not None:
            self.query_one("#text", Line).show(answers_text(run))


def answers_text(run: RunView) -> Content:
    """Question, then step, held-out loss and answer; a question is said again only when it is another one."""
    losses = dict(run.evaluations)
    parts: list[Any] = []
    asked = None
    for sample in reversed(run.told.samples):
        if sample.prompt != asked:
            asked = sample.prompt
            parts += [("Asked  ", "bold"), f"{asked}\n\n"]
        loss = losses.get(float(sample.step))
        known = f", held-out loss {fixed(loss)}" if loss is not None else ""
        when = f"After step {sample.step}" if sample.step else "Before training"
        parts.append((f"{when}{known}", "bold"))
        parts += ["\n", (f"{sample.answer.strip() or '(nothing)'}\n\n", "$accent")]
    return Content.assemble(*parts) if parts else Content("There is no sample answer yet.")


SCREEN = AnswersScreen
