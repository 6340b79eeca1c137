"""Work that must not stop the screen: daemon threads and the command-line twin as a child.

Textual's own thread workers run in an executor that is joined on exit (a worker that sleeps 12 s keeps
the app alive 12 s, measured), so anything that can wait lives in a daemon thread here.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from bc250studio.errors import BadInput, JobFailed, ProofFailed, StudioError, clean

T = TypeVar("T")
LOOKING = "looking:"
"""How the threads' names begin."""

_ERRORS: dict[int, type[StudioError]] = {2: BadInput, 3: ProofFailed}


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run ``function`` in a daemon thread and wait for it without stopping the event loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(setter: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():
            setter(outcome)

    def work() -> None:
        try:
            outcome, setter = function(*arguments), future.set_result
        except BaseException as error:
            outcome, setter = error, future.set_exception  # type: ignore[assignment]
        try:
            loop.call_soon_threadsafe(deliver, setter, outcome)
        except RuntimeError:
            pass  # the app has gone

    threading.Thread(target=work, name=f"{LOOKING} {getattr(function, '__name__', 'work')}", daemon=True).start()
    return await future


async def twin(*arguments: str, timeout_s: float = 600.0) -> Any:
    """What ``bc250studio ARGUMENTS --json`` says, from a child process: heavy imports stay out of the app.

    The child has no terminal; it ends with the app, and with the task that waits for it.

    Raises:
        StudioError: of the kind its exit code means, with its last sentence.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bc250studio.cli.main",
        *arguments,
        "--json",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "NO_COLOR": "1"},
    )
    try:
        out, err = await asyncio.wait_for(child.communicate(), timeout_s)
    except (asyncio.CancelledError, TimeoutError) as error:
        if child.returncode is None:
            child.kill()
        if isinstance(error, asyncio.CancelledError):
            raise
        raise JobFailed(f"bc250studio {' '.join(arguments)} took longer than {timeout_s:.0f} s.") from error
    try:
        return json.loads(out)
    except ValueError as error:
        lines = [line for line in clean(err.decode("utf-8", "replace")).splitlines() if line.strip()]
        kind = _ERRORS.get(child.returncode or 1, JobFailed)
        raise kind(lines[-1].removeprefix("bc250studio: ") if lines else "The command said nothing.") from error
