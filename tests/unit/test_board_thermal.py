"""The heat policy on scripted curves, with a clock of its own: when it waits, pauses, goes on, and what it says."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bc250studio import profiles
from bc250studio.board import presets, thermal
from bc250studio.board.reading import Reading, missing
from bc250studio.board.sensors import control_temperature
from bc250studio.board.sysfs import Tree
from bc250studio.errors import JobFailed
from bc250studio.jobs import JobFolder
from bc250studio.profiles.thermal import Thermal
from tests.trees import Bc250

CPU_LIMITS = thermal.Limits(80.0, 86.0, 74.0, None, "a test")


class Script:
    """A guard on a clock of its own: each second of waiting or working writes the curve's next temperature."""

    def __init__(self, job: JobFolder, curve: Sequence[float | None], available_mib: Sequence[float] = ()) -> None:
        self.job, self.curve, self.available = job, list(curve), list(available_mib)
        self.t = 1_000_000.0
        self.report()

    def now(self) -> float:
        return self.t

    def wait(self, seconds: float) -> None:
        self.t += max(seconds, 1.0)
        self.report()

    def report(self) -> None:
        if not self.curve:
            return
        temp = self.curve.pop(0) if len(self.curve) > 1 else self.curve[0]
        free = self.available.pop(0) if len(self.available) > 1 else (self.available or [8000.0])[0]
        heat = Reading(temp, "°C", "a test") if temp is not None else missing("°C", "the sensor is gone")
        line: dict[str, Any] = {
            "t": self.t,
            "readings": {
                "gpu_temp_c": heat.as_dict(),
                "mem_available_mib": Reading(free, "MiB", "a test").as_dict(),
            },
        }
        with (self.job.path / "board.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def a_job() -> JobFolder:
    job = JobFolder.create("train", profiles.from_text("", "test"))
    job.write_state(phase="training")
    return job


def a_gate(
    script: Script, limits: thermal.Limits = CPU_LIMITS, wishes: Thermal | None = None, **more: Any
) -> thermal.Gate:
    return thermal.Gate(script.job, wishes or Thermal(), limits, now=script.now, wait=script.wait, **more)


def descend(rest: Callable[[], float]) -> list[float]:
    """Forty steps of gradient descent on a fixed least-squares problem; the losses, bit for bit."""
    rng = np.random.default_rng(0)
    x, y, w = rng.normal(size=(64, 8)), rng.normal(size=64), np.zeros(8)
    losses = []
    for _ in range(40):
        rest()
        error = x @ w - y
        losses.append(float(error @ error / 64))
        w -= 0.05 * (x.T @ error) / 64
    return losses


def test_a_curve_of_60_92_70_pauses_once_and_leaves_the_losses_as_they_were() -> None:
    curve = [*range(60, 93, 2), *range(92, 69, -1), *[70] * 60]
    script = Script(a_job(), curve)
    gate = a_gate(script)
    saved: list[float] = []

    def between() -> float:
        script.wait(1.0)  # the step itself takes a second of the curve
        return gate.between_steps(checkpoint=lambda: saved.append(script.t))

    paused = descend(between)
    assert paused == descend(lambda: 0.0)
    events = [event for event in script.job.events() if event["event"] in ("paused", "resumed")]
    assert [event["event"] for event in events] == ["paused", "resumed"]
    assert events[0]["temp_c"] == 86 and "74" in events[0]["text"]
    # 86, 88, 90, 92, then down a degree a second to 73, the first one below 74.
    assert gate.paused_s == events[1]["paused_s"] == pytest.approx(23, abs=1)
    assert gate.hottest_c == 92
    # At or above 80: 80 .. 92 going up (7 s), 92 .. 80 going down (13 s).
    assert gate.throttled_s == pytest.approx(20, abs=1)
    assert len(saved) == 1, "a checkpoint before the rest"
    assert script.job.state()["phase"] == "training"


def test_between_throttle_and_pause_only_seconds_are_counted() -> None:
    script = Script(a_job(), [82.0] * 30)
    gate = a_gate(script)
    for _ in range(10):
        script.wait(1.0)
        assert gate.between_steps() == 0.0
    assert gate.throttled_s == pytest.approx(10)
    assert not script.job.events()


def test_a_cool_start_waits_and_says_so() -> None:
    script = Script(a_job(), [70.0, 66.0, 61.0, 56.0, 54.0])
    limits = thermal.Limits(80.0, 86.0, 74.0, 55.0, "a test")
    lines: list[str] = []
    waited = a_gate(script, limits).before_start(lambda text, done, total: lines.append(text))
    assert waited == pytest.approx(4, abs=0.5)
    assert "Cooling to 55 °C" in lines[0] and "now 70 °C" in lines[0]
    assert a_gate(Script(a_job(), [70.0])).before_start() == 0.0, "off unless asked"


def test_a_user_who_stops_does_not_wait_for_the_chip() -> None:
    script = Script(a_job(), [95.0])
    gate = a_gate(script, asked_to_stop=lambda: script.t > 1_000_003)
    assert gate.between_steps() < 6


def test_blind_is_said_once_and_seeing_again_too() -> None:
    script = Script(a_job(), [70.0, None, None, None, 71.0])
    gate = a_gate(script)
    for _ in range(5):
        assert gate.between_steps() == 0.0
        script.wait(1.0)
    said = [event for event in script.job.events() if "blind" in event]
    assert [event["blind"] for event in said] == [True, False]
    assert "the sensor is gone" in said[0]["text"]


def test_a_dead_guard_makes_the_gate_blind_not_trusting() -> None:
    script = Script(a_job(), [70.0])
    gate = a_gate(script)
    assert gate.between_steps() == 0.0
    script.curve = []
    script.wait(60.0)
    assert gate.between_steps() == 0.0
    assert "60 s old" in script.job.events()[-1]["text"]


def test_a_guard_that_never_reports_is_said_too() -> None:
    job = a_job()
    clock = [0.0]
    gate = thermal.Gate(job, Thermal(), CPU_LIMITS, now=lambda: clock[0], wait=lambda s: None)
    gate.between_steps()
    assert not job.events()
    clock[0] = 30.0
    gate.between_steps()
    assert "not reported" in job.events()[0]["text"]


def test_a_sensor_lost_while_resting_is_not_taken_as_cool() -> None:
    script = Script(a_job(), [90.0, None])
    gate = a_gate(script)
    assert gate.between_steps() > 890
    texts = " ".join(event["text"] for event in script.job.events())
    assert "blind" in texts and "15 minutes" in texts


def test_short_memory_pauses_with_a_checkpoint_and_goes_on() -> None:
    script = Script(a_job(), [60.0], available_mib=[300.0, 300.0, 300.0, 900.0])
    saved: list[bool] = []
    gate = a_gate(script, wishes=Thermal(min_available_mib=400))
    assert gate.between_steps(checkpoint=lambda: saved.append(True)) > 0
    assert saved == [True]
    assert [event["reason"] for event in script.job.events()] == ["memory", "memory"]
    assert a_gate(Script(a_job(), [60.0], [300.0]), wishes=Thermal(min_available_mib=0)).between_steps() == 0.0


def test_memory_that_never_comes_back_ends_the_run_with_advice() -> None:
    script = Script(a_job(), [60.0], available_mib=[100.0])
    with pytest.raises(JobFailed, match=r"100 MiB of memory are left, 400 are wanted.*resume"):
        a_gate(script, wishes=Thermal(min_available_mib=400)).between_steps()


def test_limits_follow_the_governor_then_the_preset_and_the_profile_wins(tmp_path: Path) -> None:
    chip = presets.of("gfx1013")
    board = Tree(Bc250(tmp_path).write().root)
    found = thermal.limits(Thermal(), chip, board)
    assert (found.throttle_c, found.pause_at_c, found.resume_below_c, found.start_below_c) == (80.0, 86.0, 74.0, None)
    assert found.source.endswith("config.toml")
    empty = Tree(tmp_path / "none")
    bare = thermal.limits(Thermal(), chip, empty)
    assert (bare.throttle_c, bare.pause_at_c, bare.resume_below_c) == (85.0, 90.0, 78.0)
    assert bare.source == "preset gfx1013"
    asked = thermal.limits(Thermal(pause_at_c=75.0, start_below_c=55.0), chip, board)
    assert (asked.pause_at_c, asked.resume_below_c, asked.start_below_c) == (75.0, 63.0, 55.0)
    odd = thermal.limits(Thermal(pause_at_c=75.0, resume_below_c=90.0), chip, board)
    assert odd.resume_below_c == 75.0, "never resume hotter than the pause"


def test_a_run_on_the_cpu_goes_by_the_cpus_temperature(tmp_path: Path) -> None:
    assert thermal.limits(Thermal(), presets.of("cpu"), Tree(tmp_path)).by == "cpu"
    readings = {"gpu_temp_c": Reading(40.0, "°C", "a"), "cpu_temp_c": Reading(97.0, "°C", "b")}
    assert control_temperature(readings, "cpu").value == 97.0 and control_temperature(readings).value == 40.0
    without = {**readings, "gpu_temp_c": missing("°C", "no GPU")}
    assert control_temperature(without).value == 97.0
    blind = {**readings, "gpu_temp_c": missing("°C", "no amdgpu temp1_input")}
    assert not control_temperature(blind).good, "another chip's temperature does not stand in for a GPU's"


def test_the_latch_holds_between_its_two_temperatures() -> None:
    latch = thermal.Latch(CPU_LIMITS)
    felt = [latch.feel(t) for t in (73, 80, 85.9, 86, 80, 74, 73.9, 80, 85)]
    assert felt == [False, False, False, True, True, True, False, False, False]
