"""Rows to look at: what is learnt and what is masked, told apart by mark and colour; the longest, shortest, dropped.

A preview is collected while a file is checked, so looking costs no second reading.
"""

from __future__ import annotations

import heapq
import json
from dataclasses import asdict, dataclass
from typing import Any

from bc250studio.data.raw import Raw
from bc250studio.data.walk import Learnt, Tally
from bc250studio.errors import clean
from bc250studio.models.tokenizer import Tokenizer

_FIRST, _EXTREME, _DROPPED = 200, 5, 100
_LONGEST_TEXT = 20_000


@dataclass(frozen=True)
class Segment:
    """A stretch of the rendered row."""

    text: str
    learnt: bool


@dataclass(frozen=True)
class PreviewRow:
    """One row as training sees it (``verdict`` used or cut), or as it stands in the file (dropped).

    ``tokens`` of ``full_tokens`` are kept after cutting, ``labelled`` of them are learnt.
    """

    where: str
    verdict: str
    segments: list[Segment]
    tokens: int = 0
    labelled: int = 0
    full_tokens: int = 0
    reason: str = ""

    def title(self) -> str:
        """One line above the row."""
        if self.verdict == "dropped":
            return f"{self.where}: dropped, {self.reason}"
        cut = f" (cut from {self.full_tokens:,})" if self.verdict == "cut" else ""
        return f"{self.where}: {self.verdict}, {self.tokens:,} tokens{cut}, {self.labelled:,} learnt"

    def marked(self, begin: str = "⟦", end: str = "⟧") -> str:
        """The row as text, with marks around what is learnt."""
        return "".join(f"{begin}{s.text}{end}" if s.learnt else s.text for s in self.segments)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self)


class Preview:
    """Keeps rows while :func:`walk` goes by: the first ones, the longest and shortest, and the dropped."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self.first: list[PreviewRow] = []
        self.dropped: list[PreviewRow] = []
        self._long: list[tuple[int, int, PreviewRow]] = []
        self._short: list[tuple[int, int, PreviewRow]] = []
        self._count = 0

    @property
    def longest(self) -> list[PreviewRow]:
        """The longest rows, longest first."""
        return [row for *_, row in sorted(self._long, key=lambda entry: (-entry[0], entry[1]))]

    @property
    def shortest(self) -> list[PreviewRow]:
        """The shortest rows, shortest first."""
        return [row for *_, row in sorted(self._short, key=lambda entry: (-entry[0], entry[1]))]

    def watch(self, tally: Tally) -> None:
        """Hear of dropped rows."""
        tally.on_drop = self._drop

    def add(self, learnt: Learnt) -> None:
        """Look at one learnt example."""
        self._count += 1
        size = learnt.full_length
        row = None
        if len(self.first) < _FIRST:
            row = self._row(learnt)
            self.first.append(row)
        for heap, key in ((self._long, size), (self._short, -size)):
            if len(heap) < _EXTREME or key > heap[0][0]:
                row = row or self._row(learnt)
                push = heapq.heappush if len(heap) < _EXTREME else heapq.heapreplace
                push(heap, (key, self._count, row))  # type: ignore[arg-type]

    def _row(self, learnt: Learnt) -> PreviewRow:
        assert self._tokenizer is not None
        return PreviewRow(
            where=clean(learnt.raw.where, 120),
            verdict="cut" if learnt.full_length > len(learnt.ids) else "used",
            segments=segments(self._tokenizer, learnt.ids, learnt.labelled),
            tokens=len(learnt.ids),
            labelled=sum(learnt.labelled),
            full_tokens=learnt.full_length,
        )

    def _drop(self, raw: Raw, reason: str, detail: str) -> None:
        if len(self.dropped) < _DROPPED:
            value = raw.value
            text = (
                value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) if value is not None else ""
            )
            why = f"{reason} ({clean(detail, 160)})" if detail else reason
            shown = [Segment(clean(text, 2000), False)] if text else []
            self.dropped.append(PreviewRow(clean(raw.where, 120), "dropped", shown, reason=why))


def segments(tokenizer: Tokenizer, ids: list[int], labelled: list[bool]) -> list[Segment]:
    """The row read back from its ids, so that what is shown is what is trained on; control characters are gone."""
    found: list[Segment] = []
    begin = shown = 0
    for index in range(1, len(ids) + 1):
        if index == len(ids) or labelled[index] != labelled[begin]:
            text = clean(tokenizer.decode(ids[begin:index]), _LONGEST_TEXT)
            found.append(Segment(text, labelled[begin]))
            shown += len(text)
            begin = index
            if shown > _LONGEST_TEXT:
                found.append(Segment(" …", False))
                break
    return found
