"""Kernels: what is tuned, proven and used, from the command-line twin."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget

from bc250studio.errors import StudioError, clean
from bc250studio.ui.background import twin
from bc250studio.ui.screens.base import StudioScreen
from bc250studio.ui.stage_words import table
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets.line import Line


class KernelsScreen(StudioScreen[None]):
    """Status of the library; r looks again."""

    place = "Kernels"
    BINDINGS = [Binding("r", "look", "Look again", id="kernels.look", tooltip="Ask bc250studio kernels status")]
    DEFAULT_CSS = """
    KernelsScreen VerticalScroll { height: 1fr; padding: 0 1; }
    KernelsScreen #text { height: auto; }
    """

    def body(self) -> Iterable[Widget]:
        """Text."""
        with VerticalScroll(can_focus=True):
            yield Line("asking ...", id="text")

    def on_mount(self) -> None:
        """First look."""
        self.query_one(VerticalScroll).focus()
        self.action_look()

    def show(self, snapshot: Snapshot) -> None:
        """Nothing here moves by itself."""

    def action_look(self) -> None:
        """In a child process."""
        self.run_worker(self._look(), exclusive=True, exit_on_error=False)

    async def _look(self) -> None:
        try:
            text: Any = status_text(await twin("kernels", "status", timeout_s=120))
        except StudioError as error:
            text = Content.styled(clean(error, 500), "$error")
        if self.is_mounted:
            self.query_one("#text", Line).show(text)


def status_text(found: Any) -> Content:
    """In use, machine, libraries with their proof, and what live runs have really loaded."""
    if not isinstance(found, Mapping):
        return Content(clean(found, 4000))
    runner = table(found, "runner")
    platform = next(
        (f"{name} {runner[key]}" for name, key in (("HIP", "hip"), ("CUDA", "cuda")) if runner.get(key)), "CPU"
    )
    library = f" ({clean(found['library'], 40)})" if found.get("library") else ""
    parts: list[Any] = [
        ("in use    ", "bold"), f"{clean(found.get('use'), 20)}{library}\n",
        ("chip      ", "bold"), f"{clean(found.get('chip'), 40)}\n",
        ("torch     ", "bold"), f"{clean(runner.get('torch') or 'none', 40)} ({clean(platform, 30)})\n",
        ("python    ", "bold"), f"{clean(runner.get('python') or 'none', 100)}\n",
        ("rocBLAS   ", "bold"), f"{clean(runner.get('rocblas') or 'none here', 100)}\n",
        ("\nLibraries\n", "bold"),
    ]  # fmt: skip
    parts += _entries(found.get("libraries"), "none built or adopted; bc250studio kernels adopt | plan | tune | build")
    parts.append(("\nLoaded by live runs\n", "bold"))
    parts += _entries(found.get("running"), "no live run")
    return Content.assemble(*parts)


def _entries(entries: Any, nothing: str) -> list[Any]:
    if not isinstance(entries, list) or not entries:
        return [(f"  {nothing}\n", "dim")]
    parts: list[Any] = []
    for entry in entries:
        facts = entry if isinstance(entry, Mapping) else {"name": entry}
        first, *rest = facts.items()
        words = [
            f"{clean(key, 24)} {clean(_flat(value), 80)}" for key, value in rest if value not in (None, [], {}, "")
        ]
        parts += [(f"  {clean(first[1], 50)}  ", "bold"), f"{' · '.join(words)}\n"]
    return parts


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key} {_flat(item)}" for key, item in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


SCREEN = KernelsScreen
