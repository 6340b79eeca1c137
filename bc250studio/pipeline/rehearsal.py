"""A rehearsal: the whole way in two steps, with a kill in the middle, before a night is spent on it.

Two steps, an evaluation, a checkpoint, kill -9, resume, export, server, 16 proof tokens, one question.
What it measures (a step's time on this machine with this profile) becomes the estimate for the real run.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bc250studio import pipeline, profiles, telemetry
from bc250studio.errors import JobFailed, StudioError, clean
from bc250studio.jobs import FINISHED, JobFolder, control, spawn, standing
from bc250studio.jobs.identity import Identity
from bc250studio.jobs.progress import Progress, silent

STEPS = 2
OVERRIDES: Mapping[str, Any] = {
    "train.steps": STEPS,
    "train.eval_every": 1,
    "train.checkpoint_every": 1,
    "train.early_stop_patience": 0,
    "proof.tokens": 16,
    "ask.max_tokens": 16,
}
TIMEOUT_S = 1800.0


def rehearsed(resolved: profiles.Resolved) -> profiles.Resolved:
    """The same profile, shortened to a rehearsal."""
    origins = {**resolved.origins, **dict.fromkeys(OVERRIDES, "rehearsal")}
    text = profiles.dump(resolved)
    short = profiles.from_text(text, "rehearsal", resolved.name, OVERRIDES)
    return profiles.Resolved(resolved.name, short.profile, origins)


def rehearse(resolved: profiles.Resolved, progress: Progress = silent) -> JobFolder:
    """Run it; returns the job, whose stages say how each station went.

    Raises:
        JobFailed: training did not reach its first checkpoint, or the resumed run did not end.
    """
    return conduct(begin(resolved), progress)


def begin(resolved: profiles.Resolved) -> JobFolder:
    """Launch it, to be held after its first step, so that the kill lands in mid-training however fast a step is."""
    job = pipeline.launch(rehearsed(resolved), pipeline.STAGES, f"{resolved.name}-rehearsal", kind="rehearsal")
    control.ask(job, "pause", why="rehearsal")
    return job


def detached(resolved: profiles.Resolved) -> JobFolder:
    """Begin it and return at once: a process of its own conducts it, so whoever asked may leave."""
    job = begin(resolved)
    command = [sys.executable, "-m", "bc250studio.pipeline.rehearsal", str(job.path)]
    spawn.detached(command, job.path / "logs" / "rehearsal.log", spawn.child_environment())
    return job


def conduct(job: JobFolder, progress: Progress = silent) -> JobFolder:
    """The kill, the going on, the wait for its end. See :func:`rehearse`."""
    progress("training two steps", None, None)
    _wait(job, lambda: _held(job) or not standing(job).live, "its first checkpoint")
    if standing(job).live:
        progress("killing it in mid-training", None, None)
        _kill(job)
        job.event("rehearsal", "Killed by the rehearsal after its first checkpoint.")
        before = len(job.events())
        pipeline.go_on(job, pipeline.STAGES)
        job.event("rehearsal", "Started again: it must go on from the checkpoint.")
        _wait(job, lambda: _resumed(job, before) or not standing(job).live, "the resumed training")
        if job.stage("train").get("verdict") == "done" and not _resumed(job, before):
            raise JobFailed(f"{job.name} began anew after the kill instead of going on from its checkpoint.")
    progress("going on: export, server, proof", None, None)
    _wait(job, lambda: not standing(job).live and standing(job).phase in FINISHED, "its end")
    return job


def measured_step_s(job: JobFolder) -> float | None:
    """Seconds of the fastest step in a rehearsal (the first one pays for warm-up)."""
    times = [
        r["step_s"] for r in telemetry.read_all(job.path / "metrics.jsonl") if isinstance(r.get("step_s"), (int, float))
    ]
    return min(times) if times else None


def _held(job: JobFolder) -> bool:
    """Paused with the first step's checkpoint on disk."""
    events = job.events()
    return any(e.get("event") == "paused" for e in events) and any(
        e.get("event") == "checkpoint" and (e.get("step") or 0) >= 1 for e in events
    )


def _resumed(job: JobFolder, before: int) -> bool:
    return any(e.get("event") == "resumed" and (e.get("step") or 0) >= 1 for e in job.events()[before:])


def _kill(job: JobFolder) -> None:
    """SIGKILL to our own supervisor and its worker, as a crash would."""
    state = job.state()
    for identity in (Identity.from_dict(state.get("owner")), Identity.from_dict(state.get("worker"))):
        if identity is not None:
            spawn.terminate(identity, signal.SIGKILL)
    _wait(job, lambda: not standing(job).live, "the kill")


def _wait(job: JobFolder, condition: Any, what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise JobFailed(
                f"The rehearsal {job.name} waited {TIMEOUT_S:.0f} s for {what}; see: bc250studio logs {job.name}"
            )
        time.sleep(0.05)


def main(folder: str) -> int:
    """Conduct the rehearsal of a job that was begun; its server goes, its memory is wanted for the real run."""
    from bc250studio.serve import server

    job = JobFolder(Path(folder))
    try:
        conduct(job)
    except StudioError as error:
        job.event("error", clean(error))
        return error.exit_code
    finally:
        if server.read(job) is not None:
            server.stop(job)
    job.event("rehearsal", "The rehearsal is over; its server was stopped.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
