"""The app in a real pseudo-terminal: hang-up, signals, stalls, and how much it sends."""

from __future__ import annotations

import os
import re
import signal
import termios
import threading
import time
from pathlib import Path

import psutil
import pytest

from bc250studio import jobs, paths, pipeline, profiles, telemetry
from bc250studio.jobs import JobFolder
from tests import recording, tiny
from tests.pty.terminal import APP, Terminal
from tests.speed import slowness

LEFT_ALTERNATE_SCREEN = b"\x1b[?1049l"
MOUSE_OFF = b"\x1b[?1000l"
FIRST_FRAME_S = 1.5
"""Processor seconds from the start of Python to a run on screen; the wall clock of a shared machine says little."""


class Beat:
    """Goes on writing a recorded run, a step and a board reading a second, as runner and guard do."""

    def __init__(self, job: JobFolder, step: int) -> None:
        self.job, self.step = job, step
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Beat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _work(self) -> None:
        metrics = telemetry.Writer(self.job.path / "metrics.jsonl")
        board = telemetry.Writer(self.job.path / "board.jsonl")
        while not self._end.wait(1.0):
            self.step += 1
            now = recording.step_record(self.step, time.time() - self.step)
            metrics.write(now)
            board.write({"readings": recording.readings(self.step)})
            self.job.write_state(
                step=self.step, loss=now["loss"], loss_ema=now["loss_ema"], eta_s=(600 - self.step) * 8.1,
                real_tokens_per_s=now["real_tokens_per_s"],
            )  # fmt: skip


def test_first_frame_and_leaving_by_q(home):
    job = recording.write_run("demo", step=72)
    with Terminal() as terminal:
        terminal.until("step 72/150")
        terminal.until("Pause")
        assert "RECORDING" in terminal.text
        spent = _cpu_s(terminal)
        print(f"{spent:.2f} s of a core until the run is on screen")
        assert spent < FIRST_FRAME_S * slowness()
        terminal.press("q")
        assert terminal.ended() == 0
        assert LEFT_ALTERNATE_SCREEN in terminal.received and MOUSE_OFF in terminal.received
        assert f"{job.name} goes on" in terminal.text
        assert termios.tcgetattr(terminal.slave)[3] == terminal.before[3]


def test_the_title_shows_progress_and_the_old_one_comes_back(home):
    job = recording.write_run("demo", step=72, steps=600)
    with Terminal() as terminal, Beat(job, 72) as beat:
        terminal.until(lambda: f"\x1b]0;{job.name} 12 % training\x07".encode() in terminal.received)
        beat.step = 119
        terminal.until(lambda: f"\x1b]0;{job.name} 20 % training\x07".encode() in terminal.received)
        assert terminal.received.index(b"\x1b[22;0t") < terminal.received.index(b"\x1b]0;")
        assert terminal.received.count(b"\x1b]0;") < 8, "the title is sent only when it changes"
        terminal.press("q")
        assert terminal.ended() == 0
        assert terminal.received.rindex(b"\x1b[23;0t") > terminal.received.rindex(b"\x1b]0;")


@pytest.mark.parametrize("mouse", [True, False])
def test_no_mouse_sends_no_mouse_tracking_ever(home, mouse):
    recording.write_run("demo", step=72)
    with Terminal(command=[*APP, *([] if mouse else ["--no-mouse"])]) as terminal:
        terminal.until("step 72/150")
        os.kill(terminal.process.pid, signal.SIGTSTP)
        terminal.until(lambda: psutil.Process(terminal.process.pid).status() == psutil.STATUS_STOPPED)
        terminal.screen.reset()
        os.kill(terminal.process.pid, signal.SIGCONT)
        terminal.until("step 72/150")
        terminal.press("z")
        terminal.until("Next chart")
        terminal.press("q")
        assert terminal.ended() == 0
        tracking = re.findall(rb"\x1b\[\?(?:9|100[0-35-7]|101[56])h", terminal.received)
        assert bool(tracking) is mouse, tracking


