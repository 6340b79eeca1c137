"""The training screen and what stands beside it, read off the screen from recorded job folders (Pilot, no terminal)."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest
from textual.screen import Screen

from bc250studio import telemetry
from bc250studio.jobs import JobFolder
from bc250studio.pipeline.stall import StallWatch
from bc250studio.settings import Notify, Settings
from bc250studio.ui.app import StudioApp
from bc250studio.ui.widgets.chart import Chart
from tests import recording
from tests.ui_help import app, on, page, said, screen_name, text, until


def step(job: JobFolder, number: int, **changes: Any) -> None:
    """One more step, as the runner writes it."""
    writer = telemetry.Writer(job.path / "metrics.jsonl")
    writer.write({**recording.step_record(number, time.time() - number), **changes})
    writer.close()
    job.write_state(step=number, phase="training")


def board(job: JobFolder, **readings: Any) -> None:
    """One more second of the guard."""
    writer = telemetry.Writer(job.path / "board.jsonl")
    writer.write({"readings": {**recording.readings(100), **readings}})
    writer.close()


async def test_a_stall_is_loud_says_why_and_is_gone_when_the_run_goes_on(home):
    job = recording.write_run("demo", step=72)
    clock = [time.time()]
    watch = StallWatch(job, now=lambda: clock[0])
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "step 72/150" in text(pilot, "#progress"))
        assert "STALLED" not in page(pilot)
        clock[0] += 420
        watch.look()
        await until(pilot, lambda: "STALLED" in page(pilot))
        assert "No progress for 7 minutes after step 72" in page(pilot)
        job.event("note", "I am on my way to the board.")
        await until(pilot, lambda: "on my way" in page(pilot))
        assert "STALLED" in page(pilot), "a user's note is no sign of life"
        step(job, 73)
        await until(pilot, lambda: "step 73/150" in page(pilot))
        await until(pilot, lambda: "STALLED" not in page(pilot))
        assert not pilot.app.screen.query_one("#alert").display


async def test_a_rest_for_heat_and_a_pause_say_so_and_mark_the_chart(home):
    job = recording.write_run("demo", step=72)
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "step 72/150" in text(pilot, "#progress"))
        assert "no pause" in text(pilot, "#figures")
        job.event("paused", "91 °C: resting until below 78 °C", reason="heat", temp_c=91.0)
        await until(pilot, lambda: "TOO HOT, RESTING" in page(pilot))
        assert "91 °C: resting until below 78 °C" in page(pilot)
        chart = pilot.app.screen.query_one("#temp", Chart)
        await until(pilot, lambda: ("▄", "limit") in chart._cells[-1])
        job.event("resumed", "Went on after 40 s of rest.", reason="heat", paused_s=40.0)
        await until(pilot, lambda: "TOO HOT" not in page(pilot))
        await until(pilot, lambda: "1 pause," in text(pilot, "#figures"))
        job.write_state(phase="paused")
        job.event("paused", "Paused as asked; a checkpoint is written.", reason="asked")
        await until(pilot, lambda: "PAUSED" in page(pilot) and "p goes on" in page(pilot))


async def test_blind_heat_limits_are_said_until_they_see_again(home):
    job = recording.write_run("demo", step=20)
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        job.event("warning", "The heat limits are blind: no GPU sensor. The run goes on without them.", blind=True)
        await until(pilot, lambda: "HEAT LIMITS BLIND" in page(pilot))
        job.event("note", "The heat limits see again: hwmon.", blind=False)
        await until(pilot, lambda: "HEAT LIMITS BLIND" not in page(pilot))


async def test_figures_of_the_issue_stand_on_the_screen(home):
    """Memory against budget, mean power, kernels, skipped steps, pauses, both rates, learning rate, gradient."""
    job = recording.write_run("demo", step=72, kernels="night", skipped=2)
    budget = job.profile().profile.train.memory_budget_gib
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "night" in page(pilot))
        seen = page(pilot)
        for words in (
            "250 real · 264 positions", f"1.92 GiB of {budget:g}" if budget else "1.92 GiB, 5.1 GiB free", "mean 119 W",
            "kernels  night", "2 skipped", "no pause, not throttled", "learning rate 1.28e-04, gradient 0.510",
            "1,850 MHz, 2,140 rpm", "epoch 1.44", "ETA 10 min",
        ):  # fmt: skip
            assert words in seen, words
        assert "throttle" in seen and "pause" in seen, "both lines of the temperature chart"


async def test_time_at_the_throttle_point_is_counted(home):
    job = recording.write_run("demo", step=5)
    for t in range(12):
        writer = telemetry.Writer(job.path / "board.jsonl")
        hot = recording.reading(120.0, "°C")
        writer.write({"t": time.time() + t, "readings": {"gpu_temp_c": hot, "cpu_temp_c": hot}})
        writer.close()
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "throttled 1" in text(pilot, "#figures"))


async def test_sample_answers_are_read_in_a_line_and_in_full(home):
    job = recording.write_run("demo", step=72)
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "step 72/150" in text(pilot, "#progress"))
        await pilot.press("a")
        await until(pilot, lambda: "no sample answer yet" in said(pilot))
        long = "It has forty compute units once unlocked. " * 8 + "THE END"
        asked = "Which compute units does the board have?"
        job.event("sample", "After step 50 ...", step=50, prompt=asked, answer="I am not [sure].\x1b[2J")
        job.event("sample", "After step 70 ...", step=70, prompt=asked, answer=long)
        await until(pilot, lambda: "step 70 Which compute units does the board have? → It has forty" in page(pilot))
        await pilot.press("a")
        await until(pilot, on(pilot, "AnswersScreen"))
        await until(pilot, lambda: "THE END" in page(pilot))
        shown = text(pilot, "#text")
        assert shown.count(asked) == 1 and "I am not [sure]." in shown and "\x1b" not in shown
        assert shown.index("After step 70") < shown.index("After step 50, held-out loss 1.721")


async def test_a_note_is_kept_with_the_run_and_shown(home):
    job = recording.write_run("demo", step=72)
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "step 72/150" in text(pilot, "#progress"))
        await pilot.press("g")
        await until(pilot, on(pilot, "AskText"))
        await pilot.press(*"new fan", "enter")
        await until(pilot, lambda: "new fan" in text(pilot, "#events"))
    assert [e["text"] for e in job.events() if e["event"] == "note"] == ["new fan"]


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (160, 48)])
async def test_nothing_is_cut_while_everything_is_said_at_once(home, size):
    """A stall, a sample and seven figures share the smallest screen that counts."""
    job = recording.write_run("demo", step=72, kernels="night")
    job.event("sample", "After step 50 ...", step=50, prompt="What is it?", answer="A board.")
    job.event("stall", "No progress for 7 minutes after step 72: its process waits for something.", idle_s=420)
    async with app(job=job).run_test(size=size) as pilot:
        await until(pilot, lambda: "STALLED" in page(pilot))
        await until(pilot, lambda: "kernels  night" in page(pilot))
        assert "What is it? → A board." in page(pilot) and "1.412" in page(pilot)


# Calling


def calling(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, **wanted: Any) -> tuple[StudioApp, list[str]]:
    """An app whose words for the terminal are kept, and the file its command writes."""
    command = tmp_path / "call"
    command.write_text(f'#!/bin/sh\nprintf "%s\\n" "$1" >> {tmp_path}/called\n')
    command.chmod(0o755)
    machine = Settings(notify=Notify(command=str(command), **wanted))
    sent: list[str] = []
    studio = app(machine=machine)
    monkeypatch.setattr(studio, "write_escape", sent.append)
    monkeypatch.setattr(studio, "bell", lambda: sent.append("\a"))
    return studio, sent


def called(tmp_path: Any) -> list[dict[str, Any]]:
    file = tmp_path / "called"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


async def test_a_hot_board_calls_once_a_rise_by_every_way(home, tmp_path, monkeypatch):
    job = recording.write_run("demo", step=72)
    studio, sent = calling(tmp_path, monkeypatch, osc="777")
    hot = {name: recording.reading(120.0, "°C") for name in ("gpu_temp_c", "cpu_temp_c")}
    async with studio.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: pilot.app.snapshot.live)
        board(job, **hot)
        await until(pilot, lambda: "hot: The board is at 120 °C" in said(pilot))
        await until(pilot, lambda: called(tmp_path))
        job.event("paused", "120 °C: resting until below 78 °C", reason="heat", temp_c=120.0)
        board(job, **hot)
        await until(pilot, lambda: pilot.app.snapshot.jobs[0].standing)
        board(job, **{name: recording.reading(40.0, "°C") for name in hot})
        job.event("resumed", "Went on.", reason="heat")
        watch = pilot.app.watcher._alarms[job.path]
        await until(pilot, lambda: not watch._hot)
        assert watch._alarm.count == 1, "the reading and the pause are one rise"
        job.event("paused", "99 °C: resting until below 78 °C", reason="heat", temp_c=99.0)
        await until(pilot, lambda: len(called(tmp_path)) == 2)
    assert [(call["event"], call["run"]) for call in called(tmp_path)] == [("hot", job.name)] * 2
    assert sent.count("\a") == 2
    assert any(s.startswith(f"\x1b]777;notify;bc250studio;{job.name}: hot: The board is at 120") for s in sent)


async def test_cooling_before_the_first_step_is_no_alarm_and_an_old_alarm_only_shows(home, tmp_path, monkeypatch):
    job = recording.write_run("demo", step=1)
    job.event("paused", "Cooling to 50 °C before the first step", reason="heat", temp_c=61.0)
    old = recording.write_run("old", step=9)
    old.event("paused", "99 °C: resting until below 78 °C", reason="heat", temp_c=99.0)
    studio, sent = calling(tmp_path, monkeypatch)
    async with studio.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: len(pilot.app.snapshot.jobs) == 2)
        counts = {row.name: row.alarm.count for row in pilot.app.snapshot.jobs}
        assert counts == {job.name: 0, old.name: 1}
    assert not called(tmp_path) and "\a" not in sent


@pytest.mark.parametrize(
    ("verdict", "words"), [("done", "✓ done"), ("failed", "✗ failed: The loss is no number."), ("stopped", "■ stopped")]
)
async def test_the_end_of_a_run_calls_by_every_way(home, tmp_path, monkeypatch, verdict, words):
    job = recording.write_run("demo", step=72)
    studio, sent = calling(tmp_path, monkeypatch, osc=True)
    async with studio.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: pilot.app.snapshot.live)
        error = "The loss is no number." if verdict == "failed" else None
        job.write_state(phase=verdict, owner=None, stage=None, error=error)
        await until(pilot, lambda: f"{job.name}: {words}" in said(pilot))
        await until(pilot, lambda: called(tmp_path))
    assert called(tmp_path)[0]["event"] == verdict
    assert f"\x1b]9;{job.name}: {words}\x07" in sent and "\a" in sent


async def test_a_stall_calls_too(home, tmp_path, monkeypatch):
    job = recording.write_run("demo", step=72)
    studio, _ = calling(tmp_path, monkeypatch)
    async with studio.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: pilot.app.snapshot.live)
        job.event("stall", "No progress for 5 minutes after step 72.", idle_s=300)
        await until(pilot, lambda: [call["event"] for call in called(tmp_path)] == ["stalled"])


async def test_a_webhook_gets_the_event(home, monkeypatch):
    import http.server
    import threading

    got: list[dict[str, Any]] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    hook = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=hook.serve_forever, daemon=True).start()
    job = recording.write_run("demo", step=72)
    machine = Settings(notify=Notify(webhook=f"http://127.0.0.1:{hook.server_port}/x"))
    async with app(machine=machine).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: pilot.app.snapshot.live)
        job.write_state(phase="done", owner=None, stage=None)
        await until(pilot, lambda: got)
    hook.shutdown()
    hook.server_close()
    assert got[0]["run"] == job.name and got[0]["event"] == "done"


# Manners


async def test_low_bandwidth_is_offered_toggled_by_key_and_remembered(home, monkeypatch):
    from bc250studio import settings

    recording.write_run("demo", step=72)
    monkeypatch.delenv("COLORTERM", raising=False)
    async with StudioApp().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "COLORTERM" in said(pilot), "it is offered")
        assert pilot.app.watcher.interval_s == 1.0
        await pilot.press("b")
        await until(pilot, lambda: pilot.app.thin)
        assert pilot.app.watcher.interval_s == 3.0 and pilot.app.animation_level == "none"
        assert pilot.app.theme == "ansi-dark"
    assert settings.load().ui.low_bandwidth == "on"
    async with StudioApp().run_test(size=(80, 24)) as pilot:
        await until(pilot, on(pilot, "HomeScreen"))
        assert pilot.app.thin and "COLORTERM" not in said(pilot), "remembered, and not offered again"
        await pilot.press("b")
        await until(pilot, lambda: not pilot.app.thin)
        assert pilot.app.watcher.interval_s == 1.0 and not pilot.app.theme.startswith("ansi")
    assert settings.load().ui.low_bandwidth == "off"


async def test_a_terminal_that_names_its_colours_is_offered_nothing(home, monkeypatch):
    recording.write_run("demo", step=72)
    monkeypatch.setenv("COLORTERM", "truecolor")
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: pilot.app.snapshot.jobs)
        assert "COLORTERM" not in said(pilot)


async def test_the_palette_finds_a_key_by_its_words_and_does_it(home):
    job = recording.write_run("demo", step=72)
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "step 72/150" in text(pilot, "#progress"))
        await pilot.press("colon")
        await until(pilot, on(pilot, "CommandPalette"))
        await pilot.press(*"thin line")
        await until(pilot, lambda: pilot.app.screen.query_one("CommandList").option_count)
        await pilot.press("down", "enter")
        await until(pilot, lambda: pilot.app.thin)
        await until(pilot, on(pilot, "TrainingScreen"))
        await pilot.press("colon")
        await until(pilot, on(pilot, "CommandPalette"))
        await pilot.press(*"save")
        await until(pilot, lambda: pilot.app.screen.query_one("CommandList").option_count)
        await pilot.press("down", "enter")
        await until(pilot, lambda: [f for f in (job.path / "control").iterdir() if "checkpoint" in f.name])


async def test_the_log_goes_round_the_files_of_its_folder(home):
    job = recording.write_run("demo", step=72)
    for name in ("train", "export", "serve"):
        (job.path / "logs" / f"{name}.log").write_text(f"this is {name} [not markup]\n")
    os.utime(job.path / "logs" / "train.log", (time.time() + 9, time.time() + 9))
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "step 72/150" in text(pilot, "#progress"))
        await pilot.press("l")
        await until(pilot, on(pilot, "LogScreen"))
        for name in ("train", "export", "serve", "train"):
            await until(pilot, lambda name=name: f"this is {name} [not markup]" in page(pilot))
            assert f"{name}.log" in text(pilot, "#path")
            await pilot.press("n")
        await pilot.press("escape")
        await until(pilot, on(pilot, "TrainingScreen"))


@pytest.mark.parametrize("tmux", [False, True])
async def test_y_copies_what_the_screen_says(home, monkeypatch, tmux):
    import base64

    job = recording.write_run("demo", step=72)
    (job.path / "logs" / "train.log").write_text("the last words\n")
    monkeypatch.setenv("TMUX", "/tmp/tmux,1,0") if tmux else monkeypatch.delenv("TMUX", raising=False)
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        sent: list[str] = []
        await until(pilot, lambda: "step 72/150" in text(pilot, "#progress"))
        monkeypatch.setattr(pilot.app._driver, "write", sent.append)
        await pilot.press("y")
        await until(pilot, lambda: "OSC 52" in said(pilot))
        assert job.name in pilot.app.clipboard and "250 real tokens/s" in pilot.app.clipboard
        encoded = base64.b64encode(pilot.app.clipboard.encode()).decode()
        assert f"\x1b]52;c;{encoded}\a" in sent
        assert (f"\x1bPtmux;\x1b\x1b]52;c;{encoded}\x07\x1b\\" in sent) is tmux
        await pilot.press("l")
        await until(pilot, lambda: "the last words" in page(pilot))
        await pilot.press("y")
        await until(pilot, lambda: pilot.app.clipboard.strip() == "the last words")


async def test_where_there_is_nothing_to_copy_the_key_says_so(home):
    recording.write_run("demo", step=72)
    async with app().run_test(size=(80, 24)) as pilot:
        await until(pilot, on(pilot, "HomeScreen"))
        await until(pilot, lambda: pilot.app.snapshot.jobs)
        await pilot.press("y")
        await until(pilot, lambda: "nothing to copy" in said(pilot))
        assert screen_name(pilot) == "HomeScreen"


async def test_a_tick_lays_nothing_out_anew_until_a_line_comes_or_goes(home, monkeypatch):
    """A layout of the whole screen costs more than all that a tick draws."""
    laid_out: list[Screen[Any]] = []
    layout = Screen._refresh_layout

    def counted(self: Screen[Any], *given: Any, **named: Any) -> None:
        laid_out.append(self)
        layout(self, *given, **named)

    monkeypatch.setattr(Screen, "_refresh_layout", counted)
    job = recording.write_run("demo", step=72)
    async with app(job=job).run_test(size=(80, 24)) as pilot:
        for number in range(73, 79):
            if number == 75:  # what belongs to opening the screen is over
                laid_out.clear()
            step(job, number)
            await until(pilot, lambda number=number: f"step {number}/150" in page(pilot))
        assert not laid_out
        job.event("stall", "No progress for 5 minutes after step 78.", idle_s=300)
        await until(pilot, lambda: "STALLED" in page(pilot))
        assert laid_out
