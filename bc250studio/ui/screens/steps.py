"""Export and serve: the steps from adapter to answers, each with its state, time and result; each rerunnable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget

from bc250studio import pipeline
from bc250studio.errors import StudioError, clean
from bc250studio.jobs import JobFolder
from bc250studio.ui.background import in_thread, twin
from bc250studio.ui.follow import RunView
from bc250studio.ui.numbers import duration, fixed, number, size
from bc250studio.ui.screens.base import JobScreen
from bc250studio.ui.screens.confirm import AskText
from bc250studio.ui.stage_words import table
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets.line import Line
from bc250studio.ui.widgets.rows import Rows
from bc250studio.ui.words import GLYPHS, STYLES, hanging, stage_note

GOOD = ("done", "passed")
WHAT = {
    "train": "train the adapter",
    "export": "write it as GGUF",
    "reference": "write down what the trained model says",
    "serve": "start llama-server with it",
    "prove": "compare what is served with what was trained",
    "ask": "put questions to base and tuned",
}


class StepsScreen(JobScreen[None]):
    """The stages of one run."""

    place = "Export and serve"
    changes_things = frozenset({"start", "rerun", "merged"})
    BINDINGS = [
        Binding("e", "start", "Start", id="steps.start", tooltip="Do the steps that are not done or no longer fit"),
        Binding(
            "r", "rerun", "Rerun", id="steps.rerun", tooltip="Do the step under the cursor and those after it again"
        ),
        Binding("c", "chat", "Chat", id="steps.chat", tooltip="Chat with base and tuned model"),
        Binding("m", "merged", "Merged", id="steps.merged", tooltip="Also write one merged file, adapter inside"),
        Binding(
            "y", "copy_tunnel", "Copy tunnel", id="steps.tunnel", tooltip="Copy the ssh tunnel line to your clipboard"
        ),
        Binding("l", "log", "Log", show=False, id="steps.log", tooltip="The pipeline's log"),
    ]
    DEFAULT_CSS = """
    StepsScreen #stages { height: 7; }
    StepsScreen #now { height: 1; padding: 0 1; }
    StepsScreen #results { height: 1fr; padding: 0 1; border-top: solid $panel; }
    StepsScreen #results Line { height: auto; }
    """

    def __init__(self, job: JobFolder, begin: bool = False) -> None:
        super().__init__()
        self.job = job
        self.begin = begin
        self.place = f"Export and serve ▸ {clean(job.name, 34)}"

    def body(self) -> Iterable[Widget]:
        """Steps, what goes on, results."""
        yield Rows("step", "state", "time", "result", id="stages")
        yield Line(id="now")
        with VerticalScroll(id="results"):
            yield Line(id="proof")
            yield Line(id="answers")

    async def on_mount(self) -> None:  # type: ignore[override]
        """Opened by ``e``: begin where nothing hinders."""
        if self.begin:
            self.call_after_refresh(self._begin)

    async def _begin(self) -> None:
        if self.begin and self.run is not None and self._why("start") is None and self._open_stages():
            self.begin = False
            await self.action_start()

    def show(self, snapshot: Snapshot) -> None:
        """States from the stage records, the present one from the run's state."""
        run = self.run
        if run is None:
            return
        self.query_one("#stages", Rows).show([(name, _cells(name, run)) for name in pipeline.STAGES])
        self.query_one("#now", Line).show(_now(run))
        self.query_one("#proof", Line).show(_proof(run))
        self.query_one("#answers", Line).show(_answers(run))
        if self.begin:
            self.call_later(self._begin)

    def _open_stages(self) -> list[str]:
        run = self.run
        if run is None:
            return []
        wanted = [name for name in pipeline.STAGES if run.stages.get(name, {}).get("verdict") not in GOOD]
        if "serve" not in wanted and not run.server:
            wanted = [name for name in pipeline.STAGES if name in wanted or name == "serve"]
        return wanted

    def why_not(self, action: str) -> str | None:
        """Reasons."""
        run = self.run
        if run is None:
            return "The run has not been read yet."
        if action in self.changes_things and run.from_the_future:
            return "This run was written by a newer bc250studio; update before changing it."
        if action in ("start", "rerun") and run.standing.live:
            return f"The run is {run.standing.phase} now; its steps go on by themselves."
        if action == "merged" and run.stages.get("train", {}).get("verdict") not in GOOD:
            return "Nothing has been trained yet."
        if action == "start" and not self._open_stages():
            return "All steps are done; r does the one under the cursor again."
        if action in ("chat", "copy_tunnel") and not run.server:
            return "Nothing is served yet."
        return None

    async def action_start(self) -> None:
        """The steps that are missing, in order; what is done and unchanged is kept by the pipeline."""
        wanted = self._open_stages()
        first = pipeline.STAGES.index(wanted[0]) if wanted else 1
        await self._go_on(pipeline.STAGES[first:])

    async def action_rerun(self) -> None:
        """From the step under the cursor on."""
        chosen = self.query_one("#stages", Rows).chosen or "export"
        stages = pipeline.STAGES[pipeline.STAGES.index(chosen) :]
        record = self.job.path / "stages" / f"{chosen}.json"
        await in_thread(lambda: record.unlink(missing_ok=True))
        await self._go_on(stages)

    async def _go_on(self, stages: Any) -> None:
        self.notify(f"Starting: {', '.join(stages)}")
        await self.attempt(lambda: in_thread(pipeline.go_on, self.job, stages))
        self.studio.watcher.hurry()

    def action_chat(self) -> None:
        """Chat."""
        self.studio.go("chat", self.job)

    async def action_copy_tunnel(self) -> None:
        """By OSC 52, to the clipboard of the machine the user sits at."""
        line = await self.attempt(lambda: in_thread(tunnel_line, self.job))
        if line:
            self.app.copy_to_clipboard(line)
            self.notify(f"Copied: {line}", markup=False)

    def action_merged(self) -> None:
        """One file with the adapter inside, beside what is there; asks for its number type."""

        def typed(quantisation: str | None) -> None:
            if quantisation is not None:
                self.run_worker(self._merge(quantisation.strip()), exclusive=True, exit_on_error=False)

        details = "f16, q8_0, q4_k_m ...; empty keeps the base file's type. It is not served by itself."
        self.app.push_screen(AskText("Number type of the merged file", "", details), typed)

    async def _merge(self, quantisation: str) -> None:
        words = ["export", str(self.job.path), "--kind", "merged", "--out", str(self.job.path / "export" / "merged")]
        words += ["--quantisation", quantisation] if quantisation else []
        self.notify("Writing the merged file ...")
        try:
            record = await twin(*words, timeout_s=3600)
        except StudioError as error:
            self.complain(error)
            return
        self.notify(f"{record.get('path')}  {size(record.get('size_bytes'))}", timeout=15, markup=False)

    def action_log(self) -> None:
        """What the stages wrote."""
        self.studio.go("log", self.job.path / "logs" / "pipeline.log")


