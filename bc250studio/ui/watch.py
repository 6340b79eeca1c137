"""The one thread that reads job folders and sensors; everything on screen comes from its snapshots.

It owns every tail and curve, posts one coalescing message a tick, and never touches a widget. The
user interface therefore never waits for a disk, and a stalled terminal never stops a job.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from textual.message import Message

from bc250studio import paths
from bc250studio.jobs import FINISHED, JobFolder, Standing, standing
from bc250studio.ui.alarms import Alarm, AlarmWatch, newest_readings, peak_temperature
from bc250studio.ui.follow import Follower, RunView

STALE_S = 10.0
"""A guard's reading older than this says nothing about now."""


@dataclass(frozen=True)
class JobRow:
    """A job in a list: how it stands, and what its finished stages say."""

    standing: Standing
    train: Mapping[str, Any] = field(default_factory=dict)
    prove: Mapping[str, Any] = field(default_factory=dict)
    peak_temp_c: float | None = None
    alarm: Alarm = field(default_factory=Alarm)

    @property
    def name(self) -> str:
        """The job's name."""
        return self.standing.job.name


@dataclass(frozen=True)
class Snapshot:
    """The world as of ``t``; never changed after it was posted."""

    t: float = 0.0
    jobs: tuple[JobRow, ...] = ()
    run: RunView | None = None
    overlay: RunView | None = None
    readings: Mapping[str, Any] = field(default_factory=dict)
    readings_t: float = 0.0
    waiting: tuple[str, ...] = ()
    sensors_error: str = ""

    @property
    def live(self) -> JobRow | None:
        """The newest job a process works on."""
        return next((row for row in self.jobs if row.standing.live), None)


