"""Chat with base and tuned model side by side, from one server: the adapter's scale goes with each request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input

from bc250studio.errors import StudioError, clean
from bc250studio.jobs import JobFolder
from bc250studio.ui.background import in_thread
from bc250studio.ui.conversation import SIDES, Conversation, Said, save_row
from bc250studio.ui.numbers import number
from bc250studio.ui.screens.base import StudioScreen
from bc250studio.ui.screens.confirm import AskText
from bc250studio.ui.watch import Snapshot
from bc250studio.ui.widgets.line import Line

VIEWS = (("base", "tuned"), ("tuned",), ("base",))
STOPS = {
    "end": "ended by itself",
    "limit": "cut at the token limit",
    "cancelled": "cancelled",
    "format": "unreadable for the server",
}


class ChatScreen(StudioScreen[None]):
    """Type and press enter. Function keys for everything else, because letters are typed."""

    place = "Chat"
    changes_things = frozenset({"good", "better", "start_server"})
    BINDINGS = [
        Binding("f2", "view", "View", id="chat.view", tooltip="Both side by side, tuned only, base only"),
        Binding("f3", "back", "Back", id="chat.back", tooltip="Return; the server stays"),
        Binding("f4", "fresh", "New chat", id="chat.fresh", tooltip="Forget what was said"),
        Binding(
            "f5",
            "start_server",
            "Server",
            show=False,
            id="chat.server",
            tooltip="Start the server again when it is gone",
        ),
        Binding("f7", "prompt", "Prompts", id="chat.prompts", tooltip="The profile's questions, one after the other"),
        Binding("f8", "good", "Good", id="chat.good", tooltip="Save this answer as a row for a second round"),
        Binding(
            "f9",
            "better",
            "Better",
            id="chat.better",
            tooltip="Write the answer it should have given, save that as a row",
        ),
        Binding("escape", "cancel", "Cancel", show=False, id="chat.cancel", tooltip="Stop the answer; else go back"),
    ]
    DEFAULT_CSS = """
    ChatScreen #columns { height: 1fr; }
    ChatScreen .side { width: 1fr; height: 1fr; padding: 0 1; }
    ChatScreen #base-box { border-right: solid $panel; }
    ChatScreen .side Line { height: auto; }
    ChatScreen .title { text-style: bold; color: $text-muted; }
    ChatScreen #said { height: 1; padding: 0 1; }
    ChatScreen Input { height: 1; border: none; padding: 0 1; background: $surface; }
    """

    def __init__(self, job: JobFolder) -> None:
        super().__init__()
        self.job = job
        self.place = f"Chat ▸ {clean(job.name, 40)}"
        self.chat = Conversation()
        self._view = 0
        self._prompts: list[str] = []
        self._prompt = 0

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

    async def on_mount(self) -> None:  # type: ignore[override]
        """Find the server in a thread."""
        self.query_one("#message", Input).focus()
        await self._connect()

    def on_screen_resume(self) -> None:
        """Follow this run."""
        self.studio.watcher.follow(self.job)
        super().on_screen_resume()

    async def _connect(self) -> None:
        said = self.query_one("#said", Line)
        try:
            words = await in_thread(self.chat.connect, self.job)
        except (StudioError, OSError) as error:
            said.show(Content.styled(clean(error, 300), "bold $error"))
            return
        said.show(words)
        self._prompts = self.chat.prompts
        for side in SIDES:
            self.query_one(f"#{side}-title", Line).show(self.chat.titles[side])
        if self.chat.sides != SIDES:
            self._view = VIEWS.index(self.chat.sides)
            self._show_sides()

    def show(self, snapshot: Snapshot) -> None:
        """Nothing here comes from job files."""

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        """Send to every side that is in view."""
        text = event.value.strip()
        if not text or self.chat.busy:
            return
        if self.chat.chat is None:
            await self._connect()
            if self.chat.chat is None:
                return
        event.input.value = ""
        self.chat.send(text, VIEWS[self._view], self.post_message)
        self._draw()

    def on_said(self, message: Said) -> None:
        """More, an end, or an error."""
        if self.chat.take(message):
            if message.error is not None:
                self.complain(message.error)
                self.query_one("#message", Input).value = self.chat.asked
            self._draw()

    def _draw(self) -> None:
        for side in SIDES:
            scroll = self.query_one(f"#{side}-scroll", VerticalScroll)
            at_end = scroll.scroll_y >= scroll.max_scroll_y - 1
            self.query_one(f"#{side}-text", Line).show(_transcript(self.chat, side))
            if at_end:  # whoever scrolled up to read stays there
                self.call_after_refresh(scroll.scroll_end, animate=False)
        self.query_one("#said", Line).show(self.chat.rates())

    # Keys

    def why_not(self, action: str) -> str | None:
        """Reasons."""
        if action in ("good", "better") and not self.chat.last("tuned"):
            return "The tuned model has said nothing yet."
        if action == "view" and self.chat.sides != SIDES:
            return "A merged file has no base to compare with."
        if action == "prompt" and not self._prompts:
            return "This run's profile has no questions."
        if action == "start_server" and self.chat.chat is not None:
            return "The server runs."
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

    def action_prompt(self) -> None:
        """Put the next question of the profile into the input."""
        entry = self.query_one("#message", Input)
        entry.value = self._prompts[self._prompt % len(self._prompts)]
        entry.cursor_position = len(entry.value)
        self._prompt += 1

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

        self.app.push_screen(AskText("What should it have said?", self.chat.last("tuned")), written)

    async def _save(self, answer: str | None) -> None:
        profile = str(self.studio.snapshot.run.state.get("profile") or "") if self.studio.snapshot.run else ""
        row = self.chat.row(answer)
        file = await self.attempt(lambda: in_thread(save_row, profile or self.job.name, row))
        if file is not None:
            self.notify(f"Saved as a row of {file}", markup=False)

    async def action_start_server(self) -> None:
        """The serve stage again."""
        from bc250studio import pipeline

        await self.attempt(lambda: in_thread(pipeline.go_on, self.job, ("serve",)))
        self.notify("Starting the server; send your message when it is there.")
        self.chat.chat = None


def _transcript(chat: Conversation, side: str) -> Any:
    parts: list[Any] = []
    for message in chat.messages(side):
        if message["role"] == "user":
            parts.append((f"› {message['content']}\n", "bold"))
        else:
            parts.append(f"{message['content']}\n\n")
    growing = chat.growing.get(side)
    pending = growing is not None and not (parts and chat.messages(side)[-1]["role"] == "user")
    if pending:
        parts.append((f"› {clean(chat.asked)}\n", "bold"))
    if growing is not None:
        if growing.thinking and not growing.text:
            parts.append((f"{growing.thinking[-400:]}\n", "italic dim"))
        parts.append(f"{growing.text}▌")
    answer = chat.answers.get(side)
    if answer is not None and growing is None:
        how = STOPS.get(answer.stop, answer.stop)
        parts.append((f"{number(answer.tokens_per_s)} tok/s · {answer.tokens} tokens · {how}", "dim"))
    return Content.assemble(*parts)


SCREEN = ChatScreen
