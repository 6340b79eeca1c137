"""What the review looks up, in threads: model, steps, memory, export. Each returns one paragraph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.content import Content

from bc250studio import profiles
from bc250studio.errors import clean
from bc250studio.ui.numbers import big, size


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
    pause = f"pauses at {limits.pause_at_c:g} °C" if limits.pause_at_c else "pauses at throttle + 6, at most 90 °C"
    return _line("heat", f"{start}, {pause}; kernels: {resolved.profile.kernels.library}")


LOOKS: dict[str, Callable[[profiles.Resolved], Any]] = {
    "model": model,
    "data": data,
    "export": export,
    "heat": thermal,
}


def _line(name: str, text: str) -> Content:
    return Content.assemble((f"{name:<10}", "bold"), f"{text}\n")
