"""What a run's events say, taken one after the other: evaluations, pauses, a stall, sample answers, rows it skipped.

Pure: records in, an immutable :class:`Told` out. A stall is over as soon as the run itself says anything, or makes a
step; a note that a user writes meanwhile is not a sign of life.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bc250studio.errors import clean
from bc250studio.ui.numbers import finite

OF_THE_RUN = frozenset({
    "phase", "stage", "evaluation", "checkpoint", "sample", "paused", "resumed", "stopped", "fallback", "error",
})  # fmt: skip
"""Kinds of event that only the run's own processes write while they move."""
EVENTS_KEPT = 400
SAMPLES_KEPT = 100


@dataclass(frozen=True)
class Pause:
    """``start`` and ``end`` in Unix seconds (None while it lasts); ``reason``: heat, memory, asked."""

    start: float
    end: float | None
    reason: str
    text: str
    temp_c: float | None = None


@dataclass(frozen=True)
class Sample:
    """What the model answered to a held-out question after ``step``."""

    step: int
    prompt: str
    answer: str


@dataclass(frozen=True)
class Stall:
    """Nothing has moved since ``since``; said at ``said`` (Unix seconds); ``text``: where, and the likely reason."""

    since: float
    said: float
    text: str


@dataclass(frozen=True)
class Told:
    """Everything the events have told so far."""

    events: tuple[Mapping[str, Any], ...] = ()
    evaluations: tuple[tuple[float, float], ...] = ()
    pauses: tuple[Pause, ...] = ()
    samples: tuple[Sample, ...] = ()
    stall: Stall | None = None
    blind: str = ""

    @property
    def pause(self) -> Pause | None:
        """The pause that lasts now."""
        return self.pauses[-1] if self.pauses and self.pauses[-1].end is None else None

    def paused_s(self, now: float) -> float:
        """Seconds of rest so far."""
        return sum(max(0.0, (now if p.end is None else p.end) - p.start) for p in self.pauses)


class Story:
    """Takes records in the order they were written."""

    def __init__(self) -> None:
        self._events: deque[Mapping[str, Any]] = deque(maxlen=EVENTS_KEPT)
        self._evaluations: dict[float, float] = {}
        self._pauses: list[Pause] = []
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_KEPT)
        self._stall: Stall | None = None
        self._blind = ""
        self._told: Told | None = Told()

    def take(self, record: Mapping[str, Any]) -> None:
        """One event; what is no sound record only stands in the list."""
        self._told = None
        self._events.append(record)
        kind, t = str(record.get("event")), finite(record.get("t"))
        if kind in OF_THE_RUN or "stall_s" in record:
            self._stall = None
        if kind == "evaluation":
            step, loss = finite(record.get("step")), finite(record.get("loss"))
            if step is not None and loss is not None:
                self._evaluations[step] = loss
        elif kind == "sample":
            self._sample(record)
        elif kind == "stall" and t is not None:
            text = clean(record.get("text") or "It makes no progress.", 400)
            self._stall = Stall(t - (finite(record.get("idle_s")) or 0.0), t, text)
        elif kind == "paused" and t is not None:
            self._end_pause(t)
            reason, text = clean(record.get("reason") or "", 20), clean(record.get("text") or "", 300)
            self._pauses.append(Pause(t, None, reason, text, finite(record.get("temp_c"))))
        elif kind in ("resumed", "stopped", "stage", "error") and t is not None:
            self._end_pause(t)
        if isinstance(record.get("blind"), bool):
            self._blind = clean(record.get("text") or "", 300) if record["blind"] and kind == "warning" else ""

    def _sample(self, record: Mapping[str, Any]) -> None:
        step, answer = finite(record.get("step")), record.get("answer")
        if step is not None and isinstance(answer, str):
            self._samples.append(Sample(int(step), clean(record.get("prompt") or ""), clean(answer)))

    def _end_pause(self, t: float) -> None:
        if self._pauses and self._pauses[-1].end is None:
            last = self._pauses[-1]
            self._pauses[-1] = Pause(last.start, max(last.start, t), last.reason, last.text, last.temp_c)

    def moved(self, t: object) -> None:
        """A step was made at ``t``: whatever had stalled goes on."""
        now = finite(t)
        if self._stall is not None and (now is None or now > self._stall.said):
            self._stall, self._told = None, None

    def told(self) -> Told:
        """What is known now; the same object as long as nothing was taken."""
        if self._told is None:
            self._told = Told(
                tuple(self._events),
                tuple(sorted(self._evaluations.items())),
                tuple(self._pauses),
                tuple(self._samples),
                self._stall,
                self._blind,
            )
        return self._told
