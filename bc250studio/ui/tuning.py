"""A kernel tuning job as the files say it: parts with their verdicts, the live table, what it does now.

Read in a thread, from what ``kernels/tune.py`` and ``kernels/live.py`` write under ``tune/`` in the job's folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bc250studio.errors import clean
from bc250studio.jobs import JobFolder, Standing, standing
from bc250studio.jobs.folder import read_json
from bc250studio.ui.watch import Snapshot

KIND = "tune"


@dataclass(frozen=True)
class Part:
    """``verdict``: done, hung, failed, running or waiting; ``share``: of roofline, best of its sizes so far."""

    name: str
    verdict: str
    why: str
    sizes: int
    share: float | None
    rejected: int
    seconds: float | None


@dataclass(frozen=True)
class Row:
    """The best of one size so far."""

    part: str
    size: str
    design: str
    gflops: float
    share: float


@dataclass(frozen=True)
class Tuning:
    """One look at a job."""

    standing: Standing
    parts: tuple[Part, ...]
    rows: tuple[Row, ...]
    last: Mapping[str, Any]
    events: tuple[str, ...]


def newest(snapshot: Snapshot) -> JobFolder | None:
    """The tuning job to show: the newest one."""
    return next((row.standing.job for row in snapshot.jobs if row.standing.state.get("kind") == KIND), None)


def read(job: JobFolder) -> Tuning:
    """Everything about it; torn or foreign files read as nothing."""
    now, folder = standing(job), job.path / "tune"
    live = read_json(folder / "live.json")
    rows = tuple(_rows(_table(live, "best")))
    planned = sorted((folder / "plan").glob("*.yaml"), key=_written)
    names = list(dict.fromkeys([file.stem for file in planned] + [row.part for row in rows]))
    current = now.state.get("part") if now.live else None
    parts = [_part(name, read_json(folder / f"{name}.json"), rows, _table(live, "rejected"), current) for name in names]
    texts = (clean(event.get("text") or "", 300) for event in job.events()[-8:])
    return Tuning(now, tuple(parts), rows, _table(live, "last"), tuple(texts))


def _part(name: str, record: Mapping[str, Any], rows: tuple[Row, ...], rejected: Mapping[str, Any], now: Any) -> Part:
    mine = [row for row in rows if row.part == name]
    verdict = str(record.get("verdict") or ("running" if name == now else "waiting"))
    count = record.get("rejected", rejected.get(name))
    seconds = record.get("seconds")
    return Part(
        name,
        clean(verdict, 20),
        clean(record.get("why") or "", 300),
        len(mine),
        max((row.share for row in mine), default=None),
        count if isinstance(count, int) else 0,
        float(seconds) if isinstance(seconds, (int, float)) else None,
    )


def _rows(best: Mapping[str, Any]) -> list[Row]:
    found = []
    for part, entries in best.items():
        for entry in entries if isinstance(entries, list) else ():
            try:
                size = "x".join(str(int(side)) for side in entry["size"])
                speed, share = float(entry["gflops"]), float(entry["share"])
                found.append(Row(clean(part, 20), size, clean(entry["design"], 30), speed, share))
            except (KeyError, TypeError, ValueError):
                continue
    return found


def _table(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = record.get(key)
    return value if isinstance(value, Mapping) else {}


def _written(file: Any) -> tuple[int, str]:
    try:
        return file.stat().st_mtime_ns, file.name
    except OSError:
        return 0, file.name
