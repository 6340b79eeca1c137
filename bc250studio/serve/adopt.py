"""Coming back to a server: adopted when it still runs and serves these files, stopped only when it is ours.

A start that was cut off leaves ``server.json`` with no process in it; the key file's path on the server's
command line then finds the orphan.
"""

from __future__ import annotations

import contextlib
import signal
import time
from dataclasses import replace
from pathlib import Path

from bc250studio.errors import JobFailed
from bc250studio.jobs import Identity, JobFolder, spawn
from bc250studio.jobs.folder import read_json
from bc250studio.jobs.identity import of
from bc250studio.serve.health import STUCK_S, verify
from bc250studio.serve.server_record import Server, folder_of, forget, read, write


def adopt(job: JobFolder | Path) -> Server | None:
    """The folder's server if it still runs and still serves these files; None otherwise.

    A start that was cut off before it was finished (kill -9 of the starter) is finished here when the
    server came up, and cleaned up when it did not.
    """
    folder = folder_of(job)
    server = read(folder)
    if server is None:
        return None
    if server.process is None:
        found = orphan(folder)
        if found is None:
            return None
        server = replace(server, process=found)
    if not server.alive:
        return None
    talk = server.talk(timeout_s=10.0)
    deadline = time.monotonic() + STUCK_S
    while server.alive and not talk.healthy():
        if read_json(folder / "server.json").get("state") == "ready" or time.monotonic() > deadline:
            return None
        time.sleep(0.1)
    try:
        server = replace(server, n_ctx=verify(server))
    except JobFailed:
        return None
    if read_json(folder / "server.json").get("state") != "ready":
        write(server, state="ready")
    return server


def orphan(folder: Path) -> Identity | None:
    """A server whose command line names this folder's key file: ours, though nobody wrote down its pid."""
    wanted = str(folder / "server.key").encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "cmdline").read_bytes().split(b"\0"):
                    return of(int(entry.name))
    return None


def stop(job: JobFolder | Path, grace_s: float = 10.0) -> bool:
    """End the folder's server and forget it; False when it was gone already. Never another process."""
    return stop_folder(folder_of(job), grace_s)


def stop_folder(folder: Path, grace_s: float = 10.0) -> bool:
    """See :func:`stop`."""
    server = read(folder)
    if server is None:
        forget(folder)
        return False
    if server.process is None:
        server = replace(server, process=orphan(folder))
    stopped = end(server, grace_s)
    forget(folder)
    return stopped


def end(server: Server, grace_s: float) -> bool:
    """SIGTERM, then SIGKILL, to exactly this process; waits until it is gone."""
    if server.process is None or not spawn.terminate(server.process, signal.SIGTERM):
        return False
    deadline = time.monotonic() + grace_s
    while server.process.alive:
        if time.monotonic() > deadline:
            spawn.terminate(server.process, signal.SIGKILL)
            deadline = time.monotonic() + grace_s
        time.sleep(0.02)
    return True
