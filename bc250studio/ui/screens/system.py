"""System: every sensor with its source and trust, the doctor's findings, settings and places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget

from bc250studio import paths
from bc250studio.errors import StudioError, clean
from bc250studio.ui.background import twin
from bc250studio.ui.draft import shown
from bc250studio.ui.follow import reading_text
from bc250studio.ui.numbers import duration
from bc250studio.ui.screens.base import StudioScreen
from bc250studio.ui.stage_words import table
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets.line import Line

PAGES = ("sensors", "doctor", "settings")
MARKS = {"pass": ("✓", "$success"), "warn": ("!", "$warning"), "fail": ("✗", "$error")}


class SystemScreen(StudioScreen[None]):
    """Three pages; tab turns them."""

    place = "System"
    BINDINGS = [
        Binding("tab", "turn(1)", "Next page", id="system.next", priority=True, tooltip="Sensors, doctor, settings"),
        Binding("d", "doctor", "Doctor", id="system.doctor", tooltip="Is this machine fit, and what would fix it"),
    ]
    DEFAULT_CSS = """
    SystemScreen #pages { height: 1; padding: 0 1; }
    SystemScreen VerticalScroll { height: 1fr; padding: 0 1; }
    SystemScreen #text { height: auto; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.page = 0
        self._doctor: Any = "d asks the doctor."

    def body(self) -> Iterable[Widget]:
        """Page names, text."""
        yield Line(id="pages")
        with VerticalScroll(can_focus=True):
            yield Line(id="text")

    def on_mount(self) -> None:
        """Keys scroll the page."""
        self.query_one(VerticalScroll).focus()
        self.show(self.studio.snapshot)

    def show(self, snapshot: Snapshot) -> None:
        """The page that is open."""
        names: list[Any] = []
        for i, name in enumerate(PAGES):
            names += [(f" {name} ", "reverse bold" if i == self.page else "dim"), " "]
        self.query_one("#pages", Line).show(Content.assemble(*names))
        text: Any = {
            "sensors": lambda: sensors_text(snapshot),
            "doctor": lambda: self._doctor,
            "settings": self._settings_text,
        }[PAGES[self.page]]()
        self.query_one("#text", Line).show(text)

    def action_turn(self, direction: int) -> None:
        """Another page."""
        self.page = (self.page + direction) % len(PAGES)
        self.show(self.studio.snapshot)

    def action_doctor(self) -> None:
        """In a child process; it looks at many things."""
        self.page = PAGES.index("doctor")
        self._doctor = "The doctor looks ..."
        self.show(self.studio.snapshot)
        self.run_worker(self._ask_doctor(), exclusive=True, exit_on_error=False)

    async def _ask_doctor(self) -> None:
        try:
            self._doctor = doctor_text(await twin("doctor", timeout_s=120), self.size.width - 4)
        except StudioError as error:
            self._doctor = Content.styled(clean(error, 500), "$error")
        if self.is_attached:
            self.show(self.studio.snapshot)

    def _settings_text(self) -> Content:
        parts: list[Any] = [(f"{paths.settings_file()}\n", "bold")]
        for section, values in self.studio.machine:
            for key, value in values:
                name = f"{section}.{key}"
                parts += [f"  {name:<24}", (f"{clean(shown(value), 80) or '-'}\n", "dim")]
        parts.append(("\nPlaces\n", "bold"))
        for name in ("runs_dir", "user_profiles_dir", "data_dir", "cache_dir", "state_dir"):
            parts.append(f"  {name.removesuffix('_dir'):<18}{getattr(paths, name)()}\n")
        return Content.assemble(*parts)


def sensors_text(snapshot: Snapshot) -> Content | str:
    """One line a reading: value, source, age, trust."""
    if not snapshot.readings:
        return snapshot.sensors_error or "No sensor has been read yet."
    parts: list[Any] = []
    for name, reading in snapshot.readings.items():
        if not isinstance(reading, Mapping):
            continue
        trust = str(reading.get("trust") or "missing")
        style = {"good": "", "implausible": "$warning"}.get(trust, "dim")
        age = reading.get("age_s")
        old = f", {duration(age)} old" if isinstance(age, (int, float)) and age > 5 else ""
        source = clean(reading.get("source") or "", 70)
        parts += [f"{clean(name, 26):<22}", (f"{reading_text(snapshot.readings, name) + old:<14}", style)]
        parts.append((f"  {source}\n" if source else "\n", "dim"))
    return Content.assemble(*parts)


def doctor_text(found: Any, width: int) -> Content:
    """Findings by group, what would fix them below; what does not apply here is counted only."""
    if not isinstance(found, Mapping):
        return Content(clean(found, 4000))
    counts = table(found, "counts")
    parts: list[Any] = [(f"{clean(found.get('chip') or '', 60)}\n", "bold")]
    parts.append((" · ".join(f"{clean(k, 10)} {v}" for k, v in counts.items()) + "\n", "dim"))
    group = None
    for check in found.get("checks") or []:
        if not isinstance(check, Mapping) or check.get("verdict") == "skip":
            continue
        if check.get("group") != group:
            group = check.get("group")
            parts.append((f"\n{clean(group or '', 40)}\n", "bold"))
        mark, style = MARKS.get(str(check.get("verdict")), ("·", "dim"))
        parts += [
            (f"{mark} {clean(check.get('name') or '', 20):<18}", style),
            f"{clean(check.get('why') or '', 400)}\n",
        ]
        if check.get("fix"):
            parts.append((f"{'':<20}{clean(check['fix'], 400)}\n", "dim"))
    return Content.assemble(*parts)


SCREEN = SystemScreen