def tunnel_line(job: JobFolder) -> str:
    """What to type at the machine you sit at."""
    from bc250studio.serve import server

    found = server.read(job)
    return server.tunnel_lines(found)["tunnel"] if found is not None else ""


def _cells(name: str, run: RunView) -> tuple[Any, ...]:
    record = run.stages.get(name, {})
    running = run.standing.live and run.state.get("stage") == name
    if running:
        word, note = "running", clean(run.state.get("stage_text") or run.standing.phase, 60)
        done, total = run.state.get("stage_done"), run.state.get("stage_total")
        if name == "train" and run.state.get("steps"):
            note = f"step {run.state.get('step')}/{run.state.get('steps')}"
        elif total:
            note = f"{100 * (done or 0) / total:3.0f} % {note}"
    elif record:
        word = clean(record.get("verdict") or "?", 12)
        note = stage_note(name, record) if word in GOOD or name == "prove" else clean(record.get("error") or "", 200)
    else:
        word, note = "waiting", WHAT[name]
    state = Content.styled(f"{GLYPHS.get(word, '·')} {word}", STYLES.get(word, "dim"))
    took = duration(record.get("seconds")) if record and not running else ""
    return name, _Word(state), took, note


class _Word(Content):
    """Content that compares and measures by its text, for tables."""

    def __init__(self, content: Content) -> None:
        super().__init__(content.plain, list(content.spans))

    def __str__(self) -> str:
        return self.plain


def _now(run: RunView) -> Any:
    state = run.state
    if run.standing.live:
        age = f" (news {duration(run.standing.age_s)} old)" if run.standing.age_s > 5 else ""
        text = clean(state.get("stage_text") or run.standing.phase, 120)
        return Content.assemble(("▶ ", "bold $primary"), (f"{clean(state.get('stage') or '', 12)} ", "bold"), text, age)
    if state.get("error"):
        return Content.styled(clean(state["error"], 300), "bold $error")
    if run.stages.get("prove", {}).get("verdict") == "passed":
        further = "c opens the chat." if run.server else "The server has ended; e starts it again."
        return Content.styled(f"✓ Served is what was trained. {further}", "bold $success")
    return Content.styled(f"{run.standing.verdict}; e does what is missing.", "dim")


def _proof(run: RunView) -> Any:
    record = run.stages.get("prove") or {}
    proof = record.get("proof")
    if not isinstance(proof, dict):
        return ""
    passed = record.get("verdict") == "passed"
    head = "✓ served = trained" if passed else "✗ SERVED IS NOT WHAT WAS TRAINED"
    price = table(proof, "price")
    ids = {True: "equal", False: "DIFFERENT"}.get(proof.get("ids_equal"), "not compared")  # type: ignore[arg-type]
    parts: list[Any] = [
        (head, "bold $success" if passed else "bold $error"),
        _pair("same adapter", f"mean KL {number(proof.get('mean_kl'))} nats (limit {number(proof.get('limit_kl'))})"),
        _pair("", f"worst {number(proof.get('worst_kl'))}, top-1 {fixed(proof.get('top1'))}"),
        _pair("held-out", f"{number(proof.get('tokens'))} tokens compared"),
        _pair("token ids", ids),
        _pair("price", f"{number(price.get('mean_kl'))} nats against the training weights (shown, not judged)"),
    ]
    if proof.get("cause"):
        parts.append((_pair("cause", clean(proof["cause"], 200)), "$error"))
    return Content.assemble(*parts, "\n")


def _pair(name: str, text: str) -> str:
    return f"\n  {name:<14}{text}"


def _answers(run: RunView) -> Any:
    answers = (run.stages.get("ask") or {}).get("answers")
    if not isinstance(answers, list):
        return ""
    parts: list[Any] = []
    for answer in answers:
        parts.append((f"? {clean(answer.get('prompt') or '', 300)}\n", "bold"))
        for side in ("base", "tuned"):
            said = answer.get(side) or {}
            text = hanging(" " * 8, " ".join(clean(said.get("text") or "", 600).split()), 76).lstrip()
            parts += [(f"  {side:<6}", "$success" if side == "tuned" else "dim"), f"{text}\n"]
    return Content.assemble(*parts)


SCREEN = StepsScreen
