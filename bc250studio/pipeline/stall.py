"""Sees that a run makes no progress, from outside: a step that hangs inside a kernel cannot say so itself.

A thread of the supervisor looks at what a working stage must touch: its state, its metrics, its events. A pause asked
for or for heat writes heartbeats and is no stall. A stall is an event, not an end: only a person (or a reboot) can
tell a slow step from a hung GPU, and killing a process that waits in the driver does nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from bc250studio.errors import clean
from bc250studio.jobs import Identity, JobFolder
from bc250studio.jobs.identity import process_state

AFTER_S = 300.0
LOOK_EVERY_S = 5.0
SIGNS = ("metrics.jsonl", "events.jsonl", "logs/train.log", "logs/reference.log")
"""Files that grow while work goes on; the heartbeat of state.json comes on top."""
KERNEL_STATES = {
    "D": "its process waits inside the driver, which usually means that the GPU hangs: only a reboot helps",
    "R": "its process is computing: the step may just be slow, or a kernel may never end",
    "S": "its process waits for something",
    "T": "its process was stopped by a signal; SIGCONT lets it go on",
    "": "its process is gone",
}


class StallWatch:
    """Judges one job; ``look`` is called from time to time with nothing but the clock to know."""

    def __init__(self, job: JobFolder, after_s: float = AFTER_S, now: Callable[[], float] = time.time) -> None:
        self.job, self.after_s, self._now = job, after_s, now
        self._began = now()
        self._stalled_since: float | None = None
        self._said = 0.0

    def last_sign(self) -> float:
        """When anything of the run last moved, in Unix seconds."""
        beat = self.job.state().get("heartbeat")
        times = [self._began, float(beat) if isinstance(beat, (int, float)) else 0.0]
        for name in SIGNS:
            try:
                times.append((self.job.path / name).stat().st_mtime)
            except OSError:
                continue
        return max(times)

    def look(self) -> None:
        """Say once that nothing moves, and once that it moves again."""
        seen = self.last_sign()
        if self._stalled_since is not None:
            # the stall's own event is a sign too, a moment after it was said
            if seen > self._said + 1.0:
                seconds = seen - self._stalled_since
                self._stalled_since = None
                self.job.event("note", f"It goes on again after {seconds:.0f} s without progress.", stall_s=seconds)
            return
        idle_s = self._now() - seen
        if idle_s < self.after_s:
            return
        state = self.job.state()
        worker = Identity.from_dict(state.get("worker")) or self.job.owner()
        kernel = process_state(worker.pid) if worker is not None and worker.alive else ""
        where = f"after step {state['step']}" if state.get("step") else f"while {state.get('phase') or 'starting'}"
        why = KERNEL_STATES.get(kernel, f"its process is in state {kernel}")
        text = f"No progress for {idle_s / 60:.0f} minutes {where}: {why}."
        self._stalled_since = seen
        self.job.event("stall", clean(text), step=state.get("step"), idle_s=round(idle_s), process=kernel)
        self._said = max(self._now(), self.last_sign())


def start(job: JobFolder, stop: threading.Event) -> threading.Thread:
    """Watch ``job`` in a daemon thread until ``stop`` is set."""
    watch = StallWatch(job, AFTER_S)

    def loop() -> None:
        while not stop.wait(LOOK_EVERY_S):
            try:
                watch.look()
            except OSError:  # a full disk costs an event, not the watch
                continue

    thread = threading.Thread(target=loop, name="stall-watch", daemon=True)
    thread.start()
    return thread
