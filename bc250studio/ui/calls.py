"""Calling for the user: terminal title, bell, OSC 9, a command or a webhook when a run ends or runs hot."""

from __future__ import annotations

import json
import subprocess
import threading
from typing import TYPE_CHECKING, Any

from bc250studio.jobs import FINISHED
from bc250studio.ui.watch import JobRow, Snapshot
from bc250studio.ui.words import verdict_text

if TYPE_CHECKING:
    from bc250studio.ui.app import StudioApp

ENDS = FINISHED | {"lost", "machine restarted", "stuck"}


def on_change(app: StudioApp, known: dict[str, str], snapshot: Snapshot) -> None:
    """Set the title; call when a run that was live has ended since the last look."""
    app.set_window_title(title(snapshot))
    for row in snapshot.jobs:
        before, now = known.get(row.name), row.standing.verdict
        known[row.name] = now
        if before == "live" and now in ENDS:
            call(app, row)


def title(snapshot: Snapshot) -> str:
    """Progress for the terminal's title."""
    row = snapshot.live
    if row is None:
        return "bc250studio"
    step, steps = row.standing.state.get("step"), row.standing.state.get("steps")
    share = f" {100 * step / steps:.0f} %" if isinstance(step, int) and isinstance(steps, int) and steps else ""
    return f"{row.name}{share} {row.standing.phase}"


def call(app: StudioApp, row: JobRow) -> None:
    """As settings' [notify] says; a webhook or command that fails is only logged."""
    wanted = app.machine.notify
    text = f"{row.name}: {verdict_text(row.standing)}"
    good = row.standing.verdict == "done"
    app.notify(text, severity="information" if good else "error", timeout=15, markup=False)
    if wanted.bell:
        app.bell()
    if wanted.osc and app._driver is not None:
        app._driver.write(f"\x1b]9;{text}\x07")
    if wanted.command or wanted.webhook:
        event = {"run": row.name, "verdict": row.standing.verdict, "text": text}
        threading.Thread(target=_outside, args=(wanted.command, wanted.webhook, event), daemon=True).start()


def _outside(command: str | None, webhook: str | None, event: dict[str, Any]) -> None:
    from bc250studio.ui import log

    try:
        if command:
            subprocess.run(
                [command, json.dumps(event)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, timeout=30, check=False,
            )  # fmt: skip
        if webhook:
            import requests

            requests.post(webhook, json=event, timeout=10)
    except Exception as error:
        log.exception(error)
