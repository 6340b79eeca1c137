"""What the review looks up, in threads: model, steps, memory, export. Each returns one paragraph."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from textual.content import Content

from bc250studio import profiles
from bc250studio.errors import clean
from bc250studio.ui.numbers import big, duration, number, size
from bc250studio.ui.stage_words import table
from bc250studio.ui.words import hanging

WIDTH = 76


def model(resolved: profiles.Resolved) -> Content:
    """Which model, where it is, how big."""
    from bc250studio.models.describe import describe
    from bc250studio.models.find import find

    source = find(resolved.profile.model.base, resolved.profile.model.revision)
    facts = describe(source)
    return _line("model", f"{clean(source.name, 60)} · {big(facts.parameters)} parameters · {facts.layers} layers")


def data(resolved: profiles.Resolved) -> Content:
    """Which files, how big."""
    from bc250studio.data import files

    path = resolved.profile.data.path
    if path.startswith("hub:"):
        return _line("data", f"{clean(path, 60)}, fetched by the run")
    found = files.locate(path)
    notes = "".join(f"; {clean(note, 100)}" for note in found.notes)
    return _line("data", f"{clean(path, 60)} · {len(found.files)} file(s), {size(found.size_bytes)}{notes}")


def export(resolved: profiles.Resolved) -> Content:
    """As what it will leave, and why."""
    from bc250studio.export import rules
    from bc250studio.models.describe import describe
    from bc250studio.models.find import find

    facts = describe(find(resolved.profile.model.base, resolved.profile.model.revision))
    route = rules.route(resolved.profile, facts)
    why = "; ".join(clean(reason, 120) for reason in route.reasons)
    return _line("export", f"{route.kind}" + (f": {why}" if why else ""))


def thermal(resolved: profiles.Resolved) -> Content:
    """When it waits for the board."""
    limits = resolved.profile.thermal
    start = f"starts below {limits.start_below_c:g} °C" if limits.start_below_c else "starts at once"
    pause = f"pauses at {limits.pause_at_c:g} °C" if limits.pause_at_c else "pauses at throttle + 6 (at most 90 °C)"
    return _line("heat", f"{start}, {pause}") + _line("kernels", resolved.profile.kernels.library)


def memory(found: Any) -> Content:
    """`models fit`: does it fit, part by part, and which knob would make it fit."""
    parts: list[Any] = []
    for fit in found.get("fits", []) if isinstance(found, dict) else []:
        verdict = str(fit.get("verdict") or "")
        style = "$success" if verdict == "fits" else "$error" if "not" in verdict else "$warning"
        why = hanging(" " * 10, clean(fit.get("why") or "", 300), WIDTH).strip()
        parts += [("memory    ", "bold"), (f"{clean(verdict, 30)}\n", style), f"{'':<10}{why}\n"]
        pieces = fit.get("parts") if isinstance(fit.get("parts"), dict) else {}
        listed = " · ".join(f"{clean(name, 24)} {size(count)}" for name, count in pieces.items())
        parts.append((hanging(" " * 10, listed, WIDTH) + "\n", "dim"))
        if fit.get("knob"):
            parts.append((f"{'':<10}{clean(fit['knob'], 200)}\n", "$warning"))
    others = found.get("others") if isinstance(found, dict) else None
    if others:
        parts.append((f"{'':<10}also running: {', '.join(clean(o, 30) for o in others[:6])}\n", "$warning"))
    return Content.assemble(*parts)


def rows(found: Any, resolved: profiles.Resolved) -> Content:
    """`data check`: rows, steps and time."""
    rows_, tokens, packing, time = (table(found, key) for key in ("rows", "tokens", "packing", "time"))
    train = resolved.profile.train
    text = f"{number(rows_.get('used'))} of {number(rows_.get('total'))} rows, {number(tokens.get('all'), 9)} tokens"
    text += f", {number(tokens.get('labelled_percent'))} % learnt"
    per_epoch = packing.get("tokens_per_epoch")
    steps = train.steps
    if steps is None and isinstance(per_epoch, (int, float)):
        steps = max(1, math.ceil(per_epoch * train.epochs / train.tokens_per_step))
    text += f"; about {number(steps)} steps" if train.steps is None else f"; {steps} steps"
    seconds = time.get("seconds_per_epoch")
    if isinstance(seconds, (int, float)) and isinstance(per_epoch, (int, float)) and steps:
        epochs = train.epochs if train.steps is None else steps * train.tokens_per_step / per_epoch
        text += f", about {duration(seconds * epochs)} as measured in {clean(time.get('from_run') or 'a run', 40)}"
    else:
        text += "; time unknown until a first run (h rehearses)"
    return _line("rows", hanging(" " * 10, text, WIDTH).strip())


LOOKS: dict[str, Callable[[profiles.Resolved], Any]] = {
    "model": model,
    "data": data,
    "export": export,
    "heat": thermal,
}


def _line(name: str, text: str) -> Content:
    return Content.assemble((f"{name:<10}", "bold"), f"{text}\n")
