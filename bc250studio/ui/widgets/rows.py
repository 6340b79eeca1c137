"""A table that is updated cell by cell, and keeps its cursor on the same row while rows come and go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.text import Text
from textual.binding import Binding
from textual.widgets import DataTable

NARROWEST = 12


class Rows(DataTable[Any]):
    """``show`` takes (key, cells) in order; only what changed is drawn.

    ``elastic`` columns, named from the first to give way to the last, are shortened where the terminal is too
    narrow for all; ``right`` columns hold numbers and stand at the right.
    """

    DEFAULT_CSS = """
    Rows { height: auto; background: transparent; overflow-x: hidden; }
    Rows > .datatable--header { text-style: bold; color: $text-muted; background: transparent; }
    Rows > .datatable--cursor { text-style: bold; }
    Rows:focus > .datatable--cursor { text-style: bold reverse; }
    """
    BINDINGS = [
        Binding("enter", "select_cursor", "Open", show=False, id="table.open"),
        Binding("j", "cursor_down", "Down", show=False, id="table.down"),
        Binding("k", "cursor_up", "Up", show=False, id="table.up"),
    ]

    def __init__(self, *columns: str, elastic: Sequence[str] = (), right: Sequence[str] = (), **options: Any) -> None:
        super().__init__(cursor_type="row", cell_padding=1, **options)
        self._names = columns
        self._elastic, self._right = elastic, frozenset(right)
        self._rows: dict[str, tuple[Any, ...]] = {}
        self._shown_widths: list[int] = []

    def show(self, rows: Sequence[tuple[str, Sequence[Any]]]) -> None:
        """Make the table hold exactly these rows."""
        wanted = {key: tuple(cells) for key, cells in rows}
        if wanted == self._rows and self.columns:
            return
        widths = self._widths(wanted)
        if list(wanted) != list(self._rows) or widths != self._shown_widths:
            self._rebuild(wanted, widths)
        else:
            for key, cells in wanted.items():
                for name, old, new in zip(self._names, self._rows[key], cells, strict=True):
                    if old != new:
                        self.update_cell(key, name, self._cell(name, new))
        self._rows = wanted

    def _cell(self, name: str, value: Any) -> Any:
        """Foreign text stays text: a plain string would be read as markup. What is too long ends in an ellipsis."""
        if not isinstance(value, str):
            return value
        return Text(
            value, no_wrap=True, overflow="ellipsis", justify="right" if name in self._right else "left", end=""
        )

    def on_resize(self) -> None:
        """Elastic columns follow the terminal's width."""
        if self._elastic and self._rows and self._widths(self._rows) != self._shown_widths:
            self._rebuild(self._rows, self._widths(self._rows))

    def _rebuild(self, wanted: dict[str, tuple[Any, ...]], widths: list[int]) -> None:
        chosen, scroll = self.chosen, self.scroll_y
        self.clear(columns=True)
        for name, width in zip(self._names, widths, strict=True):
            self.add_column(self._cell(name, name), key=name, width=width)
        for key, cells in wanted.items():
            self.add_row(*map(self._cell, self._names, cells), key=key)
        self._shown_widths = widths
        if chosen in wanted:
            self.move_cursor(row=list(wanted).index(chosen), scroll=False)
            self.scroll_to(y=scroll, animate=False)

    def _widths(self, wanted: dict[str, tuple[Any, ...]]) -> list[int]:
        """Widths that only grow, so that a number that gets shorter does not move the columns."""
        columns = zip(*wanted.values(), strict=True) if wanted else ((),) * len(self._names)
        widths = [
            max(len(name), *(cell_len(str(cell)) for cell in column), 0)
            for name, column in zip(self._names, columns, strict=True)
        ]
        if list(wanted) == list(self._rows) and self._shown_widths:
            widths = [max(pair) for pair in zip(widths, self._shown_widths, strict=True)]
        return self._squeezed(widths)

    def _squeezed(self, widths: list[int]) -> list[int]:
        """Take what is too much from the elastic columns, one after the other."""
        excess = sum(widths) + 2 * len(widths) - self.size.width if self.size.width else 0
        for name in self._elastic:
            i = self._names.index(name)
            given = max(0, min(excess, widths[i] - NARROWEST))
            widths[i] -= given
            excess -= given
        return widths

    @property
    def chosen(self) -> str | None:
        """Key of the row under the cursor."""
        keys = list(self._rows)
        return keys[self.cursor_row] if 0 <= self.cursor_row < len(keys) else None
