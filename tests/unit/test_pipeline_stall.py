"""A run that stops moving is seen from outside, once, with what its process does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from bc250studio import jobs, profiles
from bc250studio.jobs import identity
from bc250studio.jobs.identity import process_state
from bc250studio.pipeline.stall import StallWatch


@pytest.fixture
def job():
    return jobs.JobFolder.create("train", profiles.from_text("", "x.toml", "demo"))


def stalls(job):
    return [event for event in job.events() if event["event"] == "stall"]


def test_a_worker_that_hangs_is_an_event_with_the_reason(job):
    worker = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        os.kill(worker.pid, signal.SIGSTOP)
        while process_state(worker.pid) != "T":
            pass
        state = job.write_state(phase="training", step=12, worker=identity.of(worker.pid).as_dict())
        clock = [state["heartbeat"]]
        watch = StallWatch(job, now=lambda: clock[0])
        clock[0] += 299
        watch.look()
        assert stalls(job) == []
        clock[0] += 2
        watch.look()
        clock[0] += 400
        watch.look()
        (event,) = stalls(job)
        assert event["text"] == (
            "No progress for 5 minutes after step 12: its process was stopped by a signal; SIGCONT lets it go on."
        )
        assert (event["step"], event["process"]) == (12, "T")
    finally:
        worker.kill()
        worker.wait()


def test_a_run_that_moves_again_is_told_and_may_stall_again(job):
    clock = [job.write_state(phase="training", step=3)["heartbeat"]]
    watch = StallWatch(job, now=lambda: clock[0])
    clock[0] += 301
    watch.look()
    clock[0] += 60
    state = job.state()
    (job.path / "state.json").write_text(json.dumps({**state, "heartbeat": clock[0]}))
    watch.look()
    assert "goes on again after 361 s" in job.events()[-1]["text"]
    clock[0] += 301
    watch.look()
    assert len(stalls(job)) == 2


def test_moving_again_in_the_same_second_is_seen(job):
    """The event of the stall is no sign of life, but whatever comes right after it is."""
    clock = [job.write_state(phase="loading")["heartbeat"]]
    watch = StallWatch(job, now=lambda: clock[0])
    clock[0] += 301
    watch.look()
    watch.look()
    assert [event["event"] for event in job.events()][-1] == "stall"
    log = job.path / "metrics.jsonl"
    log.write_text("{}\n")
    said = (job.path / "events.jsonl").stat().st_mtime_ns
    os.utime(log, ns=(said + 1_000_000, said + 1_000_000))
    watch.look()
    assert "goes on again" in job.events()[-1]["text"]


def test_a_slow_step_that_becomes_a_hang_is_said_again(job):
    worker = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        state = job.write_state(phase="training", step=12, worker=identity.of(worker.pid).as_dict())
        clock = [state["heartbeat"]]
        watch = StallWatch(job, now=lambda: clock[0])
        clock[0] += 301
        watch.look()
        os.kill(worker.pid, signal.SIGSTOP)
        while process_state(worker.pid) != "T":
            pass
        clock[0] += 60
        watch.look()
        watch.look()
        first, second = stalls(job)
        assert first["process"] in ("R", "S")
        assert (second["process"], second["idle_s"]) == ("T", 361)
    finally:
        worker.kill()
        worker.wait()


def test_heartbeats_of_a_pause_are_no_stall(job):
    clock = [job.write_state(phase="cooling")["heartbeat"]]
    watch = StallWatch(job, now=lambda: clock[0])
    for _ in range(100):
        clock[0] += 100
        (job.path / "state.json").write_text(json.dumps({**job.state(), "heartbeat": clock[0]}))
        watch.look()
    assert stalls(job) == []
