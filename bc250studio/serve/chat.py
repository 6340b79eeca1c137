"""A chat with base and tuned side by side: one history a side, streamed together, kept as a transcript.

One server answers both; the adapter's scale goes with each request (0 is the base) and each side has its own
slot, so neither throws away the other's cache. A cancelled answer closes its connection, which frees the slot.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bc250studio import paths, telemetry
from bc250studio.errors import StudioError
from bc250studio.serve.talk import Answer, Piece, Sampling, Talk

SIDES = ("base", "tuned")
SCALES = {"base": 0.0, "tuned": 1.0}


@dataclass
class Chat:
    """One conversation. ``system``, ``thinking``, ``sampling`` and ``max_tokens`` may change between turns."""

    talk: Talk
    folder: Path
    system: str | None = None
    thinking: bool | None = None
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 512
    histories: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {side: [] for side in SIDES})
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
        self._cancelled.clear()
        pieces: queue.Queue[tuple[str, Piece | StudioError | None]] = queue.Queue()
        for side in chosen:
            self.histories[side].append({"role": "user", "content": text})
            threading.Thread(target=self._stream, args=(side, pieces), daemon=True, name=f"chat-{side}").start()
        failure: StudioError | None = None
        open_sides = set(chosen)
        try:
            while open_sides:
                side, piece = pieces.get()
                if isinstance(piece, Piece):
                    if piece.answer is not None:
                        self._keep(side, text, piece.answer)
                    yield side, piece
                    continue
                open_sides.discard(side)
                if piece is not None:
                    failure = piece
                    self.histories[side].pop()
        finally:
            self._cancelled.set()
        if failure is not None:
            raise failure

    def cancel(self) -> None:
        """Stop the answers that are on their way; what was said so far stays, marked ``cancelled``."""
        self._cancelled.set()

    def reset(self) -> None:
        """Forget the conversation; the next one has a transcript of its own."""
        for history in self.histories.values():
            history.clear()
        self._began = time.strftime("%Y%m%d-%H%M%S")

    def _stream(self, side: str, pieces: queue.Queue[tuple[str, Piece | StudioError | None]]) -> None:
        messages = list(self.histories[side])
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        said, thought = "", ""
        stream = self.talk.stream(
            messages,
            SCALES[side],
            max_tokens=self.max_tokens,
            sampling=self.sampling,
            thinking=self.thinking,
            slot=SIDES.index(side) if self.talk.has_adapter else None,
        )
        try:
            for piece in stream:
                said, thought = said + piece.text, thought + piece.thinking
                pieces.put((side, piece))
                if self._cancelled.is_set() and piece.answer is None:
                    stream.close()  # type: ignore[attr-defined]
                    pieces.put((side, Piece(answer=Answer(said, thought, stop="cancelled"))))
                    break
        except StudioError as error:
            pieces.put((side, error))
            return
        pieces.put((side, None))

    def _keep(self, side: str, question: str, answer: Answer) -> None:
        self.histories[side].append({"role": "assistant", "content": answer.text})
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
