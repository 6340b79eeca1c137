"""Say what the rows of a file are by looking at many of them: messages, alpaca, question and answer, text, ...

A look is a vote: every row of the sample is asked which formats it could be, so order and a few odd rows do not
matter. More than one good answer is an ambiguity: the app asks, the command line names the option.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bc250studio.data.raw import Raw
from bc250studio.errors import BadInput, clean, nearest

SAMPLE_ROWS = 2000
FORMATS = ("messages", "sharegpt", "alpaca", "prompt_completion", "question_answer", "text", "preference")

# Our slot -> the names files use for it, most telling first.
_SYNONYMS: dict[str, tuple[str, ...]] = {
    "messages": ("messages", "conversations", "conversation", "dialog", "dialogue", "chat", "turns"),
    "instruction": ("instruction", "instructions", "task"),
    "input": ("input", "context", "inputs"),
    "output": ("output", "response", "completion", "answer", "target", "outputs"),
    "prompt": ("prompt", "user", "human", "user_prompt", "input", "source", "inputs"),
    "completion": ("completion", "response", "assistant", "output", "generation", "reply", "target", "answer"),
    "question": ("question", "query", "problem", "q"),
    "answer": ("answer", "solution", "a", "response", "output", "final_answer"),
    "text": ("text", "content", "document", "body"),
    "system": ("system", "system_prompt", "system_message"),
    "tools": ("tools", "functions", "available_tools"),
    "history": ("history",),
    "instances": ("instances",),
}
_NEEDS: dict[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "sharegpt": ("messages",),
    "alpaca": ("instruction", "output"),
    "prompt_completion": ("prompt", "completion"),
    "question_answer": ("question", "answer"),
    "text": ("text",),
    "preference": (),
}
_EXTRA = {"alpaca": ("input", "system", "history", "tools")}
_PREFERRED = (
    ("chosen", "rejected"),
    ("preferred_output", "non_preferred_output"),
    ("chosen_response", "rejected_response"),
)
_STRUCTURED = ("messages", "sharegpt", "alpaca", "prompt_completion", "question_answer")


@dataclass(frozen=True)
class Recognition:
    """What a file is.

    ``columns`` maps our slots to the file's column names. ``candidates`` are (format, share of the sample) with the
    best first. ``question`` is set when a person should choose; ``options`` are then the choices, default first, and
    ``asks`` is what they are for: ``format``, or the slot of ``columns``.
    ``unused`` are columns most rows have and nobody reads.
    """

    format: str
    columns: dict[str, str]
    candidates: list[tuple[str, float]]
    question: str | None = None
    options: list[str] = field(default_factory=list)
    asks: str = ""
    kto: bool = False
    unused: list[str] = field(default_factory=list)

    def words(self) -> str:
        """One line: format, and which column is which."""
        used = ", ".join(f"{slot} = {clean(name, 40)!r}" for slot, name in self.columns.items() if slot != name)
        return self.format + (f" ({used})" if used else "")


def sample(rows: Iterable[Raw]) -> Iterator[Raw]:
    """The rows a recognition looks at: the first ones that could be read."""
    count = 0
    for raw in rows:
        if raw.problem is None:
            yield raw
            count += 1
        if count >= SAMPLE_ROWS:
            return


def recognise(
    rows: Iterable[Raw], format: str = "auto", columns: Mapping[str, str] | None = None, where: str = "The file"
) -> Recognition:
    """What the sample of ``rows`` is; ``format`` and ``columns`` (ours -> the file's) are the user's word and win.

    Raises:
        BadInput: nothing in it could be read, nothing is recognised, or a column named by hand is not there.
    """
    values = [raw.value for raw in sample(rows)]
    if not values:
        raise BadInput(f"{where} has no row that can be read.")
    names = Counter(str(key) for value in values if isinstance(value, dict) for key in value)
    found = _recognised(values, names, format, columns or {}, where)
    read = {_plain(name) for name in found.columns.values()}
    unused = [name for name, count in names.items() if count * 2 > len(values) and _plain(name) not in read]
    return replace(found, unused=unused)


def _recognised(
    values: list[Any], names: Counter[str], format: str, columns: Mapping[str, str], where: str
) -> Recognition:
    by_hand = _check_columns(columns, names, where)
    if by_hand or format != "auto":
        return _told(values, format, by_hand, names, where)
    votes: Counter[str] = Counter()
    for value in values:
        votes.update(_could_be(value))
    total = len(values)
    ranked = [(name, votes[name] / total) for name in FORMATS if votes[name]]
    ranked.sort(key=lambda pair: -pair[1])
    if not ranked:
        seen = ", ".join(clean(n, 30) for n, _ in names.most_common(8)) or type(values[0]).__name__
        raise BadInput(
            f"{where}: the rows are in no known format (columns: {seen}); say which column is which with"
            " data.columns, such as --columns prompt=QUESTION,completion=REPLY."
        )
    if votes["preference"] > total / 2:
        kto = sum(_is_kto(v) for v in values) > total / 2
        return Recognition("preference", _preference_columns(names, kto), ranked, kto=kto)
    return _choose(ranked, names)


def _choose(ranked: list[tuple[str, float]], names: Counter[str]) -> Recognition:
    best = ranked[0][1]
    strong = [n for n in _STRUCTURED if any(n == name and share >= max(0.5, best - 0.2) for name, share in ranked)]
    strong = _without_shadows(strong, names)
    chosen = strong[0] if strong else next(n for n, s in ranked if s == best)
    columns = _columns_for(chosen, names)
    question, options, asks = None, [], ""
    if len(strong) > 1:
        options, asks = strong, "format"
        question = (
            f"The rows could be read as {_or(strong)}: choose with data.format (--format {strong[0]});"
            f" the default would be {strong[0]}."
        )
    else:
        for slot in _NEEDS[chosen]:
            found = [n for n in _SYNONYMS[slot] if n in _lowered(names) and n not in _taken(columns, slot)]
            if len(found) > 1 and slot not in ("messages",):
                real = [_lowered(names)[n] for n in found]
                options, asks = real, slot
                question = (
                    f"Several columns could be the {slot} ({', '.join(clean(r, 40) for r in real)}): choose with"
                    f" data.columns (--columns {slot}={clean(real[0], 40)}); the default would be {clean(real[0], 40)}."
                )
                break
    return Recognition(chosen, columns, ranked, question, options, asks)


def _taken(columns: dict[str, str], slot: str) -> set[str]:
    return {name.lower() for other, name in columns.items() if other != slot}


def _without_shadows(strong: list[str], names: Counter[str]) -> list[str]:
    """Formats that read the very same columns as one before them are no second choice."""
    kept: list[str] = []
    for name in strong:
        mine = {v for k, v in _columns_for(name, names).items() if k in _NEEDS[name]}
        others = [{v for k, v in _columns_for(k2, names).items()} for k2 in kept]
        if not any(mine <= other or (mine & other) for other in others):
            kept.append(name)
    return kept


def _or(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _told(values: list[Any], format: str, by_hand: dict[str, str], names: Counter[str], where: str) -> Recognition:
    """The format the user named, or the one that follows from the columns the user named."""
    if format == "auto":
        format = _format_of_slots(by_hand, values)
    columns = {**_columns_for(format, names), **by_hand}
    ours = {"prompt_completion": ("prompt", "completion"), "alpaca": ("instruction", "output")}
    first, second = ours.get(format, ("question", "answer"))
    if format in _STRUCTURED[2:]:  # prompt and completion are understood for every kind of pair
        for told, slot in (("prompt", first), ("completion", second)):
            if told in by_hand and slot not in by_hand:
                columns[slot] = by_hand[told]
    missing = [slot for slot in _NEEDS[format] if slot not in columns]
    bare = format == "text" and all(isinstance(v, str) for v in values[:50])
    bare = bare or (format in ("messages", "sharegpt") and all(isinstance(v, list) for v in values[:50]))
    if missing and not bare:
        seen = ", ".join(clean(n, 30) for n, _ in names.most_common(8)) or "none"
        raise BadInput(
            f"{where} has no column for {missing[0]} of the format {format} (columns: {seen}); name it with"
            f" data.columns, such as --columns {missing[0]}=NAME."
        )
    return Recognition(format, columns, [(format, 1.0)], kto=format == "preference" and any(_is_kto(v) for v in values))


def _format_of_slots(by_hand: Mapping[str, str], values: list[Any]) -> str:
    if "messages" in by_hand:
        share = [_messages_kind(v.get(by_hand["messages"])) for v in values if isinstance(v, dict)]
        return "sharegpt" if share.count("sharegpt") > share.count("messages") else "messages"
    if "text" in by_hand:
        return "text"
    if "instruction" in by_hand:
        return "alpaca"
    if "question" in by_hand or "answer" in by_hand:
        return "question_answer"
    return "prompt_completion"


def _check_columns(columns: Mapping[str, str], names: Counter[str], where: str) -> dict[str, str]:
    for slot, name in columns.items():
        if slot not in _SYNONYMS:
            raise BadInput(f"data.columns: {clean(slot, 40)!r} is not a slot.{nearest(slot, _SYNONYMS)}")
        if name not in names:
            seen = ", ".join(clean(n, 30) for n, _ in names.most_common(8)) or "none"
            raise BadInput(f"{where} has no column {clean(name, 60)!r} (columns: {seen}).{nearest(name, names)}")
    return dict(columns)


def _lowered(names: Iterable[str]) -> dict[str, str]:
    """name in lower case with underscores -> the file's own spelling (the first of equals)."""
    found: dict[str, str] = {}
    for name in names:
        found.setdefault(_plain(name), name)
    return found


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def _columns_for(format: str, names: Iterable[str]) -> dict[str, str]:
    lowered = _lowered(names)
    columns: dict[str, str] = {}
    slots = [*_NEEDS[format], *_EXTRA.get(format, ("system", "tools"))]
    if format == "alpaca" and "instances" in lowered:
        columns["instances"] = lowered["instances"]
    for slot in slots:
        for name in _SYNONYMS[slot]:
            if name in lowered and lowered[name] not in columns.values():
                columns[slot] = lowered[name]
                break
    return columns


def _preference_columns(names: Counter[str], kto: bool) -> dict[str, str]:
    lowered = _lowered(names)
    columns = _columns_for("messages", names) | {}
    for slot in ("prompt", "question", "instruction", "input"):
        name = next((lowered[n] for n in _SYNONYMS[slot] if n in lowered), None)
        if name and name not in columns.values():
            columns["prompt" if slot in ("question",) and "prompt" not in columns else slot] = name
    for chosen, rejected in _PREFERRED:
        if chosen in lowered:
            columns["chosen"], columns["rejected"] = lowered[chosen], lowered.get(rejected, rejected)
            break
    if kto:
        columns["completion"] = next((lowered[n] for n in _SYNONYMS["completion"] if n in lowered), "completion")
        columns["label"] = next((lowered[n] for n in ("label", "kto_tag", "desirable") if n in lowered), "label")
    return columns


def _could_be(value: Any) -> set[str]:
    """The formats one row could be."""
    if isinstance(value, str):
        return {"text"}
    if isinstance(value, list):
        kind = _messages_kind(value)
        return {kind} if kind else set()
    if not isinstance(value, dict):
        return set()
    lowered = {_plain(str(k)): v for k, v in value.items()}
    found: set[str] = set()
    if any(a in lowered and b in lowered for a, b in _PREFERRED) or _is_kto(value):
        found.add("preference")
    for name in _SYNONYMS["messages"]:
        kind = _messages_kind(lowered.get(name))
        if kind:
            found.add(kind)
    for format in ("alpaca", "prompt_completion", "question_answer", "text"):
        columns = _columns_for(format, lowered)
        nested = format == "alpaca" and "instances" in columns and "instruction" in columns
        if nested or all(slot in columns for slot in _NEEDS[format]):
            found.add(format)
    if "role" in lowered and "content" in lowered:
        found.discard("text")
    return found


def _is_kto(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    lowered = {_plain(str(k)): v for k, v in value.items()}
    tag = next((lowered[n] for n in ("label", "kto_tag", "desirable") if n in lowered), None)
    answered = any(n in lowered for n in ("completion", "response", "output", "messages", "conversations"))
    return isinstance(tag, bool) and answered


def parsed(value: Any) -> Any:
    """A list or object that stands in a column as JSON text, parsed; anything else as it is."""
    if isinstance(value, str) and value[:1] in "[{" and value:
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _messages_kind(value: Any) -> str | None:
    """`messages` (role/content) or `sharegpt` (from/value) when ``value`` is a conversation."""
    value = parsed(value)
    if not isinstance(value, list) or not value or not all(isinstance(m, dict) for m in value):
        return None
    keys = {_plain(str(k)) for k in value[0]}
    if "from" in keys and "value" in keys:
        return "sharegpt"
    if keys & {"role", "speaker", "author"} and keys & {"content", "text", "value", "message", "tool_calls", "parts"}:
        return "messages"
    if keys & {"user", "human"} or keys & {"assistant", "gpt"}:
        return "messages"
    return None
