"""A log file, its end first; foreign text is shown as text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widget import Widget

from bc250studio.errors import clean
from bc250studio.ui.background import in_thread
from bc250studio.ui.screens.base import StudioScreen
from bc250studio.ui.widgets.line import Line

SHOWN_BYTES = 64 * 1024
AGAIN_S = 2.0
"""Between two looks."""


class LogScreen(StudioScreen[None]):
    """Reads again and again while it is open; follows the end until scrolled up."""

    place = "Log"
    BINDINGS = [
        Binding("n", "next", "Next file", id="log.next", tooltip="The next log of the same folder"),
        Binding("end", "end", "End", id="log.end"),
    ]
    DEFAULT_CSS = """
    LogScreen VerticalScroll { height: 1fr; padding: 0 1; }
    LogScreen #text { height: auto; }
    """

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def body(self) -> Iterable[Widget]:
        """Path, text."""
        yield Line(str(self.file), classes="note", id="path")
        with VerticalScroll(can_focus=True):
            yield Line(id="text")

    def on_mount(self) -> None:
        """First look, then again and again."""
        self.query_one(VerticalScroll).focus()
        self._look()
        self.set_interval(AGAIN_S, self._again)

    def _again(self) -> None:
        """Unless a look still waits for a slow disk: it would never come to its end."""
        if all(worker.node is not self or worker.is_finished for worker in self.workers):
            self._look()

    def _look(self) -> None:
        self.run_worker(self._read(), group="read", exclusive=True, exit_on_error=False)

    async def _read(self) -> None:
        text = await in_thread(end_of, self.file)
        if self.is_attached:
            self.query_one("#text", Line).show(text)
            self.call_after_refresh(self._stand)

    def _stand(self) -> None:
        """At the end of a long text, and stay there; a short one begins at the top (an anchor would sink it)."""
        page = self.query_one(VerticalScroll)
        long = page.virtual_size.height > page.container_size.height
        if long != page.is_anchored:
            page.anchor(long)
            if not long:
                page.scroll_home(animate=False, force=True)

    def action_next(self) -> None:
        """Round the folder's logs."""
        files = sorted(self.file.parent.glob("*.log"))
        if files:
            position = files.index(self.file) + 1 if self.file in files else 0
            self.file = files[position % len(files)]
            self.query_one("#path", Line).show(str(self.file))
            self._look()

    def action_end(self) -> None:
        """To the newest line."""
        self.query_one(VerticalScroll).scroll_end(animate=False)


def end_of(file: Path) -> str:
    """The last part of a file, cleaned; a sentence when it cannot be read."""
    try:
        with file.open("rb") as handle:
            size = file.stat().st_size
            handle.seek(max(0, size - SHOWN_BYTES))
            text = handle.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return "Nothing has been written there."
    except OSError as error:
        return f"It cannot be read: {error}."
    if size > SHOWN_BYTES:
        text = f"... the first {size - SHOWN_BYTES:,} bytes are left out\n" + text.partition("\n")[2]
    return clean(text.replace("\r", "\n"))


SCREEN = LogScreen
