"""From a trained tiny model to kept answers by keys alone, with the real pipeline and the real llama-server."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from bc250studio import jobs, paths, pipeline, profiles, telemetry
from bc250studio.jobs import JobFolder, control
from bc250studio.models.gguf_file import GgufFile
from bc250studio.serve import collected, server
from bc250studio.ui import log
from bc250studio.ui.widgets.rows import Rows
from tests.tiny import tiny_model
from tests.ui_help import app, on, said, screen_name, text

pytestmark = [pytest.mark.server, pytest.mark.slow]


async def until(pilot: Pilot, condition: Callable[[], object], what: str, timeout_s: float = 240) -> None:
    """Wait for a condition: these work with real processes, on a machine that may be busy."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        await pilot.pause(0.05)
        try:
            if condition():
                return
        except Exception:  # a widget that is not there yet
            continue
    raise AssertionError(f"never came true: {what}; on {screen_name(pilot)}; said: {said(pilot)}")


def trained(folder: Path, stages: tuple[str, ...], **changes: object) -> JobFolder:
    """A run of a tiny model over sixty rows, started through the pipeline."""
    rows = folder / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"prompt": f"What is {n}?", "completion": f"{n} is {n}."}) for n in range(60)))
    values = {
        "model.base": str(tiny_model("llama")), "model.device": "cpu", "data.path": str(rows), "train.steps": 3,
        "train.tokens_per_step": 128, "train.tokens_per_pass": 128, "serve.device": "cpu", "serve.context": 256,
        "proof.tokens": 24, "ask.prompts": ["What is 7?"], "ask.max_tokens": 4, **changes,
    }  # fmt: skip
    return pipeline.launch(profiles.from_text("", "test", "tiny", values), stages)


def settled(job: JobFolder) -> bool:
    return not jobs.standing(job).live


