"""The app in a real pseudo-terminal: hang-up, signals, stalls, and how much it sends."""

from __future__ import annotations

import os
import signal
import termios
import threading
import time
from pathlib import Path

import psutil
import pytest

from bc250studio import jobs, pipeline, profiles, telemetry
from bc250studio.jobs import JobFolder
from tests import recording, tiny
from tests.pty.terminal import Terminal

LEFT_ALTERNATE_SCREEN = b"\x1b[?1049l"
MOUSE_OFF = b"\x1b[?1000l"


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
        spent = sum(psutil.Process(terminal.process.pid).cpu_times()[:2])
        print(f"{spent:.2f} s of a core until the run is on screen")
        assert spent < 2.5  # under 1 s on a free core; what shares the core counts too
        terminal.press("q")
        assert terminal.ended() == 0
        assert LEFT_ALTERNATE_SCREEN in terminal.received and MOUSE_OFF in terminal.received
        assert f"{job.name} goes on" in terminal.text
        assert termios.tcgetattr(terminal.slave)[3] == terminal.before[3]


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
        watched = psutil.Process(terminal.process.pid)
        busy, began = sum(watched.cpu_times()[:2]), time.monotonic()
        sent = _bytes_within(terminal, 12.0)
        seconds = time.monotonic() - began
        share = (sum(watched.cpu_times()[:2]) - busy) / seconds
        print(f"{sent / seconds:.0f} bytes/s, {100 * share:.1f} % of a core")
        assert sent / seconds < 10_000
        assert share < 0.10  # 3 % on a free core; this machine's cores are shared and the clock runs on


def test_nothing_changing_sends_nearly_nothing(home):
    recording.write_run("demo", step=150, phase="done", owner=None, stages=recording.done_stages())
    with Terminal() as terminal:
        terminal.until("Profiles")
        _bytes_within(terminal, 3.0)
        sent = _bytes_within(terminal, 10.0)
        print(f"{sent / 10:.0f} bytes/s")
        assert sent / 10 < 300


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
