"""Watch a run from a plain terminal: its events as lines, its state as one moving line, until it ends."""

from __future__ import annotations

import time

from bc250studio import telemetry
from bc250studio.cli.common import Bar, duration, narrate
from bc250studio.jobs import FINISHED, JobFolder, Standing, standing

POLL_S = 0.25


def follow(job: JobFolder, quiet: bool = False) -> Standing:
    """Return when nobody works on the job any more. Ctrl-C raises KeyboardInterrupt; the run goes on."""
    events, board = telemetry.Tail(job.path / "events.jsonl"), telemetry.Tail(job.path / "board.jsonl")
    bar = Bar()
    readings: dict = {}
    while True:
        found = standing(job)
        for record in board.read():
            readings = record.get("readings") or {}
        if not quiet:
            news = events.read()
            if news:
                bar.close()
            for event in news:
                narrate(f"  {event.get('text', '')}")
            if found.live:
                bar.show(status_line(found, readings))
        if not found.live and (found.phase in FINISHED or found.age_s > 5):
            bar.close()
            return found
        time.sleep(POLL_S)


def status_line(found: Standing, readings: dict) -> str:
    """One line of what goes on now."""
    state = found.state
    parts = [found.phase]
    if found.phase in ("training", "paused") and state.get("steps"):
        parts.append(f"step {state.get('step', 0)}/{state['steps']}")
        for key, form in (("loss_ema", "loss {:.3f}"), ("real_tokens_per_s", "{:.0f} tok/s")):
            if isinstance(state.get(key), (int, float)):
                parts.append(form.format(state[key]))
        parts.append(f"ETA {duration(state.get('eta_s'))}")
    elif state.get("stage_text") and state["stage_text"] != found.phase:
        text = str(state["stage_text"])
        if state.get("stage_total"):
            text += f" {100 * (state.get('stage_done') or 0) / state['stage_total']:.0f} %"
        parts.append(text)
    for key in ("gpu_temp_c", "cpu_temp_c"):
        reading = readings.get(key) or {}
        if reading.get("trust") == "good" and isinstance(reading.get("value"), (int, float)):
            parts.append(f"{key[:3].upper()} {reading['value']:.0f} °C")
    return "  ".join(parts)
