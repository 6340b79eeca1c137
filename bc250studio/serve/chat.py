"""A chat with base and tuned side by side: one history a side, streamed together, kept as a transcript.

One server answers both; the adapter's scale goes with each request (0 is the base) and each side has its own
slot, so neither throws away the other's cache. A cancelled answer closes its connection, which frees the slot.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bc250studio import paths, telemetry
from bc250studio.errors import BadInput, StudioError, clean, nearest
from bc250studio.serve.talk import Answer, Piece, Sampling, Talk

SIDES = ("base", "tuned")
SCALES = {"base": 0.0, "tuned": 1.0}
SLOT_OF = {"tuned": 0, "base": 1}
"""llama-server batches only requests of one scale, lowest slot first: the tuned answer does not wait for the base's."""
DEFAULT_MAX_TOKENS = 512
LOWEST = {"temperature": 0.0, "top_p": 0.0, "top_k": 0, "min_p": 0.0, "repeat_penalty": 0.0, "seed": 0}
"""The sampling values that can be set, with the smallest each takes."""


@dataclass
class _Turn:
    """One question on its way: a later one, or a new chat, has its own histories and its own cancellation."""

    histories: dict[str, list[dict[str, Any]]]
    cancelled: threading.Event = field(default_factory=threading.Event)
    pieces: queue.Queue[tuple[str, Piece | StudioError | None]] = field(default_factory=queue.Queue)


@dataclass
class Chat:
    """One conversation. ``system``, ``thinking``, ``sampling`` and ``max_tokens`` may change between turns."""

    talk: Talk
    folder: Path
    system: str | None = None
    thinking: bool | None = None
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = DEFAULT_MAX_TOKENS
    histories: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {side: [] for side in SIDES})
    thoughts: dict[str, str] = field(default_factory=dict)
    _began: str = field(default_factory=lambda: time.strftime("%Y%m%d-%H%M%S"))
    _cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def sides(self) -> tuple[str, ...]:
        """``base`` and ``tuned``, or only ``tuned`` when the server has no adapter."""
        return SIDES if self.talk.has_adapter else ("tuned",)

    @property
    def transcript(self) -> Path:
        """Where this conversation is kept, one line an answer."""
        return self.folder / "transcripts" / f"{self._began}.jsonl"

    def say(self, text: str, sides: Sequence[str] | None = None) -> Iterator[tuple[str, Piece]]:
        """Send ``text`` to the sides at the same time; pieces come as they arrive, the last of a side has ``answer``.

        What was answered joins the histories and the transcript. When a side fails its question is taken back.

        Raises:
            ServerGone: the server died (after the other side's pieces were given out).
            BadInput: the server refused the request.
        """
        chosen = tuple(sides or self.sides)
        turn = _Turn({side: self.histories[side] for side in chosen})
        self._cancelled = turn.cancelled
        pieces = turn.pieces
        for side in chosen:
            turn.histories[side].append({"role": "user", "content": text})
            threading.Thread(target=self._stream, args=(side, turn), daemon=True, name=f"chat-{side}").start()
        failure: StudioError | None = None
        open_sides = set(chosen)
        try:
            while open_sides:
                side, piece = pieces.get()
                if isinstance(piece, Piece):
                    if piece.answer is not None:
                        self._keep(turn.histories[side], side, text, piece.answer)
                    yield side, piece
                    continue
                open_sides.discard(side)
                if piece is not None:
                    failure = piece
                    turn.histories[side].pop()
        finally:
            turn.cancelled.set()
        if failure is not None:
            raise failure

    def cancel(self) -> None:
        """Stop the answers that are on their way; what was said so far stays, marked ``cancelled``."""
        self._cancelled.set()

    def put(self, name: str, value: str) -> None:
        """Change a sampling value or ``max_tokens`` from what was typed; empty leaves it to the server.

        Raises:
            BadInput: there is no such value, or it is no number it can take.
        """
        if name != "max_tokens" and name not in LOWEST:
            raise BadInput(f"There is no sampling value {clean(name, 40)!r}.{nearest(name, [*LOWEST, 'max_tokens'])}")
        whole, lowest = name in ("top_k", "seed", "max_tokens"), LOWEST.get(name, 1)
        number: float | int | None = None
        if value.strip():
            try:
                number = int(value) if whole else float(value)
            except ValueError:
                number = float("nan")
            if not lowest <= number < float("inf"):
                kind = "whole number" if whole else "number"
                raise BadInput(f"{name} takes a {kind} from {lowest:g} on, not {clean(value, 40)!r}.")
        if name == "max_tokens":
            self.max_tokens = int(number) if number is not None else DEFAULT_MAX_TOKENS
        else:
            unset = 0.0 if name == "temperature" else None
            changes: dict[str, Any] = {name: unset if number is None else number}
            self.sampling = replace(self.sampling, **changes)

    def reset(self) -> None:
        """Forget the conversation; the next one has a transcript of its own."""
        self.histories = {side: [] for side in SIDES}  # an answer still on its way belongs to the old ones
        self.thoughts.clear()
        self._began = time.strftime("%Y%m%d-%H%M%S")

    def row(self, better: str | None = None) -> dict[str, Any]:
        """The tuned side's conversation as a dataset row; ``better`` replaces its last answer.

        A thought that came with the last answer goes along, so that a model that thinks is not taught not to.
        """
        history = [dict(message) for message in self.histories["tuned"]]
        if history and better is not None:
            history[-1] = {"role": "assistant", "content": better}
        elif history and self.thoughts.get("tuned"):
            history[-1]["reasoning_content"] = self.thoughts["tuned"]
        if self.system is not None:
            history.insert(0, {"role": "system", "content": self.system})
        return {"messages": history}

    def _stream(self, side: str, turn: _Turn) -> None:
        messages, pieces = list(turn.histories[side]), turn.pieces
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        said, thought = "", ""
        stream = self.talk.stream(
            messages,
            SCALES[side],
            max_tokens=self.max_tokens,
            sampling=self.sampling,
            thinking=self.thinking,
            slot=SLOT_OF[side] if self.talk.has_adapter else None,
        )
        try:
            for piece in stream:
                said, thought = said + piece.text, thought + piece.thinking
                pieces.put((side, piece))
                if turn.cancelled.is_set() and piece.answer is None:
                    stream.close()  # type: ignore[attr-defined]
                    pieces.put((side, Piece(answer=Answer(said, thought, stop="cancelled"))))
                    break
        except StudioError as error:
            pieces.put((side, error))
            return
        pieces.put((side, None))

    def _keep(self, history: list[dict[str, Any]], side: str, question: str, answer: Answer) -> None:
        history.append({"role": "assistant", "content": answer.text})
        self.thoughts[side] = answer.thinking
        paths.private_dir(self.transcript.parent)
        writer = telemetry.Writer(self.transcript)
        try:
            writer.write(
                {
                    "side": side,
                    "system": self.system,
                    "thinking": self.thinking,
                    "sampling": self.sampling.as_dict(),
                    "question": question,
                    "answer": answer.as_dict(),
                }
            )
        finally:
            writer.close()