def test_a_call_rings_and_notifies_the_desktop(home):
    paths.private_dir(paths.config_dir())
    paths.settings_file().write_text("[notify]\nosc = true\n")
    job = recording.write_run("demo", step=72)
    with Terminal() as terminal:
        terminal.until("step 72/150")
        job.write_state(phase="failed", owner=None, stage=None, error="The loss is no number.")
        said = f"\x1b]9;{job.name}: ✗ failed: The loss is no number.\x07".encode()
        terminal.until(lambda: said in terminal.received)
        assert b"\x07" in re.sub(rb"\x1b\][^\x07]*\x07", b"", terminal.received), "a bell of its own"


def test_thin_mode_sends_less_and_is_drawn_in_sixteen_colours(home):
    paths.private_dir(paths.config_dir())
    job = recording.write_run("demo", step=72, steps=600)
    with Terminal() as terminal, Beat(job, 72):
        terminal.until("/600")
        full = _bytes_within(terminal, 9.0)
        terminal.press("b")
        terminal.until("One update every three seconds")
        terminal.until(lambda: "One update" not in terminal.text)
        terminal.received = b""
        thin = _bytes_within(terminal, 9.0)
        print(f"{full / 9:.0f} bytes/s, thin {thin / 9:.0f} bytes/s")
        assert thin < full / 2
        assert b"38;2;" not in terminal.received and b"48;2;" not in terminal.received, "no 24-bit colour any more"


def test_sigterm_gives_the_terminal_back(home):
    recording.write_run("demo", step=72)
    with Terminal() as terminal:
        terminal.until("step 72/150")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.ended() == 143
        assert LEFT_ALTERNATE_SCREEN in terminal.received and MOUSE_OFF in terminal.received
        assert termios.tcgetattr(terminal.slave)[3] == terminal.before[3]


def test_sigterm_ends_it_even_when_the_terminal_takes_nothing(home):
    job = recording.write_run("demo", step=72)
    with Terminal(columns=200, lines=60) as terminal, Beat(job, 72):
        terminal.until("step 7")
        for _ in range(40):  # nobody reads any more; redraws fill the line
            os.write(terminal.master, b"\x1b[15~")
        time.sleep(3)
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.process.wait(10) == 143
        assert termios.tcgetattr(terminal.slave)[3] == terminal.before[3]


@pytest.mark.parametrize("ignored", [False, True], ids=["plain", "under nohup"])
def test_hanging_up_ends_the_app_at_once(home, ignored):
    recording.write_run("demo", step=72)
    with Terminal(ignore_hangup=ignored) as terminal:
        terminal.until("step 72/150")
        terminal.hang_up()
        assert terminal.process.wait(5) in (-signal.SIGHUP, 129)


def test_a_stalled_line_catches_up(home):
    job = recording.write_run("demo", step=72, steps=600)
    with Terminal() as terminal, Beat(job, 72) as beat:
        terminal.until("step 7")
        time.sleep(4)
        terminal.until(lambda: f"step {beat.step}/600" in terminal.text or f"step {beat.step - 1}/600" in terminal.text)


def test_stopping_and_going_on_with_the_shell(home):
    recording.write_run("demo", step=72)
    with Terminal() as terminal:
        terminal.until("step 72/150")
        os.kill(terminal.process.pid, signal.SIGTSTP)
        terminal.until(lambda: psutil.Process(terminal.process.pid).status() == psutil.STATUS_STOPPED)
        assert LEFT_ALTERNATE_SCREEN in terminal.received
        terminal.screen.reset()
        os.kill(terminal.process.pid, signal.SIGCONT)
        terminal.until("step 72/150")
        terminal.press("q")
        assert terminal.ended() == 0


