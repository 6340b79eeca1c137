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
WORSE = frozenset("DT") | {""}
"""States worth a second event while a stall lasts: a slow step that has become a hang is news."""


class StallWatch:
    """Judges one job; ``look`` is called from time to time with nothing but the clock to know."""

    def __init__(self, job: JobFolder, after_s: float = AFTER_S, now: Callable[[], float] = time.time) -> None:
        self.job, self.after_s, self._now = job, after_s, now
        self._began = now()
        self._stalled_since: float | None = None
        self._said_at = 0.0
        self._said_of: set[str] = set()

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
        """Say once that nothing moves, again when it turns out to be worse, and once that it moves again."""
        seen = self.last_sign()
        if self._stalled_since is not None:
            if seen > self._said_at:
                seconds = seen - self._stalled_since
                self._stalled_since = None
                self._said_of.clear()
                self.job.event("note", f"It goes on again after {seconds:.0f} s without progress.", stall_s=seconds)
            elif (kernel := self._kernel_state()) in WORSE - self._said_of:
                self._say(self._stalled_since, kernel)
            return
        if self._now() - seen >= self.after_s:
            self._say(seen, self._kernel_state())

    def _kernel_state(self) -> str:
        worker = Identity.from_dict(self.job.state().get("worker")) or self.job.owner()
        return process_state(worker.pid) if worker is not None and worker.alive else ""

    def _say(self, since: float, kernel: str) -> None:
        state = self.job.state()
        idle_s = self._now() - since
        where = f"after step {state['step']}" if state.get("step") else f"while {state.get('phase') or 'starting'}"
        why = KERNEL_STATES.get(kernel, f"its process is in state {kernel}")
        text = f"No progress for {idle_s / 60:.0f} minutes {where}: {why}."
        self._stalled_since = since
        self._said_of.add(kernel)
        self.job.event("stall", clean(text), step=state.get("step"), idle_s=round(idle_s), process=kernel)
        self._said_at = self.last_sign()  # the event itself grew a file: what is newer than that is the run's


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
