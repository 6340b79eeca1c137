"""How a job stands, judged by evidence: its lock, its process, its boot, and how old its news are."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from bc250studio.jobs import lock
from bc250studio.jobs.folder import FINISHED, JobFolder, all_jobs
from bc250studio.jobs.identity import process_state


@dataclass(frozen=True)
class Standing:
    """What can be said about a job without touching it.

    ``verdict``: ``live``, ``done``, ``failed``, ``stopped``, ``lost`` (the process is gone without a
    verdict), ``machine restarted``, ``stuck`` (waits inside the kernel; only a reboot helps) or ``created``.
    ``age_s``: seconds since the owner's last heartbeat.
    """

    job: JobFolder
    verdict: str
    phase: str
    age_s: float
    state: dict[str, Any]

    @property
    def live(self) -> bool:
        """Whether a process works on it now."""
        return self.verdict in ("live", "stuck")


def standing(job: JobFolder) -> Standing:
    """Look at one job."""
    state = job.state()
    phase = str(state.get("phase") or "unknown")
    beat = state.get("heartbeat")
    age_s = max(0.0, time.time() - beat) if isinstance(beat, (int, float)) else float("inf")
    owner = job.owner()
    if owner is not None and owner.alive and (lock.is_held(job.path) or phase not in FINISHED):
        verdict = "stuck" if process_state(owner.pid) == "D" and age_s > 60 else "live"
    elif phase in FINISHED:
        verdict = phase
    elif owner is None:
        verdict = "created" if age_s < 60 else "lost"
    else:
        verdict = "lost" if owner.this_boot else "machine restarted"
    return Standing(job, verdict, phase, age_s, state)


def live() -> list[Standing]:
    """Jobs that a process works on now, newest first."""
    return [found for found in map(standing, all_jobs()) if found.live]
