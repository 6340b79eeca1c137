"""Runs a long foreign program in a process group of its own and kills the group when it falls silent.

Tensile is a tree (Python, shell scripts, the client that talks to the GPU); killing the first process leaves the one
that hangs. Silent means: no line of output and no growth of the files that count, for so many seconds.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bc250studio.errors import JobFailed, clean

QUIET_S = 300.0
GRACE_S = 5.0


@dataclass(frozen=True)
class Outcome:
    """How it ended. ``code``: exit status, negative for a signal; ``silent``: the watchdog ended it."""

    code: int
    silent: bool
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with 0."""
        return self.code == 0 and not self.silent

    @property
    def words(self) -> str:
        """For a person."""
        if self.silent:
            return f"fell silent and was ended after {self.seconds:.0f} s"
        if self.code < 0:
            return f"was ended by signal {-self.code} after {self.seconds:.0f} s"
        return f"ended with exit code {self.code} after {self.seconds:.0f} s"


def run(
    command: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    log: Path,
    on_line: Callable[[str], None] = lambda line: None,
    growing: Callable[[], Sequence[Path]] = lambda: (),
    quiet_s: float = QUIET_S,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run ``command`` in ``folder``; every line goes to ``log`` (appended) and, cleaned, to ``on_line``.

    ``growing()`` names the files whose growth counts as life. ``stop()`` is asked a few times a second; True ends the
    group. The group never outlives this call.

    Raises:
        JobFailed: the program cannot be started.
    """
    began = time.monotonic()
    try:
        child = subprocess.Popen(
            list(command),
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise JobFailed(f"{clean(command[0])} cannot be started: {error}.") from error
    lines: queue.Queue[bytes | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(child, lines), daemon=True)
    reader.start()
    alive_at, sizes, silent = time.monotonic(), _sizes(growing()), False
    try:
        with log.open("ab") as record:
            while True:
                try:
                    line = lines.get(timeout=0.2)
                except queue.Empty:
                    line = b""
                if line is None:
                    break
                if line:
                    alive_at = time.monotonic()
                    record.write(line)
                    record.flush()
                    for part in line.decode("utf-8", "replace").replace("\r", "\n").splitlines():
                        if part.strip():
                            on_line(clean(part).rstrip())
                    continue
                now = _sizes(growing())
                if now != sizes:
                    alive_at, sizes = time.monotonic(), now
                if time.monotonic() - alive_at > quiet_s:
                    silent = True
                    break
                if stop():
                    break
                if child.poll() is not None and not reader.is_alive() and lines.empty():
                    break
    finally:
        end_group(child)
    return Outcome(child.returncode, silent, time.monotonic() - began)


def end_group(child: subprocess.Popen[bytes]) -> None:
    """Ask the whole group to end, then end it; also members that outlived the first process."""
    for number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        if not _group_alive(child):
            break
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline and _group_alive(child):
            time.sleep(0.05)
    child.wait()
    if child.stdout is not None:
        child.stdout.close()


def _group_alive(child: subprocess.Popen[bytes]) -> bool:
    """Whether any process of the group still runs; the child itself is reaped first so that it does not count."""
    child.poll()
    try:
        os.killpg(child.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _read(child: subprocess.Popen[bytes], lines: queue.Queue[bytes | None]) -> None:
    """Whole lines, and the pieces of a progress bar that ends in carriage returns."""
    assert child.stdout is not None
    descriptor = child.stdout.fileno()
    rest = b""
    while True:
        try:
            block = os.read(descriptor, 65536)
        except (OSError, ValueError):
            break
        if not block:
            break
        rest += block
        cut = max(rest.rfind(b"\n"), rest.rfind(b"\r")) + 1
        if cut:
            lines.put(rest[:cut])
            rest = rest[cut:]
        elif len(rest) > 1 << 20:
            lines.put(rest)
            rest = b""
    if rest:
        lines.put(rest)
    lines.put(None)


def _sizes(files: Sequence[Path]) -> dict[str, int]:
    found = {}
    for file in files:
        try:
            found[str(file)] = file.stat().st_size
        except OSError:
            continue
    return found
