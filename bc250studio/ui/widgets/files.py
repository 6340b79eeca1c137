"""A file browser for keys: enter opens, left goes up; folders first, then files that could be data."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from textual.binding import Binding
from textual.message import Message
from textual.widgets import DataTable

from bc250studio.errors import clean
from bc250studio.ui.background import in_thread
from bc250studio.ui.numbers import ago, size
from bc250studio.ui.widgets.rows import Rows

UP = ".."
MOST = 2000


@dataclass(frozen=True)
class Listing:
    """What a folder holds: (key, cells) for each line, and a sentence about it."""

    folder: Path
    rows: list[tuple[str, tuple[str, str, str]]]
    said: str


class Files(Rows):
    """``Picked`` carries a file that was chosen, ``Moved`` the folder that is open."""

    BINDINGS = [
        Binding("left,minus", "up", "Folder above", show=False, id="files.up", tooltip="The folder above"),
        Binding("tilde", "home", "Home folder", show=False, id="files.home", tooltip="The home folder"),
    ]

    class Picked(Message):
        """A file."""

        def __init__(self, path: Path, final: bool) -> None:
            super().__init__()
            self.path, self.final = path, final

    class Moved(Message):
        """Another folder is shown; ``said`` tells what is in it."""

        def __init__(self, folder: Path, said: str) -> None:
            super().__init__()
            self.folder, self.said = folder, said

    def __init__(self, id: str | None = None) -> None:
        super().__init__("name", "size", "changed", elastic=("name",), right=("size",), id=id)
        self.folder = Path.home()

    async def open(self, folder: Path, mark: str = "") -> None:
        """Show ``folder`` with the cursor on ``mark``; one that cannot be read says why and nothing moves."""
        found = await in_thread(listing, folder)
        if found.rows:
            self.folder = found.folder
            self.show(found.rows)
            keys = [key for key, _ in found.rows]
            self.move_cursor(row=keys.index(mark) if mark in keys else 0)
        self.post_message(self.Moved(self.folder, found.said))

    async def action_up(self) -> None:
        """To the folder above, the cursor on where we come from."""
        await self.open(self.folder.parent, f"{self.folder.name}/")

    async def action_home(self) -> None:
        """Home."""
        await self.open(Path.home())

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """A file under the cursor is looked at."""
        event.stop()
        chosen = self.chosen
        if self.has_focus and chosen and chosen != UP and not chosen.endswith("/"):
            self.post_message(self.Picked(self.folder / chosen, False))

    async def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Into a folder, or take the file."""
        event.stop()
        chosen = self.chosen
        if chosen == UP:
            await self.action_up()
        elif chosen and chosen.endswith("/"):
            await self.open(self.folder / chosen.rstrip("/"))
        elif chosen:
            self.post_message(self.Picked(self.folder / chosen, True))


def listing(folder: Path) -> Listing:
    """Read ``folder``. No rows when it cannot be read; the sentence says why."""
    from bc250studio.data.files import kind_of

    folder = Path(os.path.normpath(folder.expanduser().absolute()))
    try:
        entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except OSError as error:
        return Listing(folder, [], f"{clean(folder, 200)} cannot be opened: {error.strerror or error}.")
    folders, files, others = [], [], 0
    for entry in sorted(entries, key=lambda e: e.name.lower()):
        try:
            if entry.is_dir():
                folders.append((f"{entry.name}/", (f"{clean(entry.name, 120)}/", "", "")))
            elif kind_of(Path(entry.name)):
                stat = entry.stat()
                cells = (clean(entry.name, 120), size(stat.st_size), ago(max(0.0, time.time() - stat.st_mtime)))
                files.append((entry.name, cells))
            else:
                others += 1
        except OSError:
            others += 1
    rows = [(UP, ("..", "", ""))] if folder.parent != folder else []
    shown = (folders + files)[:MOST]
    left = f", {len(folders) + len(files) - MOST} not shown" if len(folders) + len(files) > MOST else ""
    said = f"{clean(folder, 200)}: {_count(len(files), 'data file')}{left}, {_count(len(folders), 'folder')}"
    said += f", {others} other files hidden" if others else ""
    return Listing(folder, rows + shown, said)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")
