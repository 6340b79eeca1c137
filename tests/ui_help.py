"""What the flows of the app share: the app, waiting for a condition, and reading what stands on the screen."""

from __future__ import annotations

import time
from collections.abc import Callable

from textual.pilot import Pilot

from bc250studio.ui.app import StudioApp
from bc250studio.ui.widgets.line import Line
from bc250studio.ui.widgets.rows import Rows


def app(**options) -> StudioApp:
    """The app with a quick watcher."""
    return StudioApp(interval_s=0.05, **options)


async def until(pilot: Pilot, condition: Callable[[], object], what: str = "", within_s: float = 60) -> None:
    """Wait for a condition, never for a time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        await pilot.pause(0.02)
        try:
            if condition():
                return
        except Exception:
            continue
    raise AssertionError(f"never came true: {what or condition}; screen {screen_name(pilot)}: {page(pilot)}")


def screen_name(pilot: Pilot) -> str:
    """Class of the screen on top."""
    return type(pilot.app.screen).__name__


def on(pilot: Pilot, name: str) -> Callable[[], bool]:
    """A condition: this screen is on top."""
    return lambda: screen_name(pilot) == name


def text(pilot: Pilot, selector: str) -> str:
    """What a line says."""
    return str(pilot.app.screen.query_one(selector, Line)._shown)


def said(pilot: Pilot) -> str:
    """All notifications."""
    return " ".join(str(note.message) for note in pilot.app._notifications)


def rows(pilot: Pilot, selector: str) -> dict[str, tuple[object, ...]]:
    """Key -> cells of a table."""
    return pilot.app.screen.query_one(selector, Rows)._rows


def page(pilot: Pilot) -> str:
    """The screen as characters, as a terminal without colours shows it."""
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in line).rstrip() for line in strips)
