"""One job followed through its files: what was appended since the last look goes into bounded curves.

Belongs to the watching thread; what leaves is an immutable :class:`RunView`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from bc250studio import profiles
from bc250studio.errors import StudioError, clean
from bc250studio.jobs import JobFolder, Standing, standing
from bc250studio.jobs.folder import SCHEMA, read_json
from bc250studio.ui.alarms import Heat, heat_of
from bc250studio.ui.lines import Lines
from bc250studio.ui.numbers import finite
from bc250studio.ui.readings import reading_text, trusted
from bc250studio.ui.series import Curve, Series
from bc250studio.ui.story import Story, Told

STEP_CURVES = (
    "loss", "loss_ema", "lr", "grad_norm", "real_tokens_per_s", "all_positions_per_s", "labelled_tokens_per_s",
    "memory_gib", "step_s",
)  # fmt: skip
BOARD_CURVES = (
    "gpu_temp_c", "cpu_temp_c", "gpu_power_w", "gpu_clock_mhz", "gpu_memory_used_mib", "mem_available_mib", "fan_rpm",
)  # fmt: skip
FILES = ("metrics", "board", "events")
LONGEST_GAP_S = 10.0
"""Between two board readings; a longer one says nothing about what was between."""
__all__ = ["Follower", "RunView", "reading_text", "trusted"]


@dataclass(frozen=True)
class RunView:
    """Everything a screen may show of one job, as of ``t`` (Unix seconds)."""

    t: float
    standing: Standing
    resolved: profiles.Resolved | None
    curves: Mapping[str, Curve] = field(default_factory=dict)
    latest: Mapping[str, Any] = field(default_factory=dict)
    told: Told = field(default_factory=Told)
    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    readings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    board_t: float | None = None
    board_start: float | None = None
    server: Mapping[str, Any] = field(default_factory=dict)
    heat_limits: tuple[tuple[str, float], ...] = ()
    mean_power_w: float | None = None
    throttled_s: float | None = 0.0
    """None where the guard's file was too long to be read whole."""

    @property
    def events(self) -> tuple[Mapping[str, Any], ...]:
        """The last events, oldest first."""
        return self.told.events

    @property
    def evaluations(self) -> tuple[tuple[float, float], ...]:
        """(step, held-out loss) in order."""
        return self.told.evaluations

    @property
    def paused_s(self) -> float:
        """Seconds of rest so far, for heat, memory, or because somebody asked."""
        return self.told.paused_s(self.t)

    @property
    def job(self) -> JobFolder:
        """The folder behind the view."""
        return self.standing.job

    @property
    def state(self) -> Mapping[str, Any]:
        """The owner's last state."""
        return self.standing.state

    @property
    def recording(self) -> str:
        """What to say when this is a recording of an earlier run, not a run; empty for real ones."""
        return clean(self.state.get("recording") or "", 60)

    @property
    def from_the_future(self) -> bool:
        """Written by a version whose files we may not understand: look, do not touch."""
        schema = self.state.get("schema")
        return isinstance(schema, int) and schema > SCHEMA

    @property
    def best_eval(self) -> float | None:
        """The lowest evaluation loss so far."""
        return min((loss for _, loss in self.evaluations), default=None)


