"""A terminal for tests: a real pseudo-terminal, an emulated screen, keys, hang-up, and a byte count."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping

import pyte

KEYS = {"enter": "\r", "tab": "\t", "escape": "\x1b", "space": " ", "up": "\x1b[A", "down": "\x1b[B", "ctrl+u": "\x15",
        "f2": "\x1bOQ", "f3": "\x1bOR", "f4": "\x1bOS", "f5": "\x1b[15~", "f7": "\x1b[18~",
        "f8": "\x1b[19~"}  # fmt: skip
APP = [sys.executable, "-m", "bc250studio.cli.main"]


class Terminal:
    """Runs a command on its own controlling terminal; ``screen`` is what a person would see."""

    def __init__(
        self, command: list[str] | None = None, columns: int = 80, lines: int = 24, ignore_hangup: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.received = b""
        self.count = 0
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = termios.tcgetattr(slave)

        def prepare() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            if ignore_hangup:
                signal.signal(signal.SIGHUP, signal.SIG_IGN)

        self.process = subprocess.Popen(
            command or APP,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=prepare,
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **(environment or {})},
        )
        self.slave = slave
        self.master = master

    def pump(self, seconds: float = 0.05) -> int:
        """Read what comes within ``seconds`` onto the screen; how many bytes."""
        got, deadline = 0, time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            taken = self._take(left)
            if not taken:
                break
            got += taken
        return got

    def drain(self) -> None:
        """Everything that was written before now: a process that has stopped or ended wrote more than was read."""
        deadline = time.monotonic() + 10
        with contextlib.suppress(OSError, ValueError):
            while self._take(0.0) and time.monotonic() < deadline:
                pass

    def _take(self, wait_s: float) -> int:
        """One block onto the screen; 0 when none came."""
        ready, _, _ = select.select([self.master], [], [], wait_s)
        if not ready:
            return 0
        try:
            block = os.read(self.master, 65536)
        except OSError:
            return 0
        self.received = (self.received + block)[-200_000:]
        self.count += len(block)
        self._stream.feed(_plain(block))
        return len(block)

    @property
    def text(self) -> str:
        """The visible screen."""
        return "\n".join(self.screen.display)

    def until(self, what: str | Callable[[], object], timeout_s: float = 60.0) -> None:
        """Wait until a text stands on the screen, or a condition holds."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.pump(0.1)
            if (what in self.text) if isinstance(what, str) else what():
                self.drain()
                return
            if self.process.poll() is not None and not isinstance(what, Callable):  # type: ignore[arg-type]
                self.drain()
                break
        assert (what in self.text) if isinstance(what, str) else what(), f"never saw {what!r} in\n{self.text}"

    def press(self, *keys: str) -> None:
        """Type keys by name or letter."""
        for key in keys:
            os.write(self.master, KEYS.get(key, key).encode())
            self.pump(0.15)

    def resize(self, columns: int, lines: int) -> None:
        """Another window size; the kernel tells the app by SIGWINCH."""
        self.screen.resize(lines, columns)
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.pump(0.01)

    def hang_up(self) -> None:
        """The line is cut: the terminal vanishes."""
        os.close(self.slave)
        os.close(self.master)

    def ended(self, timeout_s: float = 10.0) -> int:
        """Wait for the end while reading; the exit code."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                self.pump(0.05)
            except (OSError, ValueError):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(0.05)
        code = self.process.poll()
        assert code is not None, "the app is still there"
        self.drain()
        return code

    def close(self) -> None:
        """End whatever is left."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        for descriptor in (self.slave, self.master):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _plain(block: bytes) -> bytes:
    """pyte prints the tail of the kitty and synchronisation sequences it does not know."""
    import re

    return re.sub(rb"\x1b\[[<>=?][0-9;]*(u|\$p)", b"", block)
