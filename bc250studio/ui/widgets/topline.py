"""The first row of every screen: where you are at the left, how the board is at the right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from textual.content import Content
from textual.widgets import Static

from bc250studio.errors import clean
from bc250studio.ui.numbers import duration, fixed, number, size
from bc250studio.ui.readings import trusted
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.words import verdict_text


class TopLine(Static):
    """One line that is sent again only when its text changes."""

    DEFAULT_CSS = """
    TopLine { height: 1; background: $panel; color: $text; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self, place: str) -> None:
        super().__init__("", markup=False)
        self.place = place
        self.label = ""
        self.board = ""
        self._shown: tuple[str, ...] = ()

    def show(self, place: str | None = None, label: str = "", board: str = "") -> None:
        """Replace what it says; ``label`` is loud (recording, read-only)."""
        self.place = place if place is not None else self.place
        self.label, self.board = label, board
        self._write()

    def on_resize(self) -> None:
        """The right part moves with the width."""
        self._write()

    def _write(self) -> None:
        width = max(10, self.size.width)
        now = (self.place, self.label, self.board, str(width))
        if now == self._shown:
            return
        self._shown = now
        left = f"bc250studio ▸ {self.place}"
        label = f" {self.label} " if self.label else ""
        room = width - len(left) - len(label) - 3
        board = self.board if len(self.board) <= room else ""
        gap = " " * max(1, width - len(left) - len(label) - len(board) - (1 if label else 0))
        parts: list[Any] = [(left, "bold")]
        if label:
            parts += [" ", (label, "bold reverse")]
        self.update(Content.assemble(*parts, gap, (board, "dim")), layout=False)


def board_text(readings: Mapping[str, Any], error: str = "") -> str:
    """Temperature and free memory in a few characters, or why there are none."""
    parts = []
    gpu, cpu = trusted(readings.get("gpu_temp_c")), trusted(readings.get("cpu_temp_c"))
    if gpu is not None:
        parts.append(f"GPU {gpu:.0f} °C")
    elif cpu is not None:
        parts.append(f"CPU {cpu:.0f} °C")
    else:
        parts.append("temp n/a")
    free = trusted(readings.get("mem_available_mib"))
    if free is not None:
        parts.append(f"{size(free * 2**20)} free")
    return "sensors n/a" if error and not readings else " · ".join(parts)


def summary_text(snapshot: Snapshot) -> str:
    """One living line for terminals too small for anything else."""
    row = snapshot.live or (snapshot.jobs[0] if snapshot.jobs else None)
    if row is None:
        return "no runs yet"
    state = row.standing.state
    parts = [row.name, verdict_text(row.standing)]
    if row.standing.live and state.get("step") is not None:
        parts.append(f"{state.get('step')}/{state.get('steps') or '?'}")
        parts.append(f"loss {fixed(state.get('loss_ema') or state.get('loss'), 2)}")
        parts.append(f"{number(state.get('real_tokens_per_s'))} tok/s")
        parts.append(f"ETA {duration(state.get('eta_s'))}")
    return clean(" · ".join(parts), 200)
