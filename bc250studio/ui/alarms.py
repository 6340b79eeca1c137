"""What must call a person away from other things: a board that runs hot, a run that stalls. A watch per live job.

Hot is the pause temperature of the run's own profile, or a pause that the run made for heat. One rise is one alarm: the
next begins only after the board has been below the temperature at which a paused run goes on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from bc250studio.errors import StudioError
from bc250studio.jobs import JobFolder
from bc250studio.ui.lines import Lines
from bc250studio.ui.readings import trusted
from bc250studio.ui.story import Story


@dataclass(frozen=True)
class Alarm:
    """``count`` rises with every new alarm; ``kind`` and ``text`` are those of the newest, empty before the first."""

    count: int = 0
    kind: str = ""
    text: str = ""


@dataclass(frozen=True)
class Heat:
    """Temperatures in °C of this machine under a profile; ``key`` names the reading that counts."""

    throttle_c: float
    pause_at_c: float
    resume_below_c: float
    key: str

    @property
    def lines(self) -> tuple[tuple[str, float], ...]:
        """What a chart draws."""
        return (("throttle", self.throttle_c), ("pause", self.pause_at_c))


def heat_of(job: JobFolder) -> Heat | None:
    """The limits as the trainer's own gate sees them; None where the folder or the board does not tell."""
    try:
        from bc250studio.board import presets, thermal

        on_cpu = str(job.state().get("device") or "").startswith("cpu")
        chip = presets.of("cpu") if on_cpu else presets.detect()
        found = thermal.limits(job.profile().profile.thermal, chip)
    except (StudioError, OSError, ValueError, KeyError):
        return None
    key = "cpu_temp_c" if found.by == "cpu" else "gpu_temp_c"
    return Heat(found.throttle_c, found.pause_at_c, found.resume_below_c, key)


class AlarmWatch:
    """One live job; ``look`` at every tick."""

    def __init__(self, job: JobFolder) -> None:
        self.job = job
        self._lines, self._story = Lines(job.path / "events.jsonl"), Story()
        self._heat: Heat | None = None
        self._asked_for_heat = False
        self._hot = False
        self._pause_at: float | None = None
        self._stalled_since: float | None = None
        self._alarm = Alarm()

    def look(self, readings: Mapping[str, Any]) -> Alarm:
        """Take what is new in the events, and the board's newest readings."""
        if not self._asked_for_heat and self.job.state().get("phase") not in (None, "created"):
            self._asked_for_heat, self._heat = True, heat_of(self.job)
        for record in self._lines.read():
            self._story.take(record)
            self._events()
        self._reading(readings)
        return self._alarm

    def _events(self) -> None:
        told = self._story.told()
        pause = told.pauses[-1] if told.pauses else None
        if pause is not None and pause.reason == "heat" and pause.start != self._pause_at:
            self._pause_at = pause.start
            limit = self._heat.pause_at_c if self._heat else None
            # Cooling before the first step is a pause for heat too, but nothing is hot.
            if pause.temp_c is None or limit is None or pause.temp_c >= limit:
                self._begin_heat(pause.text)
        if told.stall is None:
            self._stalled_since = None
        elif self._stalled_since is None:
            self._stalled_since = told.stall.since
            self._raise("stalled", told.stall.text)

    def _reading(self, readings: Mapping[str, Any]) -> None:
        value = trusted(readings.get(self._heat.key)) if self._heat else None
        if value is None or self._heat is None:
            return
        if value >= self._heat.pause_at_c:
            self._begin_heat(f"The board is at {value:.0f} °C; {self._heat.pause_at_c:.0f} °C is where a run rests.")
        elif value < self._heat.resume_below_c:
            self._hot = False

    def _begin_heat(self, text: str) -> None:
        if not self._hot:
            self._hot = True
            self._raise("hot", text)

    def _raise(self, kind: str, text: str) -> None:
        self._alarm = Alarm(self._alarm.count + 1, kind, text)


def newest_readings(job: JobFolder) -> tuple[dict[str, Any], float]:
    """The last whole line of ``board.jsonl``: readings and when they were taken; empty without one."""
    try:
        with (job.path / "board.jsonl").open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 16384))
            lines = file.read().splitlines()
    except OSError:
        return {}, 0.0
    for line in reversed(lines):
        record = _record(line)
        readings, t = record.get("readings"), record.get("t")
        if isinstance(readings, dict) and isinstance(t, (int, float)):
            return readings, float(t)
    return {}, 0.0


def peak_temperature(folder: Path, train: Mapping[str, Any]) -> float | None:
    """The highest trusted temperature of a finished run in °C, as its trainer recorded it; else from the guard's lines.

    The GPU's, else the CPU's. A very long file is sampled.
    """
    thermal = train.get("thermal")
    recorded = thermal.get("max_temp_c") if isinstance(thermal, dict) else None
    if isinstance(recorded, (int, float)) and not isinstance(recorded, bool):
        return float(recorded)
    found: dict[str, float] = {}
    for block in Lines(folder / "board.jsonl", sample=True).blocks():
        for record in block:
            readings = record.get("readings")
            if not isinstance(readings, dict):
                continue
            for name in ("gpu_temp_c", "cpu_temp_c"):
                value = trusted(readings.get(name))
                if value is not None:
                    found[name] = max(found.get(name, value), value)
    return found.get("gpu_temp_c", found.get("cpu_temp_c"))


def _record(line: bytes) -> dict[str, Any]:
    try:
        record = from_json(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
