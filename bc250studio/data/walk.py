"""Walk over a dataset once: every row gets its verdict, and those that are learnt come out with their token ids.

``check`` walks and keeps only the counts; ``prepare`` walks and keeps the ids. Both see the same rows.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bc250studio.data import verdict
from bc250studio.data.encode import Encoder
from bc250studio.data.files import Dataset
from bc250studio.data.mask import Example, Masker
from bc250studio.data.raw import Raw
from bc250studio.data.recognise import Recognition
from bc250studio.data.seen import Seen, digest64
from bc250studio.data.shape import Chat, shape
from bc250studio.data.verdict import Dropped
from bc250studio.errors import clean
from bc250studio.jobs.progress import Progress, silent
from bc250studio.profiles.data import Data

_BATCH_ROWS, _BATCH_CHARACTERS = 256, 1 << 22
KEPT_EXAMPLES = 1000
"""How many dropped rows, and how many cut ones, are remembered with line and reason."""


@dataclass
class Tally:
    """The verdicts of a walk; ``total == used + cut + dropped``.

    ``lengths`` and ``labelled`` have an entry for every example that is learnt (tokens).
    """

    total: int = 0
    used: int = 0
    cut: int = 0
    dropped: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    dropped_rows: list[dict[str, str]] = field(default_factory=list)
    cut_rows: list[dict[str, str]] = field(default_factory=list)
    lengths: array[int] = field(default_factory=lambda: array("i"))
    labelled: array[int] = field(default_factory=lambda: array("i"))
    full_lengths: array[int] = field(default_factory=lambda: array("i"))
    on_drop: Callable[[Raw, str, str], None] | None = None

    def drop(self, raw: Raw, reason: str, detail: str = "") -> None:
        """Count a dropped row; ``on_drop`` hears of it while the row's value is still there."""
        if self.on_drop:
            self.on_drop(raw, reason, detail)
        self.total += 1
        self.dropped += 1
        self.reasons[reason] += 1
        if len(self.dropped_rows) < KEPT_EXAMPLES:
            self.dropped_rows.append({"where": clean(raw.where, 120), "reason": reason, "detail": clean(detail, 160)})

    def learn(self, raw: Raw, cut_from: int = 0) -> None:
        """Count a row that is learnt, whole or cut from ``cut_from`` tokens."""
        self.total += 1
        if cut_from:
            self.cut += 1
            if len(self.cut_rows) < KEPT_EXAMPLES:
                self.cut_rows.append({"where": clean(raw.where, 120), "tokens": str(cut_from)})
        else:
            self.used += 1


@dataclass(slots=True)
class Learnt:
    """One example that is learnt: where it comes from, its ids, and what it says.

    ``full_length`` is its length in tokens before cutting.
    """

    raw: Raw
    chat: Chat
    example: Example
    ids: list[int]
    labelled: list[bool]
    full_length: int


def walk(
    dataset: Dataset,
    recognition: Recognition,
    data: Data,
    masker: Masker | None,
    tally: Tally,
    progress: Progress = silent,
) -> Iterator[Learnt]:
    """Every example of ``dataset`` that is learnt; ``tally`` counts all rows.

    Without a masker nothing is rendered: rows are judged by their shape alone and nothing is yielded.
    """
    seen = Seen()
    encoder = Encoder(masker.tokenizer) if masker else None
    size = dataset.size_bytes
    batch: list[tuple[Raw, Chat, list[Example]]] = []
    waiting_characters = done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done = count

    file_numbers: dict[str, int] = {}
    for raw in dataset.rows(on_bytes):
        if raw.problem is not None:
            tally.drop(raw, _category(raw.problem), raw.problem)
            continue
        try:
            chat = shape(raw.value, recognition, system=data.system, use_chosen=data.use_chosen, fill=data.fill)
            _once(chat, raw, seen, file_numbers)
            if masker is None or encoder is None:
                tally.learn(raw)
                if tally.total % 4096 == 0:
                    progress("Checking rows", done, size)
                continue
            examples = masker.examples(chat)
            batch.append((raw, chat, examples))
            waiting_characters += sum(len(example.text) for example in examples)
        except Dropped as why:
            tally.drop(raw, why.reason, why.detail)
            continue
        if len(batch) >= _BATCH_ROWS or waiting_characters >= _BATCH_CHARACTERS:
            yield from _encoded(batch, encoder, data, tally)
            batch.clear()
            waiting_characters = 0
            progress("Preparing rows", done, size)
    if batch and encoder:
        yield from _encoded(batch, encoder, data, tally)
    progress("Preparing rows", size, size)


def _category(problem: str) -> str:
    head = problem.split(":")[0].split(" (")[0]
    known = ("broken JSON", "broken CSV", "broken gzip", "broken parquet")
    if head in known:
        return head
    return verdict.NOT_TEXT if head.startswith("not ") else "too large" if head.startswith("longer") else head


def _once(chat: Chat, raw: Raw, seen: Seen, file_numbers: dict[str, int]) -> None:
    """Refuse a row that teaches what an earlier one taught.

    Raises:
        Dropped: it is a duplicate; names the row it repeats.
    """
    index = file_numbers.setdefault(raw.file, len(file_numbers))
    first = seen.add(digest64(chat.identity()), index << 40 | raw.number)
    if first is not None:
        name = next(name for name, i in file_numbers.items() if i == first >> 40)
        earlier = Raw(first & ((1 << 40) - 1), None, None, raw.unit, name)
        raise Dropped(verdict.DUPLICATE, f"same as {earlier.where}")


def _encoded(
    batch: list[tuple[Raw, Chat, list[Example]]], encoder: Encoder, data: Data, tally: Tally
) -> Iterator[Learnt]:
    rows = iter(encoder.encode([example for _, _, examples in batch for example in examples]))
    for raw, chat, examples in batch:
        kept: list[Learnt] = []
        longest = 0
        reason, detail = verdict.ANSWER_CUT, ""
        for encoded in [one for _ in examples for one in next(rows)]:
            ids, labelled = encoded.ids, encoded.labelled
            tally.full_lengths.append(len(ids))
            full = len(ids)
            if full > data.max_length:
                longest = max(longest, full)
                if data.overlong == "drop":
                    reason, detail = verdict.TOO_LONG, f"{full} tokens, max_length is {data.max_length}"
                    continue
                first = labelled.index(True) if True in labelled else full
                detail = f"{full} tokens, the answer begins at {first + 1}, max_length is {data.max_length}"
                ids, labelled = ids[: data.max_length], labelled[: data.max_length]
            elif not any(labelled):
                reason, detail = verdict.EMPTY_ANSWER, "no token of it can be learnt"
            if any(labelled):
                kept.append(Learnt(raw, chat, encoded.example, ids, labelled, full))
        if not kept:
            tally.drop(raw, reason, detail)
            continue
        tally.learn(raw, longest)
        for learnt in kept:
            tally.lengths.append(len(learnt.ids))
            tally.labelled.append(sum(learnt.labelled))
        yield from kept