@pytest.fixture
def job(home: Path, tmp_path: Path) -> Iterator[JobFolder]:
    """Trained only; whatever is served is stopped afterwards."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    run = trained(tmp_path, ("train",))
    deadline = time.monotonic() + 240
    while not settled(run):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert run.stage("train")["verdict"] == "done", run.stage("train")
    yield run
    server.stop(run)


async def test_from_a_trained_run_to_a_second_round(job: JobFolder):
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: pilot.app.snapshot.jobs, "the run is seen")
        await pilot.press("tab", "e")
        await until(pilot, on(pilot, "StepsScreen"), "the steps")
        await until(pilot, lambda: job.stage("ask").get("verdict") and settled(job), "everything is done")
        await until(pilot, lambda: "served = trained" in text(pilot, "#proof"), "the proof is shown")
        assert "top-1 100.0 %" in text(pilot, "#proof") and "tok/s with it" in text(pilot, "#proof")
        rates = job.stage("prove")["proof"]["rates"]
        assert rates["base"]["tokens_per_s"] > 0 and rates["tuned"]["tokens_per_s"] > 0
        await until(pilot, lambda: "ssh -L" in text(pilot, "#reach"), "the tunnel is shown")
        written: list[str] = []
        driver = pilot.app._driver
        assert driver is not None
        driver.write = written.append  # type: ignore[method-assign]
        await pilot.press("t")
        await until(pilot, lambda: "ssh -L" in said(pilot), "the tunnel is copied")
        assert any(data.startswith("\x1b]52;c;") for data in written)

        await pilot.press("c")
        await until(pilot, lambda: "context 256" in text(pilot, "#said"), "the chat is connected")
        await pilot.press("f7")
        questions = pilot.app.screen.query_one("#questions", Rows)
        await until(pilot, lambda: len(questions._rows) > 1, "own and held-out questions are listed")
        assert {cells[1] for cells in questions._rows.values()} == {"profile", "held-out row"}
        await pilot.press("down", "enter")
        await until(pilot, on(pilot, "ChatScreen"), "back in the chat")
        assert pilot.app.screen.query_one("#message", Input).value.startswith("What is ")
        await pilot.press("f6")
        await until(pilot, on(pilot, "ChatSettings"), "the settings")
        await pilot.press(*"Be brief", *["tab"] * 8, "ctrl+u", *"six", "enter")
        await until(pilot, lambda: "whole number" in text(pilot, "#said"), "six is no number")
        await pilot.press("ctrl+u", "6", "f6")
        await until(pilot, on(pilot, "ChatScreen"), "accepted")
        chat = pilot.app.screen.chat
        assert chat.chat.max_tokens == 6 and chat.chat.system == "Be brief"
        await pilot.press("enter")
        await until(pilot, lambda: not chat.busy and len(chat.answers) == 2, "both have answered")
        assert all("tok/s · 6 tokens · cut at the token limit" in text(pilot, f"#{s}-text") for s in chat.answers)
        lines = [json.loads(line) for line in chat.chat.transcript.read_text().splitlines()]
        assert {line["side"] for line in lines} == {"base", "tuned"} and lines[0]["system"] == "Be brief"

        await pilot.press("f10")
        await until(pilot, lambda: "at least 2 kept answers" in said(pilot), "too few rows for a round")
        await pilot.press("f8")
        await until(pilot, lambda: collected.count("tiny") == 1, "the answer is kept")
        await pilot.press("f8")
        await until(pilot, lambda: "saved already" in said(pilot), "and only once")
        await pilot.press("f9")
        await until(pilot, on(pilot, "AskLong"), "a better one")
        await pilot.press(*"It is 7.")
        assert pilot.app.screen.query_one(TextArea).text == "It is 7."
        await pilot.press("f9")
        await until(pilot, lambda: collected.count("tiny") == 2, "the better answer is kept")
        rows = [json.loads(line)["messages"] for line in collected.file_of("tiny").read_text().splitlines()]
        assert [message["role"] for message in rows[1]] == ["system", "user", "assistant"]
        assert rows[1][-1]["content"] == "It is 7."
        await pilot.press("f10")
        await until(pilot, on(pilot, "ReviewScreen"), "the second round is under review")
        await until(pilot, lambda: "adapter.start_from" in text(pilot, "#changed"), "from the last adapter on")
        await pilot.press("t")
        await until(pilot, on(pilot, "TrainingScreen"), "it was started")
        second = pilot.app.screen.job
        await until(pilot, lambda: settled(second), "it ends")
    assert second.stage("train")["verdict"] == "done", second.stage("train")
    profile = second.profile().profile
    assert profile.adapter.start_from == str(job.path / "checkpoints" / "final")
    assert profile.data.path == str(collected.file_of("tiny")) and second.state()["profile"] == "tiny-round2"
    _nobody_saw_the_key(job)


def _nobody_saw_the_key(job: JobFolder) -> None:
    key = server.read(job).key.encode()
    logs = [*(job.path / "logs").iterdir(), *(job.path / "transcripts").iterdir(), job.path / "events.jsonl"]
    logs += [log.file()] if log.file().exists() else []
    assert len(key) > 20 and all(key not in file.read_bytes() for file in logs)


async def test_a_step_is_done_again_and_a_dead_server_is_seen(job: JobFolder):
    pipeline.go_on(job, ("export", "reference", "serve"))
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: settled(job) and server.read(job), "served")
        await pilot.press("i", "e")
        await until(pilot, lambda: "e does what is missing" in text(pilot, "#now"), "the proof is missing")
        table = pilot.app.screen.query_one("#stages", Rows)
        await pilot.press("r")
        await until(pilot, on(pilot, "Confirm"), "training again is asked first")
        await pilot.press("n")
        await until(pilot, on(pilot, "StepsScreen"), "left")
        await pilot.press("down")
        assert table.chosen == "export"
        before = job.stage("export")["began"], server.read(job).process
        await pilot.press("r")
        await until(pilot, lambda: job.stage("ask").get("verdict") and settled(job), "from the export on")
        assert job.stage("export")["began"] > before[0] and job.stage("prove")["verdict"] == "passed"
        await until(pilot, lambda: "c opens the chat" in text(pilot, "#now"), "proven")
        server.end(server.read(job), 5.0)
        await until(pilot, lambda: "the server has ended" in text(pilot, "#now"), "its end is seen")
        await pilot.press("c")
        await until(pilot, lambda: "F5 starts it again" in text(pilot, "#said"), "the chat says so")
        await pilot.press("f5")
        await until(pilot, lambda: "context 256" in text(pilot, "#said"), "and brings it back")
        await pilot.press("f3")
        await until(pilot, lambda: "c opens the chat" in text(pilot, "#now"), "served again")


async def test_one_merged_file_beside_the_adapter(job: JobFolder):
    pipeline.go_on(job, ("export",))
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: job.stage("export").get("verdict") and settled(job), "exported")
        await pilot.press("i", "e", "m")
        await until(pilot, on(pilot, "AskText"), "its number type")
        await pilot.press(*"f16", "enter")
        await until(pilot, lambda: job.stage("merged").get("path"), "the merged file")
        await until(pilot, lambda: ".gguf" in text(pilot, "#reach") and "MiB" in text(pilot, "#reach"), "it is shown")
    merged = Path(job.stage("merged")["path"])
    assert merged.is_relative_to(job.path) and merged.stat().st_size == job.stage("merged")["bytes"]
    file, adapter = GgufFile(merged), job.stage("export")["outputs"]["adapter_gguf"]
    names = set(file.tensors)
    file.close()
    assert "blk.0.attn_q.weight" in names and not any("lora" in name for name in names)
    assert Path(adapter).is_file(), "the adapter stays what is served"


async def test_a_peek_in_mid_training(home: Path, tmp_path: Path):
    job = trained(tmp_path, ("train",), **{"train.steps": 100_000})
    try:
        async with app(job=job).run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: (job.state().get("step") or 0) >= 2, "it trains")
            await pilot.press("v")
            await until(pilot, on(pilot, "Confirm"), "asked first")
            await pilot.press("y")
            await until(pilot, on(pilot, "ChatScreen"), "exported, served, and the chat opened")
            await until(pilot, lambda: "context 256" in text(pilot, "#said"), "connected")
            assert settled(job)
            stopped = job.stage("train")["steps"]
            chat = pilot.app.screen.chat
            chat.chat.max_tokens = 4
            await pilot.press(*"What is 7?", "enter")
            await until(pilot, lambda: not chat.busy and len(chat.answers) == 2, "it answers as it is now")
            await pilot.press("f10")
            await until(pilot, lambda: "still being trained" in said(pilot), "no second round of half a run")
            await pilot.press("f3")
            await until(pilot, lambda: (job.state().get("step") or 0) > stopped, "it goes on from there")
            assert server.read(job) is None
    finally:
        control.ask(job, "stop")
        deadline = time.monotonic() + 120
        while not settled(job) and time.monotonic() < deadline:
            time.sleep(0.05)
        server.stop(job)
    steps = [line["step"] for line in telemetry.read_all(job.path / "metrics.jsonl")]
    assert steps == list(range(1, len(steps) + 1)), "none twice, none left out"
    assert paths.runs_dir() in job.path.parents
