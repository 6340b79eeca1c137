"""The app's own log: a rotating file, never the terminal."""

from __future__ import annotations

import logging
import logging.handlers
from pathlib import Path

from bc250studio import paths

_log = logging.getLogger("bc250studio.ui")


def file() -> Path:
    """Where it is."""
    return paths.state_dir() / "app.log"


def to_file() -> None:
    """Send warnings and errors there; without a writable place the app goes on without a log."""
    try:
        paths.private_dir(paths.state_dir())
        handler = logging.handlers.RotatingFileHandler(file(), maxBytes=500_000, backupCount=2, delay=True)
    except OSError:
        return
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)


def exception(error: BaseException) -> None:
    """With its traceback."""
    _log.error("%s", error, exc_info=(type(error), error, error.__traceback__))
