"""Screens that read from the disk or ask a server: they answer keys meanwhile, and show what came at once."""

from __future__ import annotations

import ast
import threading
from pathlib import Path

import pytest
from textual.containers import VerticalScroll

import bc250studio.ui
from bc250studio.ui import log
from bc250studio.ui.conversation import Conversation
from bc250studio.ui.screens import dataset, details
from bc250studio.ui.screens import log as log_screen
from tests import recording
from tests.ui_help import app, on, page, text, until

SCREENS = sorted(Path(bc250studio.ui.__file__).parent.rglob("*.py"))
READERS = {
    "LogScreen": (log_screen, "end_of", ("6",)),
    "DetailsScreen": (details, "files_text", ("i",)),
    "DatasetScreen": (dataset, "_known", ("n", "f4")),
    "ChatScreen": (Conversation, "connect", ()),
}


@pytest.mark.parametrize("name", READERS)
async def test_a_screen_that_still_reads_can_be_left(home, monkeypatch, name):
    """A disk that sleeps or a server that hangs must not hold the user."""
    owner, function, keys = READERS[name]
    begun, go_on = threading.Event(), threading.Event()

    def slow(*_):
        begun.set()
        go_on.wait(120)
        raise OSError("too late")

    monkeypatch.setattr(owner, function, slow)
    job = recording.write_run("demo", step=150, phase="done", stages=recording.done_stages(), age_s=9000)
    try:
        async with app(job=job if name == "DetailsScreen" else None).run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: pilot.app.snapshot.jobs, "the first look")
            before = pilot.app.screen
            if name == "ChatScreen":
                pilot.app.go("chat", job)
            for key in keys:
                await pilot.press(key)
                await until(pilot, lambda: pilot.app.screen is not before, f"{key} does something")
            await until(pilot, on(pilot, name))
            await until(pilot, begun.is_set, "it reads")
            await pilot.press("escape")
            await until(pilot, lambda: type(pilot.app.screen).__name__ != name, "esc leaves it")
    finally:
        go_on.set()


@pytest.mark.parametrize("file", SCREENS, ids=lambda file: file.stem)
def test_no_screen_waits_while_it_is_mounted(file):
    """Textual hands a screen its first key only after on_mount has returned: what takes time is a worker's."""
    waits = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.AsyncFunctionDef)]
    assert not [n.lineno for n in waits if n.name in {"on_mount", "on_screen_resume"}]


@pytest.mark.parametrize(("lines", "first"), [(0, "Nothing has been written there."), (3, "line 1"), (400, "line 383")])
async def test_a_log_is_there_with_its_screen(home, tmp_path, monkeypatch, lines, first):
    """At once, not at the second look; a short one from the top, a long one at its end."""
    file = tmp_path / "app.log"
    if lines:
        file.write_text("\n".join(f"line {n}" for n in range(1, lines + 1)))
    monkeypatch.setattr(log, "file", lambda: file)
    monkeypatch.setattr(log_screen, "AGAIN_S", 3600.0)
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, on(pilot, "HomeScreen"))
        await pilot.press("6")
        end = f"line {lines}" if lines else first
        await until(pilot, lambda: end in text(pilot, "#text"), "the text came")
        if lines < 20:
            await until(pilot, lambda: page(pilot).splitlines()[2].strip() == first)
        else:
            await until(pilot, lambda: page(pilot).splitlines()[-2].strip() == end)


async def test_a_log_follows_its_end_until_scrolled_up(home, tmp_path, monkeypatch):
    file = tmp_path / "app.log"
    file.write_text("a\nb")
    monkeypatch.setattr(log, "file", lambda: file)
    monkeypatch.setattr(log_screen, "AGAIN_S", 0.05)
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, on(pilot, "HomeScreen"))
        await pilot.press("6")
        await until(pilot, lambda: page(pilot).splitlines()[3].strip() == "b", "a short one is at the top")
        scroll = pilot.app.screen.query_one(VerticalScroll)
        file.write_text("\n".join(f"line {n}" for n in range(1, 101)))
        await until(pilot, lambda: page(pilot).splitlines()[-2].strip() == "line 100", "it grew: its end")
        await pilot.press("home")
        await until(pilot, lambda: page(pilot).splitlines()[2].strip() == "line 1")
        file.write_text("\n".join(f"line {n}" for n in range(1, 121)))
        await until(pilot, lambda: "line 120" in text(pilot, "#text"))
        await until(pilot, lambda: scroll.virtual_size.height == 120, "laid out anew")
        assert page(pilot).splitlines()[2].strip() == "line 1", "who reads is not pulled away"
        await pilot.press("end")
        await until(pilot, lambda: page(pilot).splitlines()[-2].strip() == "line 120")
        file.write_text("anew")
        await until(pilot, lambda: page(pilot).splitlines()[2].strip() == "anew", "a file begun anew is at the top")


async def test_a_slow_disk_shows_the_log_in_the_end(home, monkeypatch):
    """A look that takes longer than the time between two looks is waited for, not begun again and again."""
    begun, go_on = [], threading.Event()

    def slow(_):
        begun.append(threading.current_thread())
        go_on.wait(120)
        return "it came"

    monkeypatch.setattr(log_screen, "end_of", slow)
    monkeypatch.setattr(log_screen, "AGAIN_S", 0.02)
    ticks = []
    again = log_screen.LogScreen._again
    monkeypatch.setattr(log_screen.LogScreen, "_again", lambda self: (ticks.append(1), again(self)))
    try:
        async with app().run_test(size=(80, 24)) as pilot:
            await until(pilot, on(pilot, "HomeScreen"))
            await pilot.press("6")
            await until(pilot, lambda: len(ticks) > 5)
            assert len(begun) == 1
            go_on.set()
            await until(pilot, lambda: "it came" in page(pilot))
    finally:
        go_on.set()
