"""How every screen looks at 80x24 (SVG), three of them also wide, in 16 colours and without colour, and all as text.

Time stands still, runs have fixed names, and nothing of the machine shows; ``pytest --snapshot-update`` writes anew.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from bc250studio import profiles, telemetry
from bc250studio.jobs import JobFolder
from bc250studio.pipeline import queue
from bc250studio.settings import Settings, Ui
from bc250studio.ui import log
from bc250studio.ui.app import StudioApp
from bc250studio.ui.background import LOOKING
from bc250studio.ui.local_models import LocalModel
from bc250studio.ui.screens import dataset, kernels, model, review_words, system
from bc250studio.ui.watch import Watcher
from tests import recording
from tests.ui_help import page

NOW = 1_800_000_000.0
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def still_world(home, monkeypatch):
    """One moment, one board, one answer from every command-line twin."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.setattr(Watcher, "_sample", lambda self: recording.readings(100))
    monkeypatch.setattr(Input, "cursor_blink", False, raising=False)
    for module in (dataset, kernels, system):
        monkeypatch.setattr(module, "twin", twin)
    monkeypatch.setattr("bc250studio.ui.screens.review.twin", twin)
    monkeypatch.setattr(model, "describe_text", lambda base: f"{base}  135 M parameters (as the test says)")
    monkeypatch.setattr(model, "_named", lambda snapshot, folders: MODELS[:1])
    monkeypatch.setattr(model, "_on_disk", lambda snapshot, folders: MODELS[1:])
    monkeypatch.setattr(
        dataset, "_known", lambda snapshot: [("assets:demo.jsonl", "43.0 KiB", "comes with bc250studio")]
    )
    looks = {"memory": lambda resolved: review_words.memory_text(*FITS), "heat": review_words.thermal}
    monkeypatch.setattr(review_words, "LOOKS", looks)
    monkeypatch.setattr(telemetry.time, "time", lambda: NOW)
    monkeypatch.setattr(log, "file", lambda: Path("/nowhere/app.log"))


MODELS = [
    LocalModel("demo:smollm2-135m", "comes as a package", 105_454_432, 134_515_008, "llama"),
    LocalModel("Qwen/Qwen3-0.6B", "hub cache", 1_503_300_328, 751_632_384, "qwen3"),
    LocalModel("openbmb/MiniCPM5-2B", "profile minicpm5-2b-lora", problem="not on this machine"),
    LocalModel("/models/deep/in/the/tree/llama-3.2-1b-instruct", "/models", 2_471_645_608, 1_235_814_400, "llama"),
]  # fmt: skip
FITS = (
    {"verdict": "fits", "why": "LoRA training of 512 tokens a pass (recompute none) takes about 7.2 GiB of 14.0",
     "parts": {"weights": 5 * 2**30, "adapter and AdamW": 150 * 2**20, "activations": 2**30}},
    {"verdict": "tight", "why": "serving q4_k_m with 4,096 tokens of context takes about 13.5 GiB of 14", "parts": {}},
    ("llama-server",),
)  # fmt: skip


async def twin(*words: str, timeout_s: float = 0.0) -> Any:
    """What the commands said on the day the test was written."""
    answers: dict[str, Any] = {
        "doctor": {
            "chip": "AMD BC-250", "counts": {"pass": 1, "warn": 1, "fail": 1, "skip": 9},
            "checks": [
                {"name": "gpu", "group": "Device", "verdict": "pass", "why": "gfx1013 is visible", "fix": ""},
                {"name": "swap", "group": "Memory", "verdict": "warn", "why": "no swap", "fix": "make a swap file"},
                {"name": "fan", "group": "Memory", "verdict": "fail", "why": "it stands still", "fix": "look at it"},
            ],
        },
        "kernels": {"use": "auto", "library": None, "chip": "gfx1013", "runner": {"torch": "2.11", "hip": "7.0"},
                    "libraries": [{"name": "night", "proof": "passed", "shapes": 42}], "running": []},
        "data": {
            "format": "messages", "files": 1, "max_length": 256, "columns": {"messages": "messages"},
            "rows": {"total": 180, "used": 175, "cut": 3, "dropped": 2}, "reasons": {"empty answer": 2},
            "dropped_rows": [{"where": "line 7", "reason": "empty answer", "detail": ""}], "notes": ["one duplicate"],
            "tokens": {
                "all": 14308, "labelled": 6416, "labelled_percent": 44.8, "shortest": 59, "longest": 105, "p50": 79,
            },
            "histogram": [{"count": c} for c in (0, 6, 38, 72, 36, 21, 7)],
            "packing": {"fill_percent": 87.3, "padded_fill_percent": 84.5, "passes": 8, "tokens_per_epoch": 14308},
            "time": {"seconds_per_epoch": 58, "from_run": "demo"},
            "split": {"train": 160, "evaluation": 18},
        },
    }  # fmt: skip
    if words[:2] == ("data", "preview"):
        asked, learnt = "user: What is it?\nassistant: ", "A board."
        segments = [{"text": asked, "learnt": False}, {"text": learnt, "learnt": True}]
        row = {"where": "line 1", "verdict": "used", "tokens": 9, "full_tokens": 9, "labelled": 3, "segments": segments}
        return [row, {**row, "where": "line 2"}]
    return answers[words[0]]