class Follower:
    """Follows one job folder; call :meth:`look` again and again."""

    def __init__(self, job: JobFolder) -> None:
        self.job = job
        self._resolved: profiles.Resolved | None = None
        self._heat: Heat | None = None
        self._device: str | None = None
        self._stages: dict[str, tuple[int, dict[str, Any]]] = {}
        self._files = {name: Lines(job.path / f"{name}.jsonl", name == "board") for name in FILES}
        self._forget()

    def _forget(self) -> None:
        self._series = {name: Series() for name in STEP_CURVES}
        self._latest: dict[str, Any] = {}
        self._story = Story()
        self._forget_board()

    def _forget_board(self) -> None:
        self._series |= {name: Series() for name in BOARD_CURVES}
        self._readings: dict[str, Any] = {}
        self._board_t: float | None = None
        self._board_start: float | None = None
        self._power = (0.0, 0)
        self._throttled_s = 0.0

    def look(self) -> RunView:
        """Read what is new and say how the job stands now."""
        if self._resolved is None:
            try:
                self._resolved = self.job.profile()
            except (StudioError, OSError, ValueError, KeyError):
                self._resolved = None
        now = standing(self.job)
        device = str(now.state.get("device") or "")
        if device != self._device:
            self._device, self._heat = device, heat_of(self.job)
        self._read_events()
        self._read_metrics()
        self._read_board()
        return RunView(
            t=time.time(),
            standing=now,
            resolved=self._resolved,
            curves={name: series.curve() for name, series in self._series.items()},
            latest=dict(self._latest),
            told=self._story.told(),
            stages=self._read_stages(),
            readings=self._readings,
            board_t=self._board_t,
            board_start=self._board_start,
            server=read_json(self.job.path / "server.json"),
            heat_limits=self._heat.lines if self._heat else (),
            mean_power_w=self._power[0] / self._power[1] if self._power[1] else None,
            throttled_s=None if self._files["board"].sampled else self._throttled_s,
        )

    def _read_metrics(self) -> None:
        for records in self._files["metrics"].blocks():
            if self._files["metrics"].fresh:
                self._files["metrics"].fresh = False
                self._series |= {name: Series() for name in STEP_CURVES}
            steps, *columns = _columns(records, ("step", *STEP_CURVES))
            for name, values in zip(STEP_CURVES, columns, strict=True):
                self._series[name].extend(steps, values)
            if records:
                self._latest = records[-1]
                self._story.moved(self._latest.get("t"))

    def _read_board(self) -> None:
        for records in self._files["board"].blocks():
            if self._files["board"].fresh:
                self._files["board"].fresh = False
                self._forget_board()
            self._take_board(
                [r for r in records if isinstance(r.get("readings"), dict) and finite(r.get("t")) is not None]
            )

    def _take_board(self, sound: list[dict[str, Any]]) -> None:
        if not sound:
            return
        if self._board_start is None:
            self._board_start = sound[0]["t"]
        times = [record["t"] - self._board_start for record in sound]
        for name in BOARD_CURVES:
            self._series[name].extend(times, [trusted(record["readings"].get(name)) for record in sound])
        watts = [w for record in sound if (w := trusted(record["readings"].get("gpu_power_w"))) is not None]
        self._power = (self._power[0] + sum(watts), self._power[1] + len(watts))
        self._throttled_s += self._seconds_throttled(sound)
        self._readings, self._board_t = sound[-1]["readings"], sound[-1]["t"]

    def _seconds_throttled(self, records: list[dict[str, Any]]) -> float:
        """Time at or above the throttle point, by the same reading that the gate goes by."""
        heat, before, seconds = self._heat, self._board_t, 0.0
        for record in records if heat else ():
            value = trusted(record["readings"].get(heat.key))  # type: ignore[union-attr]
            if value is not None and value >= heat.throttle_c and before is not None:  # type: ignore[union-attr]
                seconds += min(max(record["t"] - before, 0.0), LONGEST_GAP_S)
            before = record["t"]
        return seconds

    def _read_events(self) -> None:
        records = self._files["events"].read()
        if self._files["events"].fresh:
            self._story = Story()
        for record in records:
            self._story.take(record)

    def _read_stages(self) -> dict[str, dict[str, Any]]:
        found: dict[str, tuple[int, dict[str, Any]]] = {}
        try:
            entries = list(os.scandir(self.job.path / "stages"))
        except OSError:
            entries = []
        for entry in entries:
            if entry.name.endswith(".json") and not entry.name.startswith("."):
                name = entry.name[:-5]
                try:
                    stamp = entry.stat().st_mtime_ns
                except OSError:
                    continue
                known = self._stages.get(name)
                found[name] = known if known and known[0] == stamp else (stamp, read_json(Path(entry.path)))
        self._stages = found
        return {name: record for name, (_, record) in found.items()}


def _columns(records: list[dict[str, Any]], names: tuple[str, ...]) -> list[Sequence[Any]]:
    """The values of each name; at the speed of C where every record has them all, as the runner's have."""
    if not records:
        return [()] * len(names)
    try:
        return list(zip(*map(itemgetter(*names), records), strict=True))
    except KeyError:
        return [[record.get(name) for record in records] for name in names]