def test_two_apps_look_at_one_run(home):
    job = recording.write_run("demo", step=72)
    with Terminal() as first, Terminal() as second:
        first.until("step 72/150")
        second.until("step 72/150")
        first.press("p")
        second.press("p")
        second.until(lambda: len(list((job.path / "control").iterdir())) == 2)


def test_what_is_sent_while_training_stays_under_ten_kilobytes_a_second(home):
    job = recording.write_run("demo", step=72, steps=600)
    with Terminal() as terminal, Beat(job, 72) as beat:
        terminal.until(lambda: "/600" in terminal.text and beat.step > 74)
        sent = _bytes_within(terminal, 12.0)
        print(f"{sent / 12:.0f} bytes/s")
        assert sent / 12 < 10_000


def test_following_a_run_takes_under_three_percent_of_a_core(home):
    """Processor time of the app for a run that makes a step a second, as the kernel counts it: no wall clock."""
    job = recording.write_run("demo", step=400, steps=2000)
    with Terminal() as terminal, Beat(job, 400) as beat:
        terminal.until(lambda: "/2000" in terminal.text and beat.step > 403)
        busy, first = _cpu_s(terminal), beat.step
        terminal.until(lambda: beat.step >= first + 12, timeout_s=120)
        spent, steps = _cpu_s(terminal) - busy, beat.step - first
        print(f"{1000 * spent / steps:.1f} ms of a core for each second of a run")
        assert spent / steps < 0.030 * slowness()


def test_a_storm_of_resizes_ends_in_a_right_picture(home):
    recording.write_run("demo", step=72)
    with Terminal() as terminal:
        terminal.until("step 72/150")
        for columns, lines in [(120, 40), (40, 10), (200, 60), (2, 1), (61, 17)] * 20 + [(80, 24)]:
            terminal.resize(columns, lines)
        terminal.until("250 real")
        terminal.until("Pause")
        assert terminal.process.poll() is None


def test_nothing_changing_sends_nearly_nothing(home):
    recording.write_run("demo", step=150, phase="done", owner=None, stages=recording.done_stages())
    with Terminal() as terminal:
        terminal.until("Profiles")
        _bytes_within(terminal, 3.0)
        sent = _bytes_within(terminal, 10.0)
        print(f"{sent / 10:.0f} bytes/s")
        assert sent / 10 < 300


def _cpu_s(terminal: Terminal) -> float:
    """Processor time of the app so far, user and system, children that have ended included."""
    return sum(psutil.Process(terminal.process.pid).cpu_times()[:4])


def _bytes_within(terminal: Terminal, seconds: float) -> int:
    before, deadline = terminal.count, time.monotonic() + seconds
    while time.monotonic() < deadline:
        terminal.pump(0.2)
    return terminal.count - before


@pytest.mark.slow
def test_a_cut_line_in_mid_training_costs_nothing_and_attaching_is_the_normal_way(home, tmp_path: Path):
    """A real training of a tiny model; the terminal dies; the run goes on; the app opens on it again."""
    changes = {
        "model.base": str(tiny.tiny_model()),
        "data.max_length": 128,
        "train.steps": 4000,
        "train.tokens_per_step": 128,
        "train.tokens_per_pass": 128,
    }
    job = pipeline.launch(profiles.load("demo", changes), ("train",))
    with Terminal() as terminal:
        terminal.until("step ", timeout_s=120)
        terminal.until(lambda: (job.state().get("step") or 0) >= 3, timeout_s=120)
        terminal.hang_up()
        terminal.process.wait(5)
    at_hang_up = job.state()["step"]
    assert jobs.standing(job).live and at_hang_up < 4000
    with Terminal() as terminal:
        terminal.until(job.name[:20])
        terminal.until(lambda: job.state()["step"] > at_hang_up, timeout_s=60)
        terminal.until("/4000")
        terminal.press("s")
        terminal.until("Stop it")
        terminal.press("y")
        terminal.until("stopped", timeout_s=60)
        terminal.press("q")
        assert terminal.ended() == 0
    assert jobs.standing(job).verdict == "stopped"
