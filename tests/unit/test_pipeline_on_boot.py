"""After a reboot: only runs the machine took down, three tries each, cool, and the queue goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from bc250studio import jobs, pipeline, profiles
from bc250studio.errors import JobFailed
from bc250studio.pipeline import on_boot, queue


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    seen: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(pipeline, "go_on", lambda job, stages: seen.append((job.name, list(stages))))
    return seen


def taken_down(
    title: str, phase: str = "training", kind: str = "train", boot: str = "an-earlier-boot"
) -> jobs.JobFolder:
    job = jobs.JobFolder.create(kind, profiles.from_text("", "x.toml", "demo"), title)
    job.write_state(phase=phase, owner={"pid": 1, "start": 5, "boot": boot}, stages=["train"])
    return job


def test_only_what_the_reboot_took_down_goes_on(started) -> None:
    lost = taken_down("lost")
    for title, phase in (("asked", "stopped"), ("ended", "done"), ("broken", "failed")):
        taken_down(title, phase)
    taken_down("bench", kind="bench")
    taken_down("crashed", boot=jobs.boot_id())
    assert on_boot.resume_all() == 0
    assert started == [(lost.name, ["train"])]
    assert lost.state()["cool_start_c"] == queue.COOL_START_C
    assert "try 1 of 3" in lost.events()[-1]["text"]


def test_after_three_tries_somebody_must_look(started) -> None:
    job = taken_down("again")
    for _ in range(5):
        on_boot.resume_all()
    assert len(started) == on_boot.MOST_TRIES
    assert "Not resumed" in job.events()[-1]["text"]


def test_one_that_cannot_go_on_does_not_hold_the_others(monkeypatch) -> None:
    tried = []

    def go_on(job: jobs.JobFolder, stages: object) -> None:
        tried.append(job.name)
        if len(tried) == 1:
            raise JobFailed("No.")

    monkeypatch.setattr(pipeline, "go_on", go_on)
    first, second = taken_down("a"), taken_down("b")
    assert on_boot.resume_all() == 1
    assert set(tried) == {first.name, second.name}


def test_a_waiting_queue_goes_on(started, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(queue, "ensure_runner", lambda: asked.append(1))
    on_boot.resume_all()
    assert asked == []
    queue.add(profiles.from_text("", "x", "a"))
    on_boot.resume_all()
    assert asked == [1]


def test_the_unit_is_a_users_own_and_linger_is_mentioned(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "systemctl").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    (bin_folder / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")
    monkeypatch.setattr(on_boot, "lingers", lambda: False)
    remarks = on_boot.enable()
    assert "enable-linger" in remarks[0]
    assert "bc250studio.pipeline.on_boot" in on_boot.unit_file().read_text()
    assert on_boot.unit_file().is_relative_to(tmp_path)
    on_boot.disable()
    assert not on_boot.unit_file().exists()
    verb = f"--user %s {on_boot.UNIT}"
    assert (tmp_path / "asked").read_text().splitlines() == [verb % "enable", verb % "disable"]
