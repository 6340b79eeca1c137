"""The guard as a real process: samples while its supervisor lives, and puts everything back however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bc250studio import profiles, telemetry
from bc250studio.board import fans
from bc250studio.board import guard as guard_module
from bc250studio.board.sysfs import Tree
from bc250studio.errors import JobFailed
from bc250studio.jobs import JobFolder, spawn
from bc250studio.jobs.lock import Lock
from tests.trees import Bc250
from tests.trees.plain import put


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def supervisor() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    yield process
    process.kill()
    process.wait()


def job_with(thermal: str = "") -> JobFolder:
    return JobFolder.create("train", profiles.from_text(thermal, "test"))


def start(job: JobFolder, supervisor_pid: int, root: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bc250studio.board.guard", str(job.path), str(supervisor_pid)]
    return subprocess.Popen([*command, "--root", str(root), "--interval", "0.1"], env=spawn.child_environment())


def pwms(board: Bc250) -> list[str]:
    return [(board.fan_board / f"pwm{n}{suffix}").read_text().strip() for n in (1, 2, 3) for suffix in ("", "_enable")]


def lines(job: JobFolder) -> list[dict]:
    return telemetry.read_all(job.path / "board.jsonl")


def test_it_samples_until_the_supervisor_ends(tmp_path: Path, supervisor: subprocess.Popen[bytes]) -> None:
    board, job = Bc250(tmp_path).write(), job_with()
    guard = start(job, supervisor.pid, board.root)
    until(lambda: len(lines(job)) >= 3)
    heat = lines(job)[0]["readings"]["gpu_temp_c"]
    assert heat == {
        "value": 68.5, "unit": "°C", "source": "gpu_metrics v2.2", "age_s": 0.0, "trust": "good", "why": "",
    }  # fmt: skip
    assert oct((job.path / "board.jsonl").stat().st_mode)[-3:] == "600"
    assert pwms(board)[2] == "92", "fans are left alone unless the profile asks"
    supervisor.kill()
    supervisor.wait()
    assert guard.wait(timeout=60) == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_kill_of_the_supervisor_with_fan_control_on_restores_the_pwm(
    tmp_path: Path, supervisor: subprocess.Popen[bytes], how: signal.Signals
) -> None:
    board = Bc250(tmp_path).write()
    before = pwms(board)
    job = job_with('[thermal]\nfan_while_measuring = "full"\n')
    guard = start(job, supervisor.pid, board.root)
    until(lambda: (board.fan_board / "pwm2").read_text().strip() == "255")
    assert pwms(board) == [*before[:2], "255", "1", *before[4:]], "only the output whose fan turns"
    until(lambda: len(lines(job)) >= 1)
    supervisor.send_signal(how)
    supervisor.wait()
    assert guard.wait(timeout=60) == 0
    assert pwms(board) == before
    assert not (job.path / "fans.json").exists()
    texts = [event["text"] for event in job.events()]
    assert "full speed" in texts[0] and "put back" in texts[-1]


def test_a_killed_guards_changes_are_put_back_by_the_next_one(
    tmp_path: Path, supervisor: subprocess.Popen[bytes]
) -> None:
    board = Bc250(tmp_path).write()
    before = pwms(board)
    job = job_with('[thermal]\nfan_while_measuring = "full"\n')
    guard = start(job, supervisor.pid, board.root)
    until(lambda: (board.fan_board / "pwm2").read_text().strip() == "255" and len(lines(job)) > 0)
    guard.send_signal(signal.SIGKILL)
    guard.wait()
    assert pwms(board) != before and (job.path / "fans.json").exists()
    other = job_with()
    second = start(other, supervisor.pid, board.root)
    until(lambda: pwms(board) == before)
    second.terminate()
    assert second.wait(timeout=60) == 0
    assert not (job.path / "fans.json").exists()


def test_a_live_runs_fans_are_not_another_guards_business(tmp_path: Path, supervisor: subprocess.Popen[bytes]) -> None:
    board = Bc250(tmp_path).write()
    running = job_with()
    with Lock(running.path):
        fans.full(Tree(board.root), running.path / "fans.json")
        other = job_with()
        guard = start(other, supervisor.pid, board.root)
        until(lambda: len(lines(other)) >= 2)
        assert (board.fan_board / "pwm2").read_text().strip() == "255"
        guard.terminate()
        assert guard.wait(timeout=60) == 0


def test_hwmon_numbers_that_moved_do_not_stop_the_restore(tmp_path: Path) -> None:
    board, record = Bc250(tmp_path).write(), tmp_path / "fans.json"
    fans.full(Tree(tmp_path), record)
    board.nct = 9
    board.write()
    assert [fan.channel for fan in fans.restore(Tree(tmp_path), record)] == [2]
    assert pwms(board)[2:4] == ["92", "99"] and not record.exists()


def test_no_writable_pwm_is_a_sentence_and_the_run_goes_on(tmp_path: Path, supervisor: subprocess.Popen[bytes]) -> None:
    board = Bc250(tmp_path, pwm=False, nct_driver="nct6683").write()
    job = job_with('[thermal]\nfan_while_measuring = "full"\n')
    guard = start(job, supervisor.pid, board.root)
    until(lambda: len(lines(job)) >= 1)
    assert "fans stay as they are" in job.events()[0]["text"]
    guard.terminate()
    assert guard.wait(timeout=60) == 0
    with pytest.raises(JobFailed, match="nct6687"):
        fans.full(Tree(board.root), tmp_path / "fans.json")


def test_a_record_nobody_can_read_is_dropped(tmp_path: Path) -> None:
    record = put(tmp_path, "fans.json", '[{"chip": 1}]')
    assert fans.restore(Tree(tmp_path), record) == [] and not record.exists()
    assert fans.restore(Tree(tmp_path), record) == []


def test_the_cap_goes_over_busctl_and_back(
    tmp_path: Path, supervisor: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busctl that keeps the governor's range in a file stands in for the system bus."""
    board, store = Bc250(tmp_path / "tree").write(), tmp_path / "range"
    store.write_text("500 2000")
    program = tmp_path / "bin" / "busctl"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\nread low high < "$STORE"\ncase "$*" in\n'
        '*Range/Current*min) echo "u $low";;\n*Range/Current*max) echo "u $high";;\n'
        '*SetRange*) shift 7; echo "$2 $3" > "$STORE";;\n*) exit 1;;\nesac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("STORE", str(store))
    job = job_with("[thermal]\ntop_clock_mhz = 1500\n")
    guard = start(job, supervisor.pid, board.root)
    until(lambda: store.read_text().split() == ["500", "1500"])
    until(lambda: len(lines(job)) >= 1)
    supervisor.kill()
    supervisor.wait()
    assert guard.wait(timeout=60) == 0
    assert store.read_text().split() == ["500", "2000"]
    assert "1500 MHz" in job.events()[0]["text"]


def test_a_benchs_fans_are_put_back_after_the_block(tmp_path: Path) -> None:
    board = Bc250(tmp_path).write()
    before = pwms(board)
    with guard_module.full_fans(board.root):
        assert pwms(board) == [*before[:2], "255", "1", *before[4:]]
    assert pwms(board) == before and not guard_module.leftovers()
    bare = Bc250(tmp_path / "bare", pwm=False, nct_driver="nct6683").write()
    with pytest.raises(JobFailed, match="fans stay as they are"), guard_module.full_fans(bare.root):
        raise AssertionError("the block must not run")


def test_a_killed_bench_leaves_no_fan_at_full_speed(tmp_path: Path) -> None:
    board = Bc250(tmp_path).write()
    before = pwms(board)
    code = (
        "import sys, time\nfrom bc250studio.board.guard import full_fans\n"
        "with full_fans(sys.argv[1]):\n    time.sleep(120)\n"
    )
    bench = subprocess.Popen([sys.executable, "-c", code, str(board.root)], env=spawn.child_environment())
    until(lambda: (board.fan_board / "pwm2").read_text().strip() == "255", 60)
    bench.kill()
    bench.wait()
    until(lambda: pwms(board) == before)
