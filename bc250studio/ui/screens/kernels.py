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
            text: Any = tree_text(await twin("kernels", "status", timeout_s=120))
        except StudioError as error:
            text = Content.styled(clean(error, 500), "$error")
        if self.is_mounted:
            self.query_one("#text", Line).show(text)


def tree_text(found: Any, depth: int = 0) -> Content:
    """Any JSON as indented lines."""
    parts: list[Any] = []
    items = found.items() if isinstance(found, Mapping) else [("", found)]
    for key, value in items:
        label = f"{'  ' * depth}{clean(key, 30)}"
        if isinstance(value, Mapping):
            parts += [(f"{label}\n", "bold"), tree_text(value, depth + 1)]
        elif isinstance(value, list):
            parts.append((f"{label}\n", "bold"))
            parts += [f"{'  ' * (depth + 1)}{clean(_flat(item), 200)}\n" for item in value[:60]]
        else:
            parts += [(f"{label:<26} ", "dim"), f"{clean(_flat(value), 300)}\n"]
    return Content.assemble(*parts)


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return "  ".join(f"{key} {_flat(item)}" for key, item in value.items())
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


SCREEN = KernelsScreen