def runs(live: bool = True) -> tuple[JobFolder | None, JobFolder]:
    """A live run and a finished one."""
    done = recording.write_run(
        "demo",
        step=150,
        phase="done",
        age_s=9000,
        stages=recording.done_stages(),
        name="demo-yesterday",
        finished=NOW - 7600,
    )
    return recording.write_run("demo", step=72, name="demo-tonight") if live else None, done


def waiting() -> None:
    """Two profiles wait; nothing is live."""
    for name, ago in (("minicpm5-2b-lora", 4000), ("demo", 90)):
        entry = queue.add(profiles.from_text("", "test", name))
        os.utime(entry, (NOW - ago, NOW - ago))


SCENES: dict[str, tuple[str, tuple[str, ...]]] = {
    "home": ("", ()),
    "morning": ("ended", ()),
    "model": ("", ("n",)),
    "dataset": ("", ("n", "f4")),
    "check": ("", ("n", "f4", "f5")),
    "preview": ("", ("n", "f4", "f8")),
    "columns": ("", ("n", "f4", "f9")),
    "recipe": ("", ("m",)),
    "review": ("", ("r",)),
    "training": ("live", ()),
    "chart": ("live", ("z", "left", "left", "left")),
    "steps": ("done", ("i", "e")),
    "details": ("done", ("i",)),
    "profile": ("done", ("i", "tab")),
    "chat": ("done", ()),
    "runs": ("", ("slash",)),
    "compare": ("", ("slash", "space", "down", "space", "x")),
    "system": ("", ("5",)),
    "doctor": ("", ("5", "d")),
    "kernels": ("", ("4",)),
    "log": ("", ("6",)),
    "help": ("live", ("question_mark",)),
    "stop": ("live", ("s",)),
}


def scene(name: str, machine: Settings | None = None) -> tuple[StudioApp, Any]:
    """The app before the scene, and what to press."""
    which, keys = SCENES[name]
    live, done = runs(live=which != "ended")
    if which == "ended":
        waiting()
    machine = machine or Settings(ui=Ui(low_bandwidth="off"))  # no offer of a thin line over the picture
    app = StudioApp(interval_s=0.05, job={"live": live, "done": done}.get(which), machine=machine)

    async def act(pilot: Any) -> None:
        await quiet(pilot)
        if name == "chat":
            from bc250studio.ui.conversation import Growing

            app.go("chat", done)
            await quiet(pilot)
            chat = app.screen.chat
            chat.words, chat.asked = "CPU · http://127.0.0.1:40123 · context 4,096", "What is the BC-250?"
            chat.growing = {"base": Growing("I do not know"), "tuned": Growing("A small AMD board")}
            app.screen._draw()
        for key in keys:
            await pilot.press(key)
            await quiet(pilot)

    return app, act


async def quiet(pilot: Any) -> None:
    """Until nothing is going on: three looks of the watcher have passed and no worker is left."""
    seen = 0
    while seen < 3:
        before = pilot.app.snapshot
        pilot.app.watcher.hurry()
        await pilot.pause(0.05)
        seen += pilot.app.snapshot is not before
    ours = [worker for worker in pilot.app.workers if worker.group != "ask"]
    if ours:  # an empty list would mean all, and a question waits for its answer
        await pilot.app.workers.wait_for_complete(ours)
    deadline = time.monotonic() + 10
    while any(t.name.startswith(LOOKING) for t in threading.enumerate()) and time.monotonic() < deadline:
        await pilot.pause(0.02)
    if type(pilot.app.screen).__name__ == "ModelScreen":
        await pilot.pause(0.4)  # a typed model is described 0.3 s after the last letter
    pages = [page(pilot)]
    while pages[-3:] != [pages[-1]] * 3 and time.monotonic() < deadline:
        await pilot.pause(0.05)
        pages.append(page(pilot))


def looks_the_same(snap_compare: Any, name: str, size: tuple[int, int], machine: Settings | None = None) -> None:
    """The scene against its picture; a difference is told as text, since a CI log shows no SVG."""
    app, act = scene(name, machine)
    seen = []

    async def act_and_read(pilot: Any) -> None:
        await act(pilot)
        seen.append(page(pilot))

    same = snap_compare(app, terminal_size=size, run_before=act_and_read)
    assert same, "Not the kept picture. The screen says:\n" + "".join(seen)


@pytest.mark.parametrize("name", SCENES)
def test_80x24(snap_compare, name):
    looks_the_same(snap_compare, name, (80, 24))


@pytest.mark.parametrize("name", ["home", "training", "steps", "check", "review"])
def test_120x40(snap_compare, name):
    looks_the_same(snap_compare, name, (120, 40))


@pytest.mark.parametrize("name", ["home", "training", "steps"])
def test_sixteen_colours(snap_compare, name):
    looks_the_same(snap_compare, name, (80, 24), Settings(ui=Ui(low_bandwidth="on", ascii=True)))


@pytest.mark.parametrize("name", ["home", "training", "steps", "preview", "compare"])
def test_no_colour(snap_compare, name, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    looks_the_same(snap_compare, name, (80, 24))


@pytest.mark.parametrize("size", [(160, 48), (59, 24), (80, 15)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_as_text(size, request):
    """Other sizes as plain text, easy to review."""
    app, act = scene("training")
    async with app.run_test(size=size) as pilot:
        await act(pilot)
        found = page(pilot)
    file = HERE / "text" / f"training-{size[0]}x{size[1]}.txt"
    if request.config.getoption("--snapshot-update") or (not file.exists() and not os.environ.get("CI")):
        file.parent.mkdir(exist_ok=True)
        file.write_text(found + "\n")
    assert file.read_text() == found + "\n"
