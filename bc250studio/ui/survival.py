"""How the app ends when it is not the user who ends it: hang-up, SIGTERM, a terminal that stopped reading.

Measured (Textual 8.2.8): cleaning up on SIGHUP hangs in a third of the cases, because Linux sends
SIGCONT right after it and Textual then enters application mode again; ignoring SIGHUP spins on the
dead input. Nothing here needs cleaning up, every run is detached, so SIGHUP keeps its default: die.
SIGTERM by default leaves the alternate screen and mouse tracking on in the user's terminal; it becomes
an ordinary exit, with a last resort for a terminal that no longer takes output.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
import threading
from typing import Any

LEAVE = (
    b"\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[<u\x1b[23;0t\x1b[0m"
)
GRACE_S = 2.0
TERMINATED = 128 + signal.SIGTERM


def install(app: Any) -> None:
    """Set the handlers; call it in the main thread before the app runs."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    before = _terminal_settings()

    def terminated(*_: object) -> None:
        signal.signal(signal.SIGCONT, signal.SIG_IGN)
        threading.Thread(target=_last_resort, args=(before,), daemon=True).start()
        try:
            app.call_later(app.exit, None, TERMINATED)
        except Exception:
            os._exit(TERMINATED)

    signal.signal(signal.SIGTERM, terminated)


def hung_up() -> None:
    """The terminal is gone and nobody told us by signal: leave at once, every run is detached."""
    os._exit(128 + signal.SIGHUP)


def _last_resort(before: list[Any] | None) -> None:
    threading.Event().wait(GRACE_S)
    restore(before)
    os._exit(TERMINATED)


def _terminal_settings() -> list[Any] | None:
    try:
        return termios.tcgetattr(sys.__stdin__.fileno())  # type: ignore[union-attr]
    except (termios.error, OSError, ValueError, AttributeError):
        return None


def restore(before: list[Any] | None) -> None:
    """Put the terminal back without waiting for it to read."""
    try:
        descriptor = sys.__stderr__.fileno()  # type: ignore[union-attr]
        os.set_blocking(descriptor, False)
        os.write(descriptor, LEAVE)
    except (OSError, ValueError, AttributeError):
        pass
    if before is not None:
        try:
            termios.tcsetattr(sys.__stdin__.fileno(), termios.TCSANOW, before)  # type: ignore[union-attr]
        except (termios.error, OSError, ValueError, AttributeError):
            pass
