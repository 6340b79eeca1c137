"""Jobs: who owns one is judged by evidence, reading never fails, requests arrive once."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bc250studio import jobs, paths, profiles, telemetry
from bc250studio.errors import BadInput, JobFailed
from bc250studio.jobs import control, spawn
from bc250studio.jobs.identity import Identity, mine, of

OWNER = """
import sys, time
from pathlib import Path
from bc250studio.jobs import JobFolder, Lock
job = JobFolder(Path(sys.argv[1]))
with Lock(job.path):
    job.own("training")
    print("mine", flush=True)
    while True:
        time.sleep(0.05)
"""


@pytest.fixture
def job():
    return jobs.JobFolder.create("train", profiles.from_text("", "x.toml", "demo"))


def start_owner(job) -> subprocess.Popen:
    return spawn.spawn(job, [sys.executable, "-c", OWNER, str(job.path)], "owner")


def test_a_new_job_is_private_and_complete(job):
    assert stat.S_IMODE(job.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((job.path / "profile.toml").stat().st_mode) == 0o600
    assert job.profile().profile == profiles.from_text("", "y").profile
    assert jobs.standing(job).verdict == "created"
    assert jobs.find("last").path == job.path
    assert jobs.find(job.name[:-2]).path == job.path


def test_a_job_in_its_own_session_is_live_then_lost(job):
    child = start_owner(job)
    try:
        assert os.getsid(child.pid) == child.pid != os.getsid(0)
        found = jobs.standing(job)
        assert (found.verdict, found.phase) == ("live", "training")
        assert [one.job.name for one in jobs.live()] == [job.name]
        with pytest.raises(JobFailed, match="already being worked on"):
            jobs.Lock(job.path).acquire()
    finally:
        child.kill()
        child.wait()
    assert jobs.standing(job).verdict == "lost"
    with jobs.Lock(job.path):
        pass


def test_a_reboot_is_told_from_a_crash(job):
    job.write_state(phase="training", owner={**mine().as_dict(), "boot": "another"})
    assert jobs.standing(job).verdict == "machine restarted"


def test_a_reused_pid_is_not_the_owner(job):
    me = mine()
    job.write_state(phase="training", owner=Identity(me.pid, me.start + 1, me.boot).as_dict())
    assert jobs.standing(job).verdict == "lost"


def test_only_our_own_process_is_signalled():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        identity = of(child.pid)
        wrong = Identity(identity.pid, identity.start + 1, identity.boot)
        assert not spawn.terminate(wrong, signal.SIGKILL)
        assert child.poll() is None
        assert spawn.terminate(identity, signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL
        assert not spawn.terminate(identity, signal.SIGKILL)
    finally:
        child.kill()


def test_a_child_that_dies_at_once_says_why(job):
    with pytest.raises(JobFailed, match="no such thing"):
        spawn.spawn(job, [sys.executable, "-c", "raise SystemExit('no such thing')"], "x")


def test_requests_are_taken_once_in_order(job):
    control.ask(job, "pause")
    control.ask(job, "resume", why="tea")
    (job.path / "control" / "junk.json").write_bytes(b"\xff{")
    assert [r["verb"] for r in control.take(job)] == ["pause", "resume"]
    assert control.take(job) == []
    with pytest.raises(BadInput, match="Did you mean 'pause'"):
        control.ask(job, "pasue")


@pytest.mark.parametrize("name", ["state.json", "events.jsonl", "server.json", "stages/train.json", "control/1.json"])
@given(content=st.binary(max_size=300))
def test_no_bytes_in_a_job_folder_crash_a_reader(name: str, content: bytes):
    job = jobs.all_jobs()[0] if jobs.all_jobs() else jobs.JobFolder.create("train", None)
    keep = (job.path / "state.json").read_bytes()
    file = job.path / name
    file.write_bytes(content)
    jobs.standing(job)
    job.events()
    job.stages()
    control.take(job)
    jobs.all_jobs()
    (job.path / "state.json").write_bytes(keep)


def test_find_names_what_is_near(job):
    with pytest.raises(BadInput, match="No run is called"):
        jobs.find("nothing-like-it")


def test_tail_keeps_a_torn_line_and_a_writer_heals_it(tmp_path):
    file = tmp_path / "m.jsonl"
    tail = telemetry.Tail(file)
    assert tail.read() == []
    writer = telemetry.Writer(file)
    writer.write({"step": 1, "loss": float("nan")})
    with file.open("ab") as raw:
        raw.write(b'{"step": 2')
    assert [r["step"] for r in tail.read()] == [1]
    assert tail.read() == []
    telemetry.Writer(file).write({"step": 3})
    assert [r["step"] for r in tail.read()] == [3]
    assert json.loads(file.read_text().splitlines()[0])["loss"] is None


def test_atomic_write_leaves_nothing_on_failure(tmp_path, monkeypatch):
    target = tmp_path / "a"
    paths.write_atomic(target, "one")

    def broken(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="No space"):
        paths.write_atomic(target, "two")
    assert target.read_text() == "one"
    assert list(tmp_path.iterdir()) == [target]
