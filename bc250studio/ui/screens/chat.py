"""Chat with base and tuned model side by side, from one server: the adapter's scale goes with each request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input

from bc250studio import pipeline
from bc250studio.errors import StudioError, clean
from bc250studio.jobs import JobFolder, standing
from bc250studio.ui.background import in_thread
from bc250studio.ui.conversation import SIDES, Conversation, Said, transcript
from bc250studio.ui.screens.base import JobScreen
from bc250studio.ui.screens.confirm import AskLong
from bc250studio.ui.stage_words import server_alive
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets.line import Line

VIEWS = (("base", "tuned"), ("tuned",), ("base",))
POLL_S = 0.3


class ChatScreen(JobScreen[None]):
    """Type and press enter. Function keys for everything else, because letters are typed."""

    place = "Chat"
    narrow_footer = True
    changes_things = frozenset({"good", "better", "start_server", "second_round"})
    BINDINGS = [
        Binding("f2", "view", "View", id="chat.view", tooltip="Both side by side, tuned only, base only"),
        Binding("f3", "back", "Back", id="chat.back", tooltip="Return; the server stays"),
        Binding("f4", "fresh", "New", id="chat.fresh", tooltip="Forget what was said; the transcript stays"),
        Binding(
            "f5",
            "start_server",
            "Server",
            show=False,
            id="chat.server",
            tooltip="Start the server again when it is gone",
        ),
        Binding("f6", "settings", "Settings", id="chat.settings", tooltip="System message, thinking, sampling, length"),
        Binding(
            "f7", "prompts", "Questions", id="chat.prompts", tooltip="Pick one of the profile's or held-out questions"
        ),
        Binding("f8", "good", "Good", id="chat.good", tooltip="Save this answer as a row for a second round"),
        Binding(
            "f9",
            "better",
            "Better",
            id="chat.better",
            tooltip="Write the answer it should have given, save that as a row",
        ),
        Binding(
            "f10",
            "second_round",
            "Round 2",
            id="chat.round",
            tooltip="Train on the saved rows, starting from this adapter",
        ),
        Binding("escape", "cancel", "Cancel", show=False, id="chat.cancel", tooltip="Stop the answer; else go back"),
    ]
    DEFAULT_CSS = """
    ChatScreen #columns { height: 1fr; }
    ChatScreen .side { width: 1fr; height: 1fr; padding: 0 1; }
    ChatScreen #base-box { border-right: solid $panel; }
    ChatScreen .side Line { height: auto; }
    ChatScreen .title { text-style: bold; color: $text-muted; }
    ChatScreen #said { height: 1; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    ChatScreen Input { height: 1; border: none; padding: 0 1; background: $surface; }
    """

    def __init__(self, job: JobFolder) -> None:
        super().__init__()
        self.job = job
        self.place = f"Chat ▸ {clean(job.name, 40)}"
        self.chat = Conversation()
        self._view = 0

    def body(self) -> Iterable[Widget]:
        """Two columns, a status line, the input."""
        with Horizontal(id="columns"):
            for side in SIDES:
                with Vertical(classes="side", id=f"{side}-box"):
                    yield Line(side, classes="title", id=f"{side}-title")
                    with VerticalScroll(id=f"{side}-scroll", can_focus=False):
                        yield Line(id=f"{side}-text")
        yield Line("looking for the server ...", id="said")
        yield Input(placeholder="your message, enter sends it", id="message", compact=True)

    def on_mount(self) -> None:
        """Find the server in a thread."""
        self.query_one("#message", Input).focus()
        self.run_worker(self._connect(), exclusive=True, group="server", exit_on_error=False)

    def on_unmount(self) -> None:
        """An answer that nobody sees any more is stopped: its slot is free for the next."""
        self.chat.cancel()

    async def _connect(self) -> None:
        try:
            await in_thread(self.chat.connect, self.job)
        except (StudioError, OSError) as error:
            self._say(Content.styled(clean(error, 300), "bold $error"))
            return
        self._say(self.chat.status())
        for side in SIDES:
            self.query_one(f"#{side}-title", Line).show(self.chat.titles[side])
        if self.chat.sides != SIDES:
            self._view = VIEWS.index(self.chat.sides)
            self._show_sides()
        self.refresh_reasons()

    def _say(self, words: Any) -> None:
        said = self.query_one_optional("#said", Line)
        if said is not None:
            said.show(words)

    def show(self, snapshot: Snapshot) -> None:
        """Only whether the server still lives comes from job files."""
        if self.run is not None and not self.chat.lost and not self.chat.busy and not server_alive(self.run.server):
            self.chat.lost = True
            self._say(Content.styled("The server is gone; F5 starts it again.", "bold $error"))

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        """Send to every side that is in view."""
        text = event.value.strip()
        if not text or self.chat.busy:
            return
        if self.chat.lost:
            await self._connect()
            if self.chat.lost:
                return
        event.input.value = ""
        self.chat.send(text, VIEWS[self._view], self.post_message)
        self._draw()

    def on_said(self, message: Said) -> None:
        """More, an end, or an error."""
        if self.chat.take(message):
            self._draw()
            if message.error is not None:
                self.complain(message.error)
                entry = self.query_one("#message", Input)
                entry.value = entry.value or self.chat.asked
                if self.chat.lost:
                    self._say(Content.styled("The server is gone; F5 starts it again.", "bold $error"))
            self.refresh_reasons()

    def _draw(self) -> None:
        for side in SIDES:
            scroll = self.query_one(f"#{side}-scroll", VerticalScroll)
            at_end = scroll.scroll_y >= scroll.max_scroll_y - 1
            self.query_one(f"#{side}-text", Line).show(transcript(self.chat, side))
            if at_end:  # whoever scrolled up to read stays there
                self.call_after_refresh(scroll.scroll_end, animate=False)
        self._say(self.chat.status())

    # Keys

    def why_not(self, action: str) -> str | None:
        """Reasons."""
        if action in ("good", "better"):
            if self.chat.busy:
                return "The answer is still on its way."
            if not self.chat.last("tuned"):
                return "The tuned model has said nothing yet."
            if action == "good" and self.chat.kept == self.chat.last("tuned"):
                return "This answer is saved already."
        if action == "second_round" and self.studio.peeking is not None:
            return "This run is still being trained; finish it before a second round."
        if action == "view" and self.chat.sides != SIDES:
            return "A merged file has no base to compare with."
        if action == "settings" and self.chat.chat is None:
            return "There is no server yet; F5 starts it."
        if action == "start_server":
            if not self.chat.lost:
                return "The server runs."
            if self.run is not None and self.run.standing.live and self.run.state.get("stage") == "train":
                return "The run trains now; its server starts when that is done."
        return None

    def action_view(self) -> None:
        """Both, tuned, base."""
        self._view = (self._view + 1) % len(VIEWS)
        self._show_sides()

    def _show_sides(self) -> None:
        for side in SIDES:
            self.query_one(f"#{side}-box").display = side in VIEWS[self._view]

    def action_fresh(self) -> None:
        """Forget."""
        self.chat.forget()
        self._draw()
        self.refresh_reasons()

    def action_settings(self) -> None:
        """A dialog; its values hold from the next message on."""
        from bc250studio.ui.screens.chat_settings import ChatSettings

        if self.chat.chat is not None:
            settings = ChatSettings(self.chat.chat, self.chat.as_trained)
            self.app.push_screen(settings, lambda _: self._say(self.chat.status()))

    def action_prompts(self) -> None:
        """Pick a question into the input."""
        from bc250studio.ui.screens.prompts import Prompts

        def picked(text: str | None) -> None:
            if text:
                entry = self.query_one("#message", Input)
                entry.value = text
                entry.cursor_position = len(entry.value)
                entry.focus()

        self.app.push_screen(Prompts(self.job, self.chat.prompts), picked)

    def action_cancel(self) -> None:
        """Stop the answer; when there is none, go back."""
        if self.chat.busy:
            self.chat.cancel()
        else:
            self.action_back()

    async def action_good(self) -> None:
        """Keep this answer for a second round."""
        await self._save(None)

    def action_better(self) -> None:
        """Keep a better answer than it gave."""

        async def written(text: str | None) -> None:
            if text and text.strip():
                await self._save(text.strip())

        self.app.push_screen(AskLong("What should it have said?", self.chat.last("tuned")), written)

    async def _save(self, better: str | None) -> None:
        from bc250studio.serve import collected

        name, chat = self.chat.profile, self.chat.chat
        if chat is None:
            return
        row = chat.row(better)
        file = await self.attempt(lambda: in_thread(collected.save, name, row))
        if file is not None:
            self.chat.kept = self.chat.last("tuned")
            count = await in_thread(collected.count, name)
            self.notify(f"Saved as row {count} of {file}. F10 trains on the saved rows.", markup=False)
            self.refresh_reasons()

    async def action_second_round(self) -> None:
        """The run's recipe from its last adapter on, over the saved rows; the review shows it before it starts."""
        from bc250studio.ui import second_round

        draft = await self.attempt(lambda: in_thread(second_round.draft_of, self.job))
        if draft is not None:
            self.studio.go("review", draft)

    async def action_start_server(self) -> None:
        """The serve stage again, and on with the chat when it is there."""
        self._say("starting the server ...")
        self.run_worker(self._restart(), exclusive=True, group="server", exit_on_error=False)

    async def _restart(self) -> None:
        try:
            if not (await in_thread(standing, self.job)).live:
                await in_thread(pipeline.go_on, self.job, ("serve",))
            while (now := await in_thread(standing, self.job)).live:
                self._say(f"starting the server: {clean(now.state.get('stage_text') or '', 100)}")
                await asyncio.sleep(POLL_S)
        except (StudioError, OSError) as error:
            self.complain(error)
            return
        self.studio.watcher.hurry()
        await self._connect()


SCREEN = ChatScreen
