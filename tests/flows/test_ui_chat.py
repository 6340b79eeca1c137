"""The chat screen against a real llama-server with a tiny model and its adapter."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from textual.widgets import Input

from bc250studio import paths
from bc250studio.jobs import JobFolder
from bc250studio.serve import server
from tests import recording, serve_tools
from tests.tiny import demo_gguf
from tests.ui_help import app, on, said, screen_name, text, until

pytestmark = pytest.mark.server


@pytest.fixture
def served(home) -> Iterator[JobFolder]:
    binary, made = serve_tools.server_binary(), serve_tools.case()
    job = recording.write_run("demo", step=150, phase="done", stages=recording.done_stages(), profile="demo")
    plan = server.Plan(model=made.base, adapter=made.adapter, device="cpu", context=256, warmup=False, threads=1)
    server.start(job.path, plan, binary)
    yield job
    server.stop(job)


async def test_base_and_tuned_answer_side_by_side_and_rows_are_kept(served):
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: pilot.app.snapshot.jobs)
        await pilot.press("3")
        await until(pilot, lambda: "context 256" in text(pilot, "#said"))
        entry = pilot.app.screen.query_one("#message", Input)
        await pilot.press("f7")
        await until(pilot, on(pilot, "Prompts"))
        await pilot.press("enter")
        await until(pilot, lambda: entry.value == "What is the BC-250?")
        pilot.app.screen.chat.chat.max_tokens = 6
        await pilot.press("enter")
        await until(pilot, lambda: not pilot.app.screen.chat.busy and len(pilot.app.screen.chat.answers) == 2)
        for side in ("base", "tuned"):
            assert "› What is the BC-250?" in text(pilot, f"#{side}-text") and "tok/s" in text(pilot, f"#{side}-text")
        answer = pilot.app.screen.chat.last("tuned")
        assert answer and answer != pilot.app.screen.chat.last("base"), "the adapter is on one side only"
        await pilot.press("f8")
        await until(pilot, lambda: "Saved as row 1" in said(pilot))
        await pilot.press("f9")
        await until(pilot, on(pilot, "AskLong"))
        await pilot.press("home", *"No: ", "f9")
        rows = paths.data_dir() / "collected" / "demo.jsonl"
        await until(pilot, lambda: len(rows.read_text().splitlines()) == 2)
        first, second = (json.loads(line)["messages"] for line in rows.read_text().splitlines())
        assert first[-1] == {"role": "assistant", "content": answer}
        assert second[-1]["content"] == f"No: {answer.strip()}"
        await pilot.press("f2")
        assert not pilot.app.screen.query_one("#base-box").display
        await pilot.press("f4")
        await until(pilot, lambda: text(pilot, "#tuned-text") == "")


@pytest.fixture
def slow(home) -> Iterator[JobFolder]:
    """SmolLM2 on one thread: an answer of 400 tokens takes seconds, so there is something to cancel."""
    job = recording.write_run("demo", step=150, phase="done", stages=recording.done_stages(), profile="demo")
    plan = server.Plan(model=demo_gguf(), adapter=None, device="cpu", context=1024, warmup=False, threads=1)
    server.start(job.path, plan, serve_tools.server_binary())
    yield job
    server.stop(job)


async def test_a_cancelled_answer_keeps_what_was_said(slow):
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: pilot.app.snapshot.jobs)
        await pilot.press("3")
        await until(pilot, lambda: "context 1,024" in text(pilot, "#said"))
        pilot.app.screen.chat.chat.max_tokens = 400
        await pilot.press(*"Tell me a long story", "enter")
        await until(pilot, lambda: any(growing.text for growing in pilot.app.screen.chat.growing.values()))
        await pilot.press("escape")
        await until(pilot, lambda: not pilot.app.screen.chat.busy)
        assert screen_name(pilot) == "ChatScreen"
        assert any(answer.stop == "cancelled" for answer in pilot.app.screen.chat.answers.values())
        talk = server.read(slow).talk()
        await until(pilot, lambda: not any(slot["is_processing"] for slot in talk.slots()), "the slot is free")
        # A new chat: after a cut answer the model may have nothing more to say.
        await pilot.press("f4", *"Tell me a long story", "enter")
        await until(pilot, lambda: any(growing.text for growing in pilot.app.screen.chat.growing.values()))
        await pilot.press("f3")
        await until(pilot, lambda: not any(slot["is_processing"] for slot in talk.slots()), "left, and free again")


async def test_a_server_that_died_gives_the_message_back(served):
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: pilot.app.snapshot.jobs)
        await pilot.press("3")
        await until(pilot, lambda: "context 256" in text(pilot, "#said"))
        server.end(server.read(served), 5.0)
        await pilot.press(*"Hello", "enter")
        await until(pilot, lambda: "gone" in text(pilot, "#said"))
        assert pilot.app.screen.query_one("#message", Input).value == "Hello"
        assert pilot.app.screen.why_not("start_server") is None
