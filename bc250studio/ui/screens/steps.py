"""Export and serve: the steps from adapter to answers, each with its state, time and result; each rerunnable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget

from bc250studio import pipeline
from bc250studio.errors import StudioError, clean
from bc250studio.jobs import JobFolder
from bc250studio.serve.reach import LOOPBACK
from bc250studio.ui.background import in_thread, twin
from bc250studio.ui.follow import RunView
from bc250studio.ui.numbers import duration, size
from bc250studio.ui.screens.base import JobScreen
from bc250studio.ui.screens.confirm import AskText, Confirm
from bc250studio.ui.stage_words import GOOD, answers_text, cells, now, pair, proof_text, server_alive
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets.line import Line
from bc250studio.ui.widgets.rows import Rows


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
        Binding("t", "copy_tunnel", "Tunnel", id="steps.tunnel", tooltip="Copy the ssh tunnel line to your clipboard"),
        Binding("l", "log", "Log", show=False, id="steps.log", tooltip="The pipeline's log"),
    ]
    DEFAULT_CSS = """
    StepsScreen #stages { height: 7; }
    StepsScreen #now { height: auto; max-height: 3; padding: 0 1; }
    StepsScreen #results { height: 1fr; padding: 0 1; border-top: solid $panel; }
    StepsScreen #results Line { height: auto; }
    """

    def __init__(self, job: JobFolder, begin: bool = False) -> None:
        super().__init__()
        self.job = job
        self.begin = begin
        self.place = f"Export and serve ▸ {clean(job.name, 34)}"
        self._tunnel: tuple[Any, str] = (None, "")
        self._merging = ""

    def body(self) -> Iterable[Widget]:
        """Steps, what goes on, results."""
        yield Rows("step", "state", "time", "result", id="stages", elastic=("result",))
        yield Line(id="now")
        with VerticalScroll(id="results"):
            yield Line(id="proof")
            yield Line(id="reach")
            yield Line(id="answers")

    def on_mount(self) -> None:
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
        self.query_one("#stages", Rows).show([(name, cells(name, run)) for name in pipeline.STAGES])
        self.query_one("#now", Line).show(now(run))
        self.query_one("#proof", Line).show(proof_text(run.stages, self.size.width - 4))
        self.query_one("#reach", Line).show(self._reach(run, self.size.width - 4))
        self.query_one("#answers", Line).show(answers_text(run.stages, self.size.width - 4))
        if self.begin:
            self.call_later(self._begin)

    def _reach(self, run: RunView, width: int) -> Content:
        """How to get at what is served: the tunnel, and the merged file when there is one."""
        parts = []
        if server_alive(run.server):
            if self._tunnel[0] != run.server.get("process"):
                self._tunnel = (run.server.get("process"), "")
                self.run_worker(self._find_tunnel(), exclusive=True, group="tunnel", exit_on_error=False)
            where = "this machine only" if run.server.get("host") in LOOPBACK else "OPEN TO THE NETWORK"
            parts.append(pair("served at", f"{clean(run.server.get('url'), 60)} ({where}), key in server.key", width))
            parts.append(pair("tunnel", f"{self._tunnel[1]}   (t copies it)", width))
        merged = run.stages.get("merged") or {}
        if self._merging:
            parts.append(pair("merged", self._merging, width))
        elif merged.get("path"):
            parts.append(pair("merged", f"{clean(merged['path'], 200)} · {size(merged.get('bytes'))}", width))
        elif run.stages.get("prove"):
            parts.append(pair("merged", "m writes one file, adapter inside, for programs without adapters", width))
        return Content("".join(parts).removeprefix("\n"))

    async def _find_tunnel(self) -> None:
        self._tunnel = (self._tunnel[0], await in_thread(tunnel_line, self.job))
        self.studio.watcher.hurry()

    def _open_stages(self) -> list[str]:
        run = self.run
        if run is None:
            return []
        wanted = {name for name in pipeline.STAGES if run.stages.get(name, {}).get("verdict") not in GOOD}
        if not server_alive(run.server):
            wanted.add("serve")
        return [name for name in pipeline.STAGES if name in wanted]

    def why_not(self, action: str) -> str | None:
        """Reasons."""
        run = self.run
        if run is None:
            return "The run has not been read yet." if action != "back" else None
        if action in self.changes_things and run.from_the_future:
            return "This run was written by a newer bc250studio; update before changing it."
        if action in ("start", "rerun") and run.standing.live:
            return f"The run is {run.standing.phase} now; its steps go on by themselves."
        if action == "merged":
            return self._why_not_merged(run)
        if action == "start" and not self._open_stages():
            return "All steps are done; r does the one under the cursor again."
        if action in ("chat", "copy_tunnel") and not run.server:
            return "Nothing is served yet; e starts what is missing."
        if action == "copy_tunnel" and not server_alive(run.server):
            return "The server has ended; e starts it again."
        return None

    def _why_not_merged(self, run: RunView) -> str | None:
        if self._merging:
            return "A merged file is being written."
        if run.stages.get("train", {}).get("verdict") not in GOOD:
            return "Nothing has been trained yet."
        if (run.stages.get("export", {}).get("outputs") or {}).get("kind") == "merged":
            return "This run is exported merged: its one file has everything inside."
        return None

    async def action_start(self) -> None:
        """The steps that are missing, in order; what is done and unchanged is kept by the pipeline."""
        wanted = self._open_stages()
        first = pipeline.STAGES.index(wanted[0]) if wanted else 1
        await self._go_on(pipeline.STAGES[first:])

    def action_rerun(self) -> None:
        """From the step under the cursor on; training again is asked first, because it takes long."""
        chosen = self.query_one("#stages", Rows).chosen or "export"

        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(self._again(chosen), exclusive=True, group="again", exit_on_error=False)

        if chosen == "train":
            took = duration((self.run.stages.get("train") or {}).get("seconds")) if self.run else ""
            question = Confirm(
                "Train again?",
                f"It took {took}. It goes on from the run's last checkpoint where there is one to go on from; "
                "a new run from the same recipe is r on the home screen.",
                yes="Train again",
                no="Leave it",
            )
            self.app.push_screen(question, answered)
        else:
            answered(True)

    async def _again(self, chosen: str) -> None:
        record = self.job.path / "stages" / f"{chosen}.json"
        await self.attempt(lambda: in_thread(lambda: record.unlink(missing_ok=True)))
        await self._go_on(pipeline.STAGES[pipeline.STAGES.index(chosen) :])

    async def _go_on(self, stages: Sequence[str]) -> None:
        self.notify(f"Starting: {', '.join(stages)}")
        await self.attempt(lambda: in_thread(pipeline.go_on, self.job, stages))
        self.studio.watcher.hurry()

    def copied(self) -> str:
        """The results, for a message to somebody."""
        lines = [self.query_one(f"#{name}", Line).plain for name in ("proof", "reach", "answers")] if self.ready else []
        return "\n".join(line for line in lines if line)

    def action_chat(self) -> None:
        """Chat."""
        self.studio.go("chat", self.job)

    async def action_copy_tunnel(self) -> None:
        """By OSC 52, to the clipboard of the machine the user sits at."""
        line = await self.attempt(lambda: in_thread(tunnel_line, self.job))
        if line:
            self.app.copy_to_clipboard(line)
            self.notify(f"Sent to your terminal's clipboard: {line}", markup=False)

    def action_merged(self) -> None:
        """One file with the adapter inside, beside what is there; asks for its number type."""

        def typed(quantisation: str | None) -> None:
            if quantisation is not None:
                self.run_worker(self._merge(quantisation.strip()), exclusive=True, group="merge", exit_on_error=False)

        details = "f16, q8_0, q4_k_m ...; empty keeps the base file's type. It is not served by itself."
        self.app.push_screen(AskText("Number type of the merged file", "", details), typed)

    async def _merge(self, quantisation: str) -> None:
        words = ["export", str(self.job.path), "--kind", "merged", "--out", str(self.job.path / "export" / "merged")]
        words += ["--quantisation", quantisation] if quantisation else []
        self._merging = f"being written as {quantisation or 'the base file is'}; stay in the app until it is there ..."
        self.studio.watcher.hurry()
        try:
            made = await twin(*words, timeout_s=3600)
            record = {"verdict": "done", "path": made.get("path"), "bytes": made.get("size_bytes")}
            await in_thread(lambda: self.job.write_stage("merged", **record))
        except (StudioError, OSError) as error:
            self.complain(error)
            return
        finally:
            self._merging = ""
            self.studio.watcher.hurry()
        self.notify(f"{record['path']}  {size(record['bytes'])}", timeout=15, markup=False)

    def action_log(self) -> None:
        """What the stages wrote."""
        self.studio.go("log", self.job.path / "logs" / "pipeline.log")


def tunnel_line(job: JobFolder) -> str:
    """What to type at the machine you sit at."""
    from bc250studio.serve import server

    found = server.read(job)
    return server.tunnel_lines(found)["tunnel"] if found is not None else ""


SCREEN = StepsScreen
