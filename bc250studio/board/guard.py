"""The guard: a small process beside a run that samples the board and puts back what we changed.

``python -m bc250studio.board.guard JOBDIR SUPERVISOR_PID`` writes ``board.jsonl`` once a second until the
supervisor is gone, however it went (only another process can act after a kill -9). It imports no torch.
A bench, which has no job, gets the same care from :func:`full_fans`.

Fans and the governor's cap are changed only when the run's profile asks; each change is recorded in the
job folder before it is made (``fans.json``, ``governor.json``) and put back at the end, or by the next
guard of any run when this one was killed too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bc250studio import paths, telemetry
from bc250studio.board import fans, governor
from bc250studio.board.sensors import Sensors
from bc250studio.board.sysfs import Tree
from bc250studio.errors import JobFailed, StudioError, clean
from bc250studio.jobs import identity, lock, spawn
from bc250studio.jobs.folder import JobFolder, all_jobs

INTERVAL_S = 1.0
FAN_RECORD = "fans.json"
GOVERNOR_RECORD = "governor.json"
_READY = "fans at full speed"


class Guard:
    """Samples and restores for one job."""

    def __init__(self, job: JobFolder, tree: Tree, bus: governor.Bus = governor.busctl) -> None:
        self.job, self._tree, self._bus = job, tree, bus
        self._sensors = Sensors.discover(tree.root)

    def change(self) -> None:
        """Do what the profile asks for: fans to full, a lower top clock. A refusal is an event, not an end."""
        try:
            thermal = self.job.profile().profile.thermal
        except StudioError:
            return
        if thermal.fan_while_measuring == "full":
            self._try(lambda: self._say_fans(fans.full(self._tree, self.job.path / FAN_RECORD)))
        top = thermal.top_clock_mhz
        if top is not None:
            self._try(lambda: self._say_cap(top, governor.cap(top, self.job.path / GOVERNOR_RECORD, self._bus)))

    def restore(self) -> None:
        """Put everything back."""
        restored = fans.restore(self._tree, self.job.path / FAN_RECORD)
        if restored:
            names = ", ".join(f"{fan.chip} pwm{fan.channel}" for fan in restored)
            self.job.event("note", f"Fans put back: {names}.")
        if governor.uncap(self.job.path / GOVERNOR_RECORD, self._bus):
            self.job.event("note", "The governor's clock range was put back.")

    def watch(self, supervisor: identity.Identity, ended: threading.Event, interval_s: float = INTERVAL_S) -> None:
        """Sample until the supervisor is gone or ``ended`` is set. A full disk costs samples, not the guard."""
        writer = telemetry.Writer(self.job.path / "board.jsonl")
        due = time.monotonic()
        try:
            while supervisor.alive and not ended.is_set():
                readings = {key: _short(reading.as_dict()) for key, reading in self._sensors.read().items()}
                try:
                    writer.write({"readings": readings})
                except OSError:
                    pass
                due = max(due + interval_s, time.monotonic())
                ended.wait(max(0.0, due - time.monotonic()))
        finally:
            writer.close()

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except StudioError as error:
            self.job.event("warning", str(error))

    def _say_fans(self, outputs: list[fans.Pwm]) -> None:
        names = ", ".join(f"{fan.chip} pwm{fan.channel} (was {fan.value})" for fan in outputs)
        self.job.event("note", f"Fans at full speed while this runs: {names}.")

    def _say_cap(self, top: int, before: tuple[int, int]) -> None:
        self.job.event("note", f"The governor's top clock is {top} MHz while this runs (was {before[1] or 'open'}).")


def _short(reading: dict[str, object]) -> dict[str, object]:
    value = reading["value"]
    return {**reading, "value": round(value, 3) if isinstance(value, float) else value}


def _folders() -> list[JobFolder]:
    """Where a guard may have left a record: jobs, and the benches' own folder."""
    return [*all_jobs(), *(JobFolder(path) for path in sorted((paths.state_dir() / "measuring").glob("*")))]


def leftovers() -> list[JobFolder]:
    """Folders nobody works on whose changes were never put back (their guard was killed as well)."""
    return [
        job
        for job in _folders()
        if any((job.path / name).exists() for name in (FAN_RECORD, GOVERNOR_RECORD)) and not lock.is_held(job.path)
    ]


def put_back_leftovers(tree: Tree, bus: governor.Bus = governor.busctl) -> list[str]:
    """Restore what lost guards left changed; names of the jobs."""
    names = []
    for job in leftovers():
        fans.restore(tree, job.path / FAN_RECORD)
        governor.uncap(job.path / GOVERNOR_RECORD, bus)
        names.append(job.name)
    return names


@contextlib.contextmanager
def full_fans(root: str | Path = "/") -> Iterator[None]:
    """Fans at full speed inside the block, put back after it, also when this process is killed.

    Raises:
        JobFailed: no writable fan output.
    """
    folder = paths.private_dir(paths.state_dir() / "measuring" / str(os.getpid()))
    with lock.Lock(folder):
        command = [sys.executable, "-m", "bc250studio.board.guard", str(folder), str(os.getpid()), "--only-fans"]
        guard = subprocess.Popen(
            [*command, "--root", str(root)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=spawn.child_environment(),
        )
        assert guard.stdout is not None and guard.stderr is not None
        try:
            if guard.stdout.readline().strip() != _READY:
                raise JobFailed(clean(guard.stderr.read()).strip() or "The fans' guard ended without a word.")
            yield
        finally:
            guard.terminate()
            guard.wait(timeout=30)
            guard.stdout.close()
            guard.stderr.close()
    if not (folder / FAN_RECORD).exists():
        shutil.rmtree(folder, ignore_errors=True)


def _only_fans(folder: Path, tree: Tree, supervisor: identity.Identity, ended: threading.Event) -> int:
    """Full speed until the supervisor is gone; says when it is reached."""
    record = folder / FAN_RECORD
    fans.restore(tree, record)
    try:
        fans.full(tree, record)
    except StudioError as error:
        print(error, file=sys.stderr)
        return 1
    try:
        print(_READY, flush=True)
        while supervisor.alive and not ended.wait(0.5):
            pass
    finally:
        fans.restore(tree, record)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the guard."""
    parser = argparse.ArgumentParser(prog="python -m bc250studio.board.guard")
    parser.add_argument("job", type=Path)
    parser.add_argument("supervisor", type=int)
    parser.add_argument("--root", type=Path, default=Path("/"), help="read this tree instead of the machine (tests)")
    parser.add_argument("--only-fans", action="store_true", help="no job: fans to full speed until the process ends")
    parser.add_argument("--interval", type=float, default=INTERVAL_S)
    given = parser.parse_args(arguments)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    try:
        os.setsid()  # a kill of the supervisor's whole group must not take the one who cleans up
    except OSError:
        pass
    supervisor = identity.of(given.supervisor)
    tree = Tree(given.root)
    if given.only_fans:
        return _only_fans(given.job, tree, supervisor, ended)
    guard = Guard(JobFolder(given.job), tree)
    put_back_leftovers(tree)
    guard.restore()  # what an earlier, killed guard of this same job left; before a new record is written
    try:
        guard.change()
        guard.watch(supervisor, ended, given.interval)
    finally:
        guard.restore()
    return 0


if __name__ == "__main__":
    sys.exit(main())
