"""Which process is it? pid alone is reused; pid + start time + boot id is not."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil


@dataclass(frozen=True)
class Identity:
    """One process of one boot. ``start`` is the kernel's start time in clock ticks since boot."""

    pid: int
    start: int
    boot: str

    def as_dict(self) -> dict[str, Any]:
        """For a JSON file."""
        return {"pid": self.pid, "start": self.start, "boot": self.boot}

    @classmethod
    def from_dict(cls, record: object) -> Identity | None:
        """The reverse; None when the record is not one."""
        if not isinstance(record, dict):
            return None
        try:
            return cls(int(record["pid"]), int(record["start"]), str(record["boot"]))
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def this_boot(self) -> bool:
        """False when the machine was restarted since."""
        return self.boot == boot_id()

    @property
    def alive(self) -> bool:
        """Whether exactly this process still runs (a zombie does not)."""
        return self.this_boot and self.start != 0 and start_ticks(self.pid) == self.start


def boot_id() -> str:
    """The kernel's id of this boot; a coarse boot time where /proc has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"boot-{int(psutil.boot_time()) // 10}"


def start_ticks(pid: int) -> int:
    """Start time of ``pid`` in clock ticks since boot (field 22 of /proc/PID/stat); 0 when gone or dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return 0 if fields[0] in "ZX" else int(fields[19])
    except (OSError, IndexError, ValueError):
        pass
    if Path("/proc/self/stat").exists():
        return 0
    try:
        return int(psutil.Process(pid).create_time() * 100)
    except psutil.Error:
        return 0


def process_state(pid: int) -> str:
    """The kernel's one-letter state (R, S, D ...); empty when gone. D means stuck in the driver."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def of(pid: int) -> Identity:
    """The identity of a running process."""
    return Identity(pid, start_ticks(pid), boot_id())


def mine() -> Identity:
    """The identity of this process."""
    return of(os.getpid())
