"""Heat: when to wait, when to pause, when to go on; and the gate a runner passes between two steps.

The gate reads what the guard writes (``board.jsonl``), so the sensors are read in one place. It pauses
only between optimiser steps and touches nothing of the run, so a paused run ends with the same losses.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from bc250studio import telemetry
from bc250studio.board import governor
from bc250studio.board.presets import Chip
from bc250studio.board.reading import Reading, from_dict, missing
from bc250studio.board.sensors import control_temperature
from bc250studio.board.sysfs import Tree
from bc250studio.errors import JobFailed
from bc250studio.jobs.folder import JobFolder
from bc250studio.jobs.progress import Progress, silent
from bc250studio.profiles.thermal import Thermal

STALE_AFTER_S = 10.0
"""A reading older than this says nothing about now: the guard writes one a second."""
_BLIND_PAUSE_S = 900.0
_LOW_MEMORY_PATIENCE_S = 600.0
_POLL_S = 0.5
_BEAT_S = 5.0


@dataclass(frozen=True)
class Limits:
    """The temperatures of a run in °C, where the throttle point comes from, and whose temperature counts."""

    throttle_c: float
    pause_at_c: float
    resume_below_c: float
    start_below_c: float | None
    source: str
    by: Literal["gpu", "cpu"] = "gpu"


def limits(thermal: Thermal, chip: Chip, tree: Tree | None = None) -> Limits:
    """A profile's limits on this machine: the governor's throttle point where one is configured, else the chip's.

    Pause: min(throttle + 6, 90), so that between the two only seconds are counted; resume: pause - 12. A run on
    the CPU (chip ``cpu``) goes by the CPU's temperature, also on a machine with a GPU.
    """
    found = governor.throttle(tree or Tree()) if chip.name == "gfx1013" else None
    throttle_c, source = found if found else (chip.throttle_c, f"preset {chip.name}")
    pause_at_c = thermal.pause_at_c if thermal.pause_at_c is not None else min(throttle_c + 6.0, 90.0)
    resume_below_c = thermal.resume_below_c if thermal.resume_below_c is not None else pause_at_c - 12.0
    by: Literal["gpu", "cpu"] = "cpu" if chip.name == "cpu" else "gpu"
    return Limits(throttle_c, pause_at_c, min(resume_below_c, pause_at_c), thermal.start_below_c, source, by)


class Latch:
    """Pause at or above one temperature, go on only below another: pure, so a scripted curve can test it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.paused = False

    def feel(self, temp_c: float) -> bool:
        """Whether work must rest, after feeling this temperature."""
        if self.paused:
            self.paused = temp_c >= self._limits.resume_below_c
        else:
            self.paused = temp_c >= self._limits.pause_at_c
        return self.paused