class Observed(Message):
    """A new snapshot was taken. Older ones still waiting are dropped."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot

    def can_replace(self, message: Message) -> bool:
        """Only the newest snapshot matters."""
        return isinstance(message, Observed)


class Watcher:
    """A daemon thread; ``post`` gets a message, ``lost_terminal`` is called when nobody can see us any more."""

    def __init__(
        self, post: Callable[[Message], Any], interval_s: float = 1.0, lost_terminal: Callable[[], None] | None = None
    ) -> None:
        self.post = post
        self.interval_s = interval_s
        self.lost_terminal = lost_terminal
        self._wake = threading.Event()
        self._stopped = False
        self._focus: Follower | None = None
        self._overlay: Follower | None = None
        self._wanted: tuple[JobFolder | None, JobFolder | None] = (None, None)
        self._rows: dict[Path, tuple[tuple[int, ...], JobRow]] = {}
        self._alarms: dict[Path, AlarmWatch] = {}
        self._sensors: Any = None
        self._sensors_error = ""
        self._idle_readings: tuple[dict[str, Any], float] = ({}, 0.0)
        self._thread = threading.Thread(target=self._work, name="watcher", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End soon; daemon, so that leaving never waits for a slow disk."""
        self._stopped = True
        self._wake.set()

    def follow(self, job: JobFolder | None, overlay: JobFolder | None = None) -> None:
        """Which job the snapshots carry in full, and an earlier one to lay under it."""
        self._wanted = (job, overlay)
        self._wake.set()

    def hurry(self) -> None:
        """Look now instead of at the next tick."""
        self._wake.set()

    def _work(self) -> None:
        while not self._stopped:
            self._wake.clear()
            if self.lost_terminal is not None and _hung_up():
                self.lost_terminal()
            try:
                self.post(Observed(self.look()))
            except Exception as error:  # a foreign folder must not end the watch
                import logging

                logging.getLogger(__name__).exception("looking failed: %s", error)
            self._wake.wait(self.interval_s)

    def look(self) -> Snapshot:
        """One snapshot, taken in the calling thread."""
        focus, overlay = self._wanted
        self._focus = _follower(self._focus, focus)
        self._overlay = _follower(self._overlay, overlay)
        run = self._focus.look() if self._focus else None
        jobs, readings, readings_t = self._with_board(run, tuple(self._look_at_jobs()))
        return Snapshot(
            t=time.time(),
            jobs=jobs,
            run=run,
            overlay=self._overlay.look() if self._overlay else None,
            readings=readings,
            readings_t=readings_t,
            waiting=_queue(),
            sensors_error=self._sensors_error,
        )

    def _look_at_jobs(self) -> list[JobRow]:
        try:
            folders = [Path(e.path) for e in os.scandir(paths.runs_dir()) if e.is_dir(follow_symlinks=False)]
        except OSError:
            return []
        rows: dict[Path, tuple[tuple[int, ...], JobRow]] = {}
        for folder in folders:
            stamps = tuple(_stamp(folder / name) for name in ("state.json", "stages/train.json", "stages/prove.json"))
            if not stamps[0]:
                continue
            known = self._rows.get(folder)
            if known and known[0] == stamps and known[1].standing.verdict in FINISHED:
                rows[folder] = known
                continue
            rows[folder] = (stamps, _row(JobFolder(folder), known[1] if known and known[0][1:] == stamps[1:] else None))
        self._rows = rows
        return sorted((row for _, row in rows.values()), key=_created, reverse=True)

    def _with_board(
        self, run: RunView | None, jobs: tuple[JobRow, ...]
    ) -> tuple[tuple[JobRow, ...], Mapping[str, Any], float]:
        """Jobs with their alarms, and what the board says: a live job's guard, else ourselves. Never both."""
        shown: tuple[Mapping[str, Any], float] | None = None
        rows: list[JobRow] = []
        self._alarms = {row.standing.job.path: self._watch_of(row) for row in jobs if row.standing.live}
        for row in jobs:
            watch = self._alarms.get(row.standing.job.path)
            if watch is None:
                rows.append(row)
                continue
            if run is not None and run.job.path == watch.job.path:
                readings, t = run.readings, run.board_t or 0.0
            else:
                readings, t = newest_readings(watch.job)
            fresh = time.time() - t < STALE_S
            rows.append(replace(row, alarm=watch.look(readings if fresh else {})))
            if fresh and shown is None:
                shown = readings, t
        if shown is None:
            if time.time() - self._idle_readings[1] >= 2.0:
                self._idle_readings = (self._sample(), time.time())
            shown = self._idle_readings
        return tuple(rows), *shown

    def _watch_of(self, row: JobRow) -> AlarmWatch:
        job = row.standing.job
        return self._alarms.get(job.path) or AlarmWatch(job)

    def _sample(self) -> dict[str, Any]:
        try:
            if self._sensors is None:
                from bc250studio.board.sensors import Sensors

                self._sensors = Sensors.discover()
            self._sensors_error = ""
            return {name: _as_record(reading) for name, reading in self._sensors.read().items()}
        except Exception as error:
            self._sensors_error = f"sensors cannot be read: {error}"
            return {}


def _follower(current: Follower | None, wanted: JobFolder | None) -> Follower | None:
    if wanted is None:
        return None
    if current is not None and current.job.path == wanted.path:
        return current
    return Follower(wanted)


def _queue() -> tuple[str, ...]:
    """Profiles that wait their turn."""
    try:
        entries = sorted((paths.data_dir() / "queue").glob("*--*.toml"))
    except OSError:
        return ()
    return tuple(entry.stem.partition("--")[2] for entry in entries)


def _stamp(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def _row(job: JobFolder, known: JobRow | None) -> JobRow:
    now = standing(job)
    if known is not None:
        return JobRow(now, known.train, known.prove, known.peak_temp_c)
    train = job.stage("train")
    peak = peak_temperature(job.path, train) if now.verdict in FINISHED else None
    return JobRow(now, train, job.stage("prove"), peak)


def _created(row: JobRow) -> tuple[float, str]:
    created = row.standing.state.get("created")
    return (float(created) if isinstance(created, (int, float)) else 0.0, row.name)


def _as_record(reading: Any) -> dict[str, Any]:
    if isinstance(reading, dict):
        return reading
    return {key: getattr(reading, key, None) for key in ("value", "unit", "source", "age_s", "trust", "why")}


def _hung_up() -> bool:
    """Whether the terminal on stdin has gone (an SSH line that was cut without a signal reaching us)."""
    try:
        poll = select.poll()
        poll.register(0, select.POLLHUP)
        return any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))
    except OSError:
        return False
