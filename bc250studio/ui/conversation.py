"""What is said in a chat: one history a side, streamed by daemon threads, thumbs kept as dataset rows."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from textual.message import Message

from bc250studio import paths
from bc250studio.errors import BadInput, JobFailed, StudioError, clean
from bc250studio.jobs import JobFolder
from bc250studio.ui.numbers import number

SIDES = ("base", "tuned")
SCALES = {"base": 0.0, "tuned": 1.0}
PIECE_S = 0.25
MAX_TOKENS = 512


@dataclass(frozen=True)
class Growing:
    """An answer so far."""

    text: str = ""
    thinking: str = ""


class Said(Message):
    """A side said more, ended (``answer``), or failed (``error``)."""

    def __init__(
        self, turn: int, side: str, so_far: Growing, answer: Any = None, error: BaseException | None = None
    ) -> None:
        super().__init__()
        self.turn, self.side, self.so_far, self.answer, self.error = turn, side, so_far, answer, error

    def can_replace(self, message: Message) -> bool:
        """A longer piece of the same side replaces a shorter one that still waits."""
        return (
            isinstance(message, Said)
            and (message.turn, message.side) == (self.turn, self.side)
            and message.answer is None
            and message.error is None
        )


@dataclass
class Conversation:
    """Owned by the event loop; its threads only post :class:`Said`."""

    talk: Any = None
    gone: bool = False
    words: str = ""
    prompts: list[str] = field(default_factory=list)
    titles: dict[str, str] = field(default_factory=lambda: {side: side for side in SIDES})
    messages: dict[str, list[dict[str, str]]] = field(default_factory=lambda: {side: [] for side in SIDES})
    growing: dict[str, Growing] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    turn: int = 0
    thinking: bool | None = None
    system: str | None = None
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _asked: str = ""

    def connect(self, job: JobFolder) -> str:
        """Find the run's living server; returns a line that says what answers. Runs in a thread.

        Raises:
            BadInput: nothing is served.
            JobFailed: the server is gone.
        """
        from bc250studio.serve import server

        found = server.read(job)
        if found is None:
            raise BadInput("This run is not served; press e on the run to export and serve it.")
        if not found.alive:
            self.gone = True
            raise JobFailed("The server is gone (F5 starts it again).")
        talk = found.talk()
        try:
            resolved = job.profile()
        except BadInput:
            resolved = None
        if resolved is not None:
            self.prompts = list(resolved.profile.ask.prompts)
            self.thinking, self.system = resolved.profile.data.thinking, resolved.profile.data.system
        adapter = found.adapter is not None
        talk.has_adapter = adapter
        self.titles = {"base": "base" if adapter else "merged model", "tuned": "tuned" if adapter else "merged model"}
        self.talk, self.gone = talk, False
        self.words = f"{clean(found.backend_words, 60)} · {found.url} · context {found.n_ctx:,}"
        return self.words

    @property
    def busy(self) -> bool:
        """Whether an answer is on its way."""
        return bool(self.growing)

    def send(self, text: str, sides: Sequence[str], post: Callable[[Message], Any]) -> None:
        """Ask every side; answers come as messages."""
        self.turn += 1
        self._asked = text
        self._cancelled = threading.Event()
        for side in sides:
            self.messages[side].append({"role": "user", "content": text})
            self.growing[side] = Growing()
            self.answers.pop(side, None)
            history = list(self.messages[side])
            if self.system:
                history.insert(0, {"role": "system", "content": self.system})
            work = (self.turn, side, history, self._cancelled, post)
            threading.Thread(target=self._stream, args=work, name=f"chat-{side}", daemon=True).start()

    def _stream(
        self, turn: int, side: str, history: list[dict[str, str]], cancelled: threading.Event,
        post: Callable[[Message], Any],
    ) -> None:  # fmt: skip
        so_far, last = Growing(), 0.0
        try:
            options = {"max_tokens": MAX_TOKENS, "thinking": self.thinking}
            pieces = self.talk.stream(history, SCALES[side], slot=SIDES.index(side), **options)
            for piece in pieces:
                if piece.answer is not None:
                    post(Said(turn, side, so_far, answer=piece.answer))
                    return
                so_far = Growing(so_far.text + clean(piece.text), so_far.thinking + clean(piece.thinking))
                if cancelled.is_set():
                    pieces.close()
                    break
                if time.monotonic() - last >= PIECE_S:
                    last = time.monotonic()
                    post(Said(turn, side, so_far))
            post(Said(turn, side, so_far, answer=_cancelled_answer(so_far.text)))
        except StudioError as error:
            post(Said(turn, side, so_far, error=error))
        except Exception as error:
            post(Said(turn, side, so_far, error=JobFailed(f"The answer broke off: {type(error).__name__}: {error}")))

    def take(self, said: Said) -> bool:
        """Keep what was said; False when it belongs to an earlier turn."""
        if said.turn != self.turn or said.side not in self.growing:
            return False
        self.growing[said.side] = said.so_far
        if said.error is not None:
            del self.growing[said.side]
            self.messages[said.side].pop()
            self.gone = type(said.error).__name__ == "ServerGone"
            if self.gone:
                self.talk = None
        elif said.answer is not None:
            del self.growing[said.side]
            self.answers[said.side] = said.answer
            self.messages[said.side].append({"role": "assistant", "content": said.answer.text})
        return True

    def give_back(self) -> str:
        """The message that failed, for the input."""
        return self._asked

    def cancel(self) -> None:
        """Stop streaming; what was said stays."""
        self._cancelled.set()

    def forget(self) -> None:
        """A new chat."""
        self.cancel()
        self.turn += 1
        self.growing.clear()
        self.answers.clear()
        for history in self.messages.values():
            history.clear()

    def last(self, side: str) -> str:
        """The last finished answer of a side; empty when there is none."""
        history = self.messages[side]
        return history[-1]["content"] if history and history[-1]["role"] == "assistant" else ""

    def row(self, answer: str | None = None) -> dict[str, Any]:
        """The tuned chat as a dataset row; ``answer`` replaces the last one."""
        history = [dict(message) for message in self.messages["tuned"]]
        if answer is not None and history:
            history[-1] = {"role": "assistant", "content": answer}
        if self.system:
            history.insert(0, {"role": "system", "content": self.system})
        return {"messages": history}

    def rates(self) -> str:
        """Where we are, with tokens a second of the last answers."""
        if self.busy:
            return "answering ... (esc stops)"
        parts = [f"{side} {number(answer.tokens_per_s)} tok/s" for side, answer in self.answers.items()]
        return " · ".join([self.words, *parts])


def _cancelled_answer(text: str) -> Any:
    from bc250studio.serve.talk import Answer

    return Answer(text=text, stop="cancelled")


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
