"""Calling for the user when a run ends, runs hot or stalls: bell, OSC 9 or 777, a command, a webhook; and the title."""

from __future__ import annotations

import json
import subprocess
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bc250studio.errors import clean
from bc250studio.jobs import FINISHED
from bc250studio.ui.watch import JobRow, Snapshot
from bc250studio.ui.words import verdict_text

if TYPE_CHECKING:
    from bc250studio.ui.app import StudioApp

ENDS = FINISHED | {"lost", "machine restarted", "stuck"}


@dataclass(frozen=True)
class Seen:
    """What was known of a run at the last look."""

    verdict: str
    alarms: int


def on_change(app: StudioApp, known: dict[str, Seen], snapshot: Snapshot) -> None:
    """Set the title; call for what has happened since the last look. What was so when the app opened is only shown."""
    app.set_window_title(title(snapshot))
    for row in snapshot.jobs:
        before, now = known.get(row.name), Seen(row.standing.verdict, row.alarm.count)
        known[row.name] = now
        if before is None or before == now:
            continue
        if now.alarms > before.alarms:
            call(app, row.name, row.alarm.kind, f"{row.alarm.kind}: {row.alarm.text}")
        if before.verdict in ("live", "stuck") and now.verdict != before.verdict and now.verdict in ENDS:
            call(app, row.name, now.verdict, end_text(row))


def end_text(row: JobRow) -> str:
    """The verdict, and why when it is a bad one."""
    error = clean(row.standing.state.get("error") or "", 200)
    return verdict_text(row.standing) + (f": {error}" if error and row.standing.verdict == "failed" else "")


def title(snapshot: Snapshot) -> str:
    """Progress for the terminal's title."""
    row = snapshot.live
    if row is None:
        return "bc250studio"
    step, steps = row.standing.state.get("step"), row.standing.state.get("steps")
    share = f" {100 * step / steps:.0f} %" if isinstance(step, int) and isinstance(steps, int) and steps else ""
    return f"{row.name}{share} {row.standing.phase}"


def call(app: StudioApp, run: str, event: str, text: str) -> None:
    """As settings' [notify] says; a webhook or command that fails is only logged."""
    wanted = app.machine.notify
    line = clean(f"{run}: {text}", 300).replace("\n", " ")
    app.notify(line, severity="information" if event == "done" else "error", timeout=15, markup=False)
    if wanted.bell:
        app.bell()
    if wanted.osc:
        app.notify_desktop(str(wanted.osc), line)
    if wanted.command or wanted.webhook:
        facts = {"run": run, "event": event, "verdict": event, "text": line}
        threading.Thread(target=_outside, args=(wanted.command, wanted.webhook, facts), daemon=True).start()


def _outside(command: str | None, webhook: str | None, facts: dict[str, Any]) -> None:
    from bc250studio.ui import log

    try:
        if command:
            subprocess.run(
                [command, json.dumps(facts)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, timeout=30, check=False,
            )  # fmt: skip
    except Exception as error:
        log.exception(error)
    try:
        if webhook:
            import requests

            requests.post(webhook, json=facts, timeout=10)
    except Exception as error:
        log.exception(error)
