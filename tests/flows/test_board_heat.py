"""A real training run that a real guard sees getting too hot: it rests, goes on, and ends with the same losses."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bc250studio import profiles, telemetry
from bc250studio.jobs import JobFolder, spawn
from tests.tiny import tiny_model
from tests.trees import Bc250

pytestmark = pytest.mark.slow

PROFILE = """
[model]
base = {base}
device = "cpu"
[data]
path = {data}
max_length = 64
eval_fraction = 0.0
[adapter]
rank = 4
[train]
steps = 12
tokens_per_step = 128
tokens_per_pass = 128
learning_rate = 1e-3
checkpoint_every = 0
"""


def until(condition: Callable[[], bool], runner: subprocess.Popen[bytes], limit_s: float = 200.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert runner.poll() is None and time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.1)


def a_job(folder: Path) -> JobFolder:
    chats = [(f"Count to {n}", " ".join(map(str, range(n)))) for n in range(2, 26)]
    rows = [{"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]} for q, a in chats]
    data = folder / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    text = PROFILE.format(base=json.dumps(str(tiny_model())), data=json.dumps(str(data)))
    return JobFolder.create("train", profiles.from_text(text, "test"))


def start(*jobs: JobFolder) -> subprocess.Popen[bytes]:
    """The runner over several jobs in one process, one after the other: torch is loaded once."""
    code = "import sys; from bc250studio.train import runner; sys.exit(max(runner.main([j]) for j in sys.argv[1:]))"
    log = (jobs[0].path / "logs/train.log").open("wb")
    environment = {**spawn.child_environment(), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *(str(job.path) for job in jobs)]
    return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)


def samples(job: JobFolder) -> int:
    """Lines the guard has written."""
    file = job.path / "board.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def losses(job: JobFolder) -> list[float]:
    return [row["loss"] for row in telemetry.read_all(job.path / "metrics.jsonl")]


def kinds(job: JobFolder, *wanted: str) -> list[dict]:
    return [event for event in job.events() if event["event"] in wanted and event.get("reason") == "heat"]


def test_a_run_that_rests_from_92_to_70_degrees_ends_with_the_unpaused_losses(tmp_path: Path) -> None:
    board, hot, cool = Bc250(tmp_path / "board", tctl_c=60.0).write(), a_job(tmp_path), a_job(tmp_path)
    runner = start(hot, cool)
    module = [sys.executable, "-m", "bc250studio.board.guard"]
    guard = subprocess.Popen(
        [*module, str(hot.path), str(runner.pid), "--root", str(board.root), "--interval", "0.1"],
        env=spawn.child_environment(),
    )
    try:
        until(lambda: samples(hot) >= 2, runner)
        board.tctl_c = 92.0
        board.write()
        until(lambda: len(kinds(hot, "paused")) == 1, runner)
        resting_at = len(losses(hot))
        assert 1 <= resting_at < 12 and hot.state()["phase"] == "cooling"
        board.tctl_c = 80.0  # below the pause at 90, above going on at 78
        board.write()
        seen = samples(hot)
        until(lambda: samples(hot) > seen + 10, runner)
        assert len(losses(hot)) == resting_at and not kinds(hot, "resumed")
        board.tctl_c = 70.0
        board.write()
        assert runner.wait(timeout=300) == 0, (hot.path / "logs/train.log").read_text()[-2000:]
        assert guard.wait(timeout=60) == 0
    finally:
        for process in (runner, guard):
            process.kill()
            process.wait()
    assert losses(hot) == losses(cool) and len(losses(hot)) == 12
    (rest,) = kinds(hot, "resumed")
    assert rest["paused_s"] > 0.5
    longest = max(row["step_s"] for row in telemetry.read_all(hot.path / "metrics.jsonl"))
    assert longest < rest["paused_s"], "the rest is in no step's time"
    assert any(event["event"] == "checkpoint" for event in hot.events()), "a checkpoint before the rest"
