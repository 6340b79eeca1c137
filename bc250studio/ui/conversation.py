"""What the chat screen keeps: the served conversation, answers as they grow, and thumbs as dataset rows.

The talking itself (one history a side, slots, transcript) is ``serve.chat``; here a daemon thread reads
its pieces and posts them, at most four times a second.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.message import Message

from bc250studio import paths
from bc250studio.errors import BadInput, JobFailed, StudioError, clean
from bc250studio.jobs import JobFolder
from bc250studio.ui.numbers import number

if TYPE_CHECKING:
    from bc250studio.serve.chat import Chat

SIDES = ("base", "tuned")
PIECE_S = 0.25


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
    titles: dict[str, str] = field(default_factory=lambda: {side: side for side in SIDES})
    growing: dict[str, Growing] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    turn: int = 0
    asked: str = ""

    def connect(self, job: JobFolder) -> str:
        """Find the run's living server; returns a line that says what answers. Runs in a thread.

        Raises:
            BadInput: nothing is served.
            JobFailed: the server is gone.
        """
        from bc250studio.serve import server
        from bc250studio.serve.chat import Chat

        found = server.read(job)
        if found is None:
            raise BadInput("This run is not served; press e on the run to export and serve it.")
        if not found.alive:
            raise JobFailed("The server is gone; F5 starts it again.")
        chat = Chat(found.talk(), job.path)
        try:
            profile = job.profile().profile
        except BadInput:
            pass
        else:
            self.prompts = list(profile.ask.prompts)
            chat.thinking, chat.system = profile.data.thinking, profile.data.system
        self.titles = {"base": "base", "tuned": "tuned" if found.adapter is not None else "tuned (merged)"}
        self.words = f"{clean(found.backend_words, 60)} · {found.url} · context {found.n_ctx:,}"
        self.chat = chat
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
        work = (self.turn, self.chat, text, chosen, post)
        threading.Thread(target=_talk, args=work, name="chat", daemon=True).start()

    def take(self, said: Said) -> bool:
        """Keep what was said; False when it belongs to an earlier turn."""
        if said.turn != self.turn:
            return False
        self.answers.update(said.answers)
        self.growing = {} if said.ended else {s: g for s, g in said.growing.items() if s not in said.answers}
        if type(said.error).__name__ == "ServerGone":
            self.chat = None
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

    def row(self, answer: str | None = None) -> dict[str, Any]:
        """The tuned chat as a dataset row; ``answer`` replaces the last one."""
        history = [{"role": message["role"], "content": message["content"]} for message in self.messages("tuned")]
        if answer is not None and history:
            history[-1] = {"role": "assistant", "content": answer}
        if self.chat is not None and self.chat.system:
            history.insert(0, {"role": "system", "content": self.chat.system})
        return {"messages": history}

    def rates(self) -> str:
        """Where we are, with tokens a second of the last answers."""
        if self.busy:
            return "answering ... (esc stops)"
        parts = [f"{side} {number(answer.tokens_per_s)} tok/s" for side, answer in self.answers.items()]
        return " · ".join([self.words, *parts])


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


def save_row(profile: str, row: dict[str, Any]) -> Path:
    """Append to the profile's own collection; one line, one write, mode 0600."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", profile).strip("-.") or "chat"
    file = paths.private_dir(paths.data_dir() / "collected") / f"{name}.jsonl"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
    finally:
        os.close(descriptor)
    return file
