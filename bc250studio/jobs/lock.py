"""One owner per job: an flock held for life, so the kernel releases it however the owner dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from bc250studio.errors import JobFailed


class Lock:
    """Exclusive ownership of a job folder; a context manager. Forked children do not keep it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lock"
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            JobFailed: another process has it.
        """
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise JobFailed(
                f"{self.path.parent.name} is already being worked on by another process; "
                f"follow it with: bc250studio attach {self.path.parent.name}"
            ) from error
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back; harmless when not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def is_held(folder: Path) -> bool:
    """Whether some process owns this job folder now. Does not create the lock file."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
