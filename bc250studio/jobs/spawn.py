"""Start a job so that it outlives the terminal, the SSH line and the app.

New session, stdin closed, output to ``logs/``, no inherited descriptors. The child takes the job's
lock itself; starting returns when the child owns the job or has died trying.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import bc250studio
from bc250studio.errors import JobFailed, clean
from bc250studio.jobs import identity
from bc250studio.jobs.folder import JobFolder

START_TIMEOUT_S = 60.0


def package_root() -> str:
    """The folder that must be importable for ``python -m bc250studio...`` to work in a child."""
    return str(Path(bc250studio.__file__).resolve().parent.parent)


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment with the package importable, unbuffered output and ``extra`` on top."""
    environment = dict(os.environ)
    known = environment.get("PYTHONPATH", "")
    if package_root() not in known.split(os.pathsep):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (package_root(), known)))
    environment["PYTHONUNBUFFERED"] = "1"
    environment.update(extra or {})
    return environment


def detached(
    command: Sequence[str], log: Path, environment: Mapping[str, str], fresh: bool = False
) -> subprocess.Popen[bytes]:
    """A process in a session of its own: nothing inherited, stdin closed, output appended to ``log`` (``fresh``: in
    place of what stood there), which only its owner may read.

    Raises:
        OSError: the log cannot be written, or the command not be started.
    """
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if fresh else os.O_APPEND), 0o600)
    try:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            close_fds=True,
            cwd="/",
            env=dict(environment),
        )
    finally:
        os.close(descriptor)


def spawn(
    job: JobFolder,
    command: Sequence[str],
    log: str,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = START_TIMEOUT_S,
) -> subprocess.Popen[bytes]:
    """Run ``command`` detached for ``job``, output appended to ``logs/LOG.log``.

    Returns when the child owns the job (its identity stands in ``state.json``) or finished cleanly.

    Raises:
        JobFailed: the command cannot be started, died before it owned the job, or took too long.
    """
    path = job.path / "logs" / f"{log}.log"
    try:
        child = detached(command, path, child_environment(environment))
    except OSError as error:
        raise JobFailed(f"{command[0]} cannot be started: {error}.") from error
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        owner = job.owner()
        if owner is not None and owner.pid == child.pid:
            return child
        code = child.poll()
        if code is not None:
            owner = job.owner()
            if code == 0 or (owner is not None and owner.pid == child.pid):
                return child
            raise JobFailed(f"{job.name} ended before it began (exit code {code}): {last_lines(path)} Log: {path}")
        time.sleep(0.05)
    child.kill()
    raise JobFailed(f"{job.name} did not begin within {timeout_s:.0f} seconds. Log: {path}")


def python_job(module: str, *arguments: str, python: str | None = None) -> list[str]:
    """The command line of one of our modules as a job."""
    return [python or sys.executable, "-m", module, *arguments]


def last_lines(path: Path, count: int = 3) -> str:
    """The end of a log, cleaned, on one line."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            lines = [clean(line).strip() for line in file.read().decode("utf-8", "replace").splitlines()]
    except OSError:
        return ""
    return " | ".join([line for line in lines if line][-count:])


def terminate(owner: identity.Identity, signal_number: int) -> bool:
    """Signal exactly this process, never another that got its pid. False when it is gone.

    A pidfd is opened first and the identity checked through it, so the pid cannot be reused in between.
    """
    import signal

    try:
        descriptor = os.pidfd_open(owner.pid)
    except (OSError, AttributeError):
        return False
    try:
        if not owner.alive:
            return False
        signal.pidfd_send_signal(descriptor, signal_number)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
