"""What the chat screen keeps: the served conversation, and answers as they grow.

The talking itself (one history a side, slots, transcript) is ``serve.chat``; here a daemon thread reads
its pieces and posts them, at most four times a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from textual.content import Content
from textual.message import Message

from bc250studio.errors import BadInput, JobFailed, StudioError, clean
from bc250studio.jobs import JobFolder
from bc250studio.ui.numbers import number

if TYPE_CHECKING:
    from bc250studio.serve.chat import Chat

SIDES = ("base", "tuned")
PIECE_S = 0.25
STOPS = {
    "end": "ended by itself",
    "limit": "cut at the token limit",
    "cancelled": "cancelled",
    "format": "unreadable for the server",
}


@dataclass(frozen=True)
class Growing:
    """An answer so far."""

    text: str = ""
    thinking: str = ""


class Said(Message):
    """What the sides have said so far; ``answers`` of those that are finished; ``ended`` when all are."""

    def __init__(
        self,
        turn: int,
        growing: dict[str, Growing],
        answers: dict[str, Any],
        ended: bool = False,
        error: BaseException | None = None,
    ) -> None:
        super().__init__()
        self.turn, self.growing, self.answers, self.ended, self.error = turn, growing, answers, ended, error

    def can_replace(self, message: Message) -> bool:
        """A newer state of the same turn replaces one that still waits, but never the end."""
        return isinstance(message, Said) and message.turn == self.turn and not message.ended


@dataclass
class Conversation:
    """Owned by the event loop; its thread only posts :class:`Said`."""

    chat: Chat | None = None
    words: str = ""
    prompts: list[str] = field(default_factory=list)
    profile: str = ""
    as_trained: bool | None = None
    """The thinking switch its rows were trained with."""
    titles: dict[str, str] = field(default_factory=lambda: {side: side for side in SIDES})
    growing: dict[str, Growing] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    turn: int = 0
    asked: str = ""
    kept: str = ""
    """The last answer that was saved as a row, so that it is not saved twice."""
    lost: bool = True
    """No server to talk to: not yet, or not any more."""

    def connect(self, job: JobFolder) -> str:
        """Find the run's living server; returns a line that says what answers. Runs in a thread.

        Raises:
            BadInput: nothing is served.
            JobFailed: the server is gone.
        """
        from bc250studio.serve import server, stage_ask
        from bc250studio.serve.chat import Chat

        found = server.read(job)
        if found is None:
            raise BadInput("This run is not served; press e on the run to export and serve it.")
        if not found.alive:
            raise JobFailed("The server is gone; F5 starts it again.")
        if self.chat is not None:  # the server came back: the conversation goes on
            self.chat.talk = found.talk()
        else:
            self.profile = str(job.state().get("profile") or job.name)
            chat = Chat(found.talk(), job.path)
            try:
                resolved = job.profile()
            except BadInput:
                pass
            else:
                self.prompts = list(resolved.profile.ask.prompts)
                self.as_trained = stage_ask.thinking_of(resolved)
                chat.thinking, chat.system = self.as_trained, resolved.profile.data.system
            self.chat = chat
        self.titles = {"base": "base", "tuned": "tuned" if found.adapter is not None else "tuned (merged)"}
        self.words = f"{clean(found.backend_words, 60)} · {found.url} · context {found.n_ctx:,}"
        self.lost = False
        return self.words

    @property
    def sides(self) -> tuple[str, ...]:
        """Who can answer."""
        return self.chat.sides if self.chat is not None else SIDES

    @property
    def busy(self) -> bool:
        """Whether an answer is on its way."""
        return bool(self.growing)

    def messages(self, side: str) -> list[dict[str, Any]]:
        """The history of a side."""
        return self.chat.histories[side] if self.chat is not None else []

    def send(self, text: str, sides: Sequence[str], post: Callable[[Message], Any]) -> None:
        """Ask; answers come as messages."""
        chosen = [side for side in sides if side in self.sides] or list(self.sides)
        self.turn += 1
        self.asked = text
        self.growing = {side: Growing() for side in chosen}
        for side in chosen:
            self.answers.pop(side, None)
        self.kept = ""
        work = (self.turn, self.chat, text, chosen, post)
        threading.Thread(target=_talk, args=work, name="chat", daemon=True).start()

    def take(self, said: Said) -> bool:
        """Keep what was said; False when it belongs to an earlier turn."""
        if said.turn != self.turn:
            return False
        self.answers.update(said.answers)
        self.growing = {} if said.ended else {s: g for s, g in said.growing.items() if s not in said.answers}
        if type(said.error).__name__ == "ServerGone":
            self.lost = True
        return True

    def cancel(self) -> None:
        """Stop the answer; what was said stays."""
        if self.chat is not None:
            self.chat.cancel()

    def forget(self) -> None:
        """A new chat."""
        self.cancel()
        self.turn += 1
        self.growing, self.answers = {}, {}
        if self.chat is not None:
            self.chat.reset()

    def last(self, side: str) -> str:
        """The last finished answer of a side; empty when there is none."""
        history = self.messages(side)
        return str(history[-1]["content"]) if history and history[-1]["role"] == "assistant" else ""

    def status(self) -> str:
        """Where we are and how the next message is asked; rates stand under the answers."""
        if self.busy:
            return "answering ... (esc stops)"
        parts = [self.words]
        if self.chat is not None:
            parts += ["system message"] if self.chat.system else []
            parts += [f"thinking {'on' if self.chat.thinking else 'off'}"] if self.chat.thinking is not None else []
            temperature = self.chat.sampling.temperature
            parts.append(f"temperature {temperature:g}" if temperature else "greedy")
        return " · ".join(parts)


def _talk(turn: int, chat: Chat, text: str, sides: Sequence[str], post: Callable[[Message], Any]) -> None:
    growing = {side: Growing() for side in sides}
    answers: dict[str, Any] = {}
    last, error = 0.0, None
    try:
        for side, piece in chat.say(text, sides):
            so_far = growing[side]
            growing[side] = Growing(so_far.text + clean(piece.text), so_far.thinking + clean(piece.thinking))
            if piece.answer is not None:
                answers[side] = piece.answer
            if time.monotonic() - last >= PIECE_S:
                last = time.monotonic()
                post(Said(turn, dict(growing), dict(answers)))
    except StudioError as problem:
        error = problem
    except Exception as problem:
        error = JobFailed(f"The answer broke off: {type(problem).__name__}: {problem}")
    post(Said(turn, growing, answers, ended=True, error=error))


def transcript(chat: Conversation, side: str) -> Any:
    """What was said on a side, with the question that waits, and the rate and stop reason of the last answer."""
    parts: list[Any] = []
    history = chat.messages(side)
    for message in history:
        text = clean(message["content"])
        parts.append((f"› {text}\n", "bold") if message["role"] == "user" else f"{text}\n\n")
    growing = chat.growing.get(side)
    if growing is not None:
        if not history or history[-1]["role"] != "user":  # the talking thread has not taken the question yet
            parts.append((f"› {clean(chat.asked)}\n", "bold"))
        if growing.thinking and not growing.text:
            parts.append((f"{growing.thinking[-400:]}\n", "italic dim"))
        if not growing.text and any(other.text for name, other in chat.growing.items() if name != side):
            parts.append(("its turn comes when the other side is done\n", "dim"))
        parts.append(f"{growing.text}▌")
    answer = chat.answers.get(side)
    if answer is not None and growing is None:
        how = STOPS.get(answer.stop, clean(answer.stop, 30))
        figures = f"{number(answer.tokens_per_s)} tok/s · {answer.tokens} tokens · " if answer.tokens else ""
        parts.append((f"{figures}{how}", "dim"))
    return Content.assemble(*parts)
