"""The queue on the home screen: what waits, in which order, and its keys."""

from __future__ import annotations

import time
from pathlib import Path

from textual.binding import Binding

from bc250studio.errors import clean
from bc250studio.pipeline import queue
from bc250studio.ui.background import in_thread
from bc250studio.ui.draft import Draft
from bc250studio.ui.numbers import ago
from bc250studio.ui.screens.base import StudioScreen
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets.line import Line
from bc250studio.ui.widgets.rows import Rows

QUEUE_KEYS = frozenset({"earlier", "later", "remove", "start_queue"})


class QueueOnHome(StudioScreen[None]):
    """Everything of the home screen that is about the queue; the table ``#queue`` is there while something waits."""

    BINDINGS = [
        Binding("u", "earlier", "Earlier", show=False, id="home.earlier", tooltip="Queue: it runs earlier"),
        Binding("d", "later", "Later", show=False, id="home.later", tooltip="Queue: it runs later"),
        Binding("x", "remove", "Remove", show=False, id="home.remove", tooltip="Queue: take it out"),
        Binding("s", "start_queue", "Start", show=False, id="home.start", tooltip="Queue: start working on it"),
    ]

    def _on(self, table: str) -> bool:
        return self.query_one(f"#{table}", Rows).has_focus

    def _draft(self) -> Draft | None:
        """What is under the cursor, as a draft."""
        raise NotImplementedError

    def why_not_queue(self, action: str) -> str | None:
        """Reasons."""
        if action in QUEUE_KEYS and not waiting():
            return "Nothing waits in the queue; w puts what is under the cursor there."
        if action in QUEUE_KEYS - {"start_queue"} and not self._on("queue"):
            return "Go to the queue with tab first."
        return None

    def _entry(self) -> Path | None:
        chosen = self.query_one("#queue", Rows).chosen
        return queue.folder() / chosen if chosen else None

    def _show_queue(self, snapshot: Snapshot) -> None:
        entries = waiting()
        table = self.query_one("#queue", Rows)
        if not entries and table.has_focus:
            self.query_one("#profiles", Rows).focus()
        self.set_class(bool(entries), "-waits")
        runner = next((r for r in snapshot.jobs if r.standing.live and r.standing.state.get("kind") == "queue"), None)
        works = "is being worked on" if runner else "stands still, s starts it"
        keys = "  ·  here: u earlier, d later, x remove" if table.has_focus else "  ·  tab goes there"
        self.query_one("#queue-head", Line).show(f"Queue {works}{keys}")
        table.show(
            [(entry.name, (f"{i + 1}.", clean(queue.name_of(entry), 60), ago(_waited(entry))))
             for i, entry in enumerate(entries)]
        )  # fmt: skip

    async def action_queue(self) -> None:
        """What is under the cursor waits its turn; the queue's runner works on without the app."""
        draft: Draft | None = await self.attempt(self._draft)
        if draft is None:
            return

        from bc250studio.pipeline import preflight

        def put() -> str:
            resolved = draft.resolved()
            preflight.check(resolved, ("train",))
            queue.add(resolved)
            return queue.ensure_runner().name

        name = await self.attempt(lambda: in_thread(put))
        if name is not None:
            self.notify(f"{clean(draft.name, 60)} waits its turn; {name} works on the queue.", markup=False)
            self.studio.watcher.hurry()

    async def action_earlier(self) -> None:
        """One place to the front."""
        await self._move(-1)

    async def action_later(self) -> None:
        """One place to the back."""
        await self._move(1)

    async def _move(self, by: int) -> None:
        """Another place in the queue; the cursor goes with it."""
        entry = self._entry()
        if entry is not None:
            moved = await self.attempt(lambda: queue.move(entry, by))
            self.show(self.studio.snapshot)
            if moved is not None:
                names = [file.name for file in waiting()]
                self.query_one("#queue", Rows).move_cursor(row=names.index(moved.name))

    async def action_remove(self) -> None:
        """Out of the queue."""
        entry = self._entry()
        if entry is not None:
            await self.attempt(lambda: queue.remove(entry))
            self.notify(f"{clean(queue.name_of(entry), 60)} does not wait any more.", markup=False)
            self.show(self.studio.snapshot)

    async def action_start_queue(self) -> None:
        """Work on what waits, also without the app."""
        job = await self.attempt(lambda: in_thread(queue.ensure_runner))
        if job is not None:
            self.notify(f"{job.name} works on the queue.", markup=False)
            self.studio.watcher.hurry()


def waiting() -> list[Path]:
    """What waits; nothing where the folder cannot be read or made."""
    try:
        return queue.waiting()
    except OSError:
        return []


def _waited(entry: Path) -> float | None:
    try:
        return max(0.0, time.time() - entry.stat().st_mtime)
    except OSError:
        return None
