"""Peek: stop at a checkpoint, chat with what the model is so far, go on as if nothing had been.

Each step is the run's own: a request, then stages of its pipeline. When the app dies in between, the run
stands as stopped with its checkpoint, and ``u`` (or ``bc250studio resume``) goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from textual.app import App
from textual.screen import Screen

from bc250studio import pipeline
from bc250studio.errors import JobFailed
from bc250studio.jobs import JobFolder, control, standing
from bc250studio.ui.background import in_thread

STAGES = ("export", "serve")
POLL_S = 0.3


async def begin(job: JobFolder, say: Callable[[str], object]) -> tuple[str, ...]:
    """Stop it, export and serve what it is now; the stages it has to go on with afterwards.

    Raises:
        JobFailed: it did not stop, or could not be exported or served (it has been set going again then).
    """
    remaining = tuple(job.state().get("stages") or pipeline.STAGES)
    say("Stopping at a checkpoint ...")
    await in_thread(lambda: control.ask(job, "stop", why="peek"))
    await _until_idle(job)
    if job.state().get("phase") != "stopped":
        raise JobFailed(f"{job.name} did not stop for the peek; it is {job.state().get('phase')}.")
    say("Exporting and serving what it is now ...")
    await in_thread(pipeline.go_on, job, STAGES)
    await _until_idle(job)
    if not (job.path / "server.json").exists():
        why = job.state().get("error") or "no server came up"
        await in_thread(pipeline.go_on, job, remaining)
        raise JobFailed(f"There is nothing to peek at: {why} The run goes on.")
    return remaining


async def end(job: JobFolder, remaining: tuple[str, ...]) -> None:
    """Free the memory the server holds and go on training."""
    from bc250studio.serve import server

    await in_thread(server.stop, job)
    await in_thread(pipeline.go_on, job, remaining)


async def left(app: App[Any], chat: Screen[Any]) -> None:
    """Wait until the chat is closed, by whatever key."""
    while chat in app.screen_stack:
        await asyncio.sleep(POLL_S)


async def _until_idle(job: JobFolder) -> None:
    while (await in_thread(standing, job)).live:
        await asyncio.sleep(POLL_S)