class Gate:
    """What a runner asks before its first step and between two steps. Blind is said once, never hidden.

    ``asked_to_stop`` ends any wait at once (a user's stop request must not wait for a chip to cool).
    """

    def __init__(
        self,
        job: JobFolder,
        thermal: Thermal,
        limits: Limits,
        *,
        asked_to_stop: Callable[[], bool] = lambda: False,
        now: Callable[[], float] = time.time,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._job, self._thermal, self.limits = job, thermal, limits
        self._asked_to_stop, self._now, self._wait = asked_to_stop, now, wait
        self._tail = telemetry.Tail(job.path / "board.jsonl")
        self._latch = Latch(limits)
        self._last: dict[str, Any] = {}
        self._last_t = 0.0
        self._said_blind = False
        self._began = now()
        self._last_beat = 0.0
        self.hottest_c: float | None = None
        self.throttled_s = 0.0
        self.paused_s = 0.0

    def summary(self) -> dict[str, Any]:
        """For a record: ``max_temp_c`` (None when blind), ``throttled_s``, ``paused_s`` and the limits."""
        return {
            "max_temp_c": self.hottest_c,
            "throttled_s": round(self.throttled_s, 1),
            "paused_s": round(self.paused_s, 1),
            "throttle_c": self.limits.throttle_c,
            "pause_at_c": self.limits.pause_at_c,
            "throttle_source": self.limits.source,
        }

    def before_start(self, progress: Progress = silent) -> float:
        """Wait until the chip is cooler than ``start_below_c``, when the profile asks; seconds waited."""
        goal = self.limits.start_below_c
        if goal is None:
            return 0.0
        self._await_guard()
        return self._rest(lambda t: t >= goal, f"Cooling to {goal:.0f} °C before the first step", progress)

    def between_steps(self, checkpoint: Callable[[], None] | None = None, progress: Progress = silent) -> float:
        """Rest while the chip is too hot or memory is short; seconds rested, which belong to no rate.

        Args:
            checkpoint: called once before a rest, so that a board that dies while hot loses nothing.

        Raises:
            JobFailed: memory stayed below ``min_available_mib`` for ten minutes.
        """
        reading = self._feel()
        rested = 0.0
        if reading.good and reading.value is not None and self._latch.feel(reading.value):
            if checkpoint is not None:
                checkpoint()
            text = f"{reading.value:.0f} °C: resting until below {self.limits.resume_below_c:.0f} °C"
            rested += self._rest(self._latch.feel, text, progress)
            self._latch.paused = False
        return rested + self._await_memory(checkpoint, progress)

    def _feel(self) -> Reading:
        """The newest control temperature; counts what happened since the last look."""
        for record in self._tail.read():
            t, readings = record.get("t"), record.get("readings")
            if not isinstance(t, (int, float)) or not isinstance(readings, dict):
                continue
            known = {key: r for key, r in ((k, from_dict(v)) for k, v in readings.items()) if r is not None}
            heat = control_temperature(known, self.limits.by)
            if heat.good and heat.value is not None:
                self.hottest_c = heat.value if self.hottest_c is None else max(self.hottest_c, heat.value)
                if heat.value >= self.limits.throttle_c and self._last_t:
                    self.throttled_s += min(max(t - self._last_t, 0.0), STALE_AFTER_S)
            self._last, self._last_t = known, float(t)
        age_s = self._now() - self._last_t
        if not self._last:
            reading = missing("°C", "the guard has not reported yet")
        elif age_s > STALE_AFTER_S:
            reading = missing("°C", f"the guard's last report is {age_s:.0f} s old")
        else:
            reading = control_temperature(self._last, self.limits.by)
        waited = bool(self._last) or self._now() - self._began > STALE_AFTER_S
        if not reading.good and not self._said_blind and waited:
            self._said_blind = True
            # A CPU throttles by itself; a board whose GPU nobody watches may not.
            self._job.event(
                "warning" if self.limits.by == "gpu" else "note",
                f"The heat limits are blind: {reading.why}. The run goes on without them.",
                blind=True,
            )
        elif reading.good and self._said_blind:
            self._said_blind = False
            self._job.event("note", f"The heat limits see again: {reading.source}.", blind=False)
        return reading

    def _beat(self, phase: str) -> None:
        """A heartbeat every few seconds of rest: readers see the run is alive, and the drive has peace."""
        if self._now() - self._last_beat >= _BEAT_S:
            self._last_beat = self._now()
            self._job.write_state(phase=phase)

    def _await_guard(self) -> None:
        """The guard needs a moment to write its first line."""
        deadline = self._now() + STALE_AFTER_S
        self._feel()
        while not self._last and self._now() < deadline and not self._asked_to_stop():
            self._wait(_POLL_S)
            self._feel()

    def _rest(self, too_hot: Callable[[float], bool], text: str, progress: Progress) -> float:
        began, phase, said = self._now(), str(self._job.state().get("phase") or "training"), False
        while not self._asked_to_stop():
            reading = self._feel()
            rested = self._now() - began
            if reading.good and reading.value is not None:
                if not too_hot(reading.value):
                    break
            elif not said:
                break  # never began to rest: a blind gate does not hold a run up
            elif rested > _BLIND_PAUSE_S:
                self._job.event(
                    "warning", "No temperature for 15 minutes of rest: going on, since any chip has cooled by then."
                )
                break
            if not said:
                said = True
                self._job.write_state(phase="cooling")
                self._job.event("paused", text, reason="heat", temp_c=reading.value)
            progress(f"{text} (now {reading.value:.0f} °C)" if reading.value is not None else text, None, None)
            self._beat("cooling")
            self._wait(_POLL_S)
        rested = self._now() - began
        if said:
            self.paused_s += rested
            self._job.write_state(phase=phase)
            self._job.event(
                "resumed", f"Went on after {rested:.0f} s of rest.", reason="heat", paused_s=round(rested, 1)
            )
        return rested if said else 0.0

    def _await_memory(self, checkpoint: Callable[[], None] | None, progress: Progress) -> float:
        """The board's GPU and its system share memory; a machine without any loses the run to the OOM killer."""
        least = float(self._thermal.min_available_mib)
        began, phase, said = self._now(), str(self._job.state().get("phase") or "training"), False
        while least > 0 and not self._asked_to_stop():
            free = self._last.get("mem_available_mib")
            if free is None or not free.good or free.value is None or free.value >= least:
                break
            if self._now() - self._last_t > STALE_AFTER_S:
                break
            text = f"Only {free.value:.0f} MiB of memory are left, {least:.0f} are wanted"
            if not said:
                said = True
                if checkpoint is not None:
                    checkpoint()
                self._job.write_state(phase="paused")
                self._job.event("paused", f"{text}: waiting for other programs to end.", reason="memory")
            if self._now() - began > _LOW_MEMORY_PATIENCE_S:
                raise JobFailed(
                    f"{text} since ten minutes; a checkpoint is written. Close other programs or lower "
                    f"train.tokens_per_pass, then: bc250studio resume {self._job.name}"
                )
            progress(text, None, None)
            self._beat("paused")
            self._wait(_POLL_S)
            self._feel()
        rested = self._now() - began
        if said:
            self.paused_s += rested
            self._job.write_state(phase=phase)
            self._job.event(
                "resumed", f"Memory is back after {rested:.0f} s.", reason="memory", paused_s=round(rested, 1)
            )
        return rested if said else 0.0
