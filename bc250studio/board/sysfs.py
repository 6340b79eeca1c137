"""Reads of /sys, /proc and /etc that cannot fail: what is missing, torn or foreign reads as None.

Everything is read below a root, so that a recorded or written tree can stand in for a machine.
Never debugfs: reading amdgpu's registers there can hang a BC-250.
"""

from __future__ import annotations

import os
from pathlib import Path

LIMIT_BYTES = 1 << 20


class Tree:
    """A machine's file tree. Paths are given as on the machine (``/sys/...``), read below ``root``."""

    def __init__(self, root: str | Path = "/") -> None:
        self.root = Path(root)

    @property
    def is_machine(self) -> bool:
        """Whether this is the machine we run on, not a tree that stands in for another."""
        return self.root == Path("/")

    def at(self, path: str | Path) -> Path:
        """Where ``path`` of the machine lies."""
        return self.root / str(path).lstrip("/")

    def blob(self, path: str | Path, limit: int = LIMIT_BYTES) -> bytes | None:
        """The file's bytes, at most ``limit``."""
        try:
            descriptor = os.open(self.at(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError):
            return None
        try:
            blocks, size = [], 0
            while size < limit:
                block = os.read(descriptor, min(65536, limit - size))
                if not block:
                    break
                blocks.append(block)
                size += len(block)
            return b"".join(blocks)
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def text(self, path: str | Path) -> str | None:
        """The file's text without surrounding white space."""
        content = self.blob(path)
        return None if content is None else content.decode("utf-8", "replace").strip().strip("\0")

    def number(self, path: str | Path) -> int | None:
        """The whole number a file holds (decimal, or hexadecimal with 0x)."""
        return whole(self.text(path))

    def names(self, path: str | Path) -> list[str]:
        """Sorted names in a folder; empty when it is not one."""
        try:
            return sorted(entry.name for entry in self.at(path).iterdir())
        except (OSError, ValueError):
            return []

    def exists(self, path: str | Path) -> bool:
        """Whether there is anything of that name."""
        try:
            return self.at(path).exists()
        except (OSError, ValueError):
            return False

    def writable(self, path: str | Path) -> bool:
        """Whether this user may write the file."""
        try:
            return os.access(self.at(path), os.W_OK)
        except (OSError, ValueError):
            return False


def whole(text: str | None) -> int | None:
    """A whole number out of a sysfs text, or None. Numbers beyond 64 bits are not believed."""
    if not text or len(text) > 24 or not text.isascii():
        return None
    try:
        value = int(text, 16 if text.lower().startswith("0x") else 10)
    except ValueError:
        return None
    return value if -(1 << 63) <= value < (1 << 64) else None


def hwmon_named(tree: Tree, *wanted: str) -> list[str]:
    """Folders under /sys/class/hwmon whose ``name`` file starts with one of ``wanted``; asked anew each time,
    since the numbers move."""
    found = []
    for entry in tree.names("/sys/class/hwmon"):
        name = tree.text(f"/sys/class/hwmon/{entry}/name")
        if name and name.startswith(wanted):
            found.append(f"/sys/class/hwmon/{entry}")
    return found
