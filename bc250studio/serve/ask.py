"""Questions with expectations, put to base and tuned: contains, regex, json, exact.

A prompts file is TOML (``[[ask]]`` tables), JSON (a list) or JSON lines. Each entry: ``prompt`` (or
``messages``), optional ``system``, and any of ``contains`` (text or list), ``regex``, ``json`` (true, or a
list of keys that must be there), ``exact``.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bc250studio.errors import BadInput, clean, nearest
from bc250studio.jobs.progress import Progress, silent
from bc250studio.serve.talk import Answer, Sampling, Talk

_KEYS = ("prompt", "messages", "system", "contains", "regex", "json", "exact")
LONGEST_FOR_REGEX = 20_000


@dataclass(frozen=True)
class Question:
    """One question and what its answer must satisfy."""

    messages: tuple[dict[str, Any], ...]
    contains: tuple[str, ...] = ()
    regex: str | None = None
    json: bool | tuple[str, ...] = False
    exact: str | None = None

    @property
    def prompt(self) -> str:
        """The last question's text."""
        return str(self.messages[-1].get("content", ""))

    @property
    def expects(self) -> bool:
        """Whether anything is expected at all."""
        return bool(self.contains or self.regex or self.json or self.exact is not None)

    def unmet(self, text: str) -> list[str]:
        """What an answer misses, in words; empty when it satisfies all."""
        missing = [f"does not contain {part!r}" for part in self.contains if part.casefold() not in text.casefold()]
        if self.regex and not re.search(self.regex, text[:LONGEST_FOR_REGEX]):
            missing.append(f"does not match {self.regex!r}")
        if self.exact is not None and text.strip() != self.exact.strip():
            missing.append("is not exactly the expected text")
        if self.json:
            missing += _unmet_json(text, self.json)
        return missing


def _unmet_json(text: str, wanted: bool | tuple[str, ...]) -> list[str]:
    body = re.sub(r"^```(?:json)?\s*|\s*```$", "", text.strip())
    try:
        value = json.loads(body)
    except ValueError:
        return ["is not JSON"]
    if isinstance(wanted, tuple):
        absent = [key for key in wanted if not isinstance(value, dict) or key not in value]
        return [f"its JSON lacks {', '.join(absent)}"] if absent else []
    return []


@dataclass
class Asked:
    """A question with both answers. ``unmet`` is what the tuned answer misses, ``unmet_base`` the base's."""

    question: Question
    base: Answer | None
    tuned: Answer
    unmet: list[str] = field(default_factory=list)
    unmet_base: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The record of the ask stage."""
        record: dict[str, Any] = {
            "prompt": self.question.prompt,
            "base": self.base.as_dict() if self.base else None,
            "tuned": self.tuned.as_dict(),
        }
        if self.question.expects:
            record |= {
                "met": not self.unmet,
                "unmet": self.unmet,
                "met_base": not self.unmet_base if self.base else None,
            }
        return record


def questions_from(prompts: Sequence[str]) -> list[Question]:
    """Plain questions without expectations."""
    return [Question(({"role": "user", "content": prompt},)) for prompt in prompts]


def read_questions(path: Path) -> list[Question]:
    """Read a prompts file.

    Raises:
        BadInput: missing, not readable, empty, or an entry is wrong; names the entry.
    """
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"The prompts file {path} cannot be read: {error}.") from error
    try:
        if path.suffix == ".toml":
            entries: Any = tomllib.loads(text).get("ask", [])
        elif path.suffix == ".jsonl":
            entries = [json.loads(line) for line in text.splitlines() if line.strip()]
        else:
            entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(
            f"The prompts file {path} is not valid {path.suffix.lstrip('.') or 'JSON'}: {clean(error, 160)}."
        ) from error
    if not isinstance(entries, list) or not entries:
        raise BadInput(f"The prompts file {path} holds no questions; TOML wants [[ask]] tables, JSON a list.")
    return [_question(entry, f"{path}, entry {number}") for number, entry in enumerate(entries, 1)]


def _question(entry: Any, where: str) -> Question:
    if isinstance(entry, str):
        entry = {"prompt": entry}
    if not isinstance(entry, dict):
        raise BadInput(f"{where}: a question is a text or a table with prompt.")
    for key in entry:
        if key not in _KEYS:
            raise BadInput(f"{where}: unknown key {clean(key, 40)!r}.{nearest(str(key), _KEYS)}")
    messages = entry.get("messages")
    if messages is None:
        prompt = entry.get("prompt")
        if not isinstance(prompt, str) or not prompt:
            raise BadInput(f"{where}: prompt is missing.")
        messages = [{"role": "user", "content": prompt}]
    if not isinstance(messages, list) or not messages or not all(_is_message(message) for message in messages):
        raise BadInput(f"{where}: messages must be a list of tables with role and content.")
    if isinstance(entry.get("system"), str):
        messages = [{"role": "system", "content": entry["system"]}, *messages]
    contains = entry.get("contains", [])
    contains = [contains] if isinstance(contains, str) else contains
    wanted = entry.get("json", False)
    regex, exact = entry.get("regex"), entry.get("exact")
    well_typed = (
        isinstance(contains, list)
        and all(isinstance(part, str) for part in contains)
        and (isinstance(wanted, bool) or (isinstance(wanted, list) and all(isinstance(k, str) for k in wanted)))
        and all(value is None or isinstance(value, str) for value in (regex, exact, entry.get("system")))
    )
    if not well_typed:
        raise BadInput(f"{where}: contains takes texts, regex and exact a text, json true or a list of keys.")
    if regex is not None:
        try:
            re.compile(regex)
        except (re.error, RecursionError, OverflowError) as error:
            raise BadInput(f"{where}: regex {clean(regex, 60)!r} is not valid: {error}.") from error
    return Question(
        tuple(messages), tuple(contains), regex, tuple(wanted) if isinstance(wanted, list) else wanted, exact
    )


def _is_message(message: Any) -> bool:
    return (
        isinstance(message, dict) and isinstance(message.get("role"), str) and isinstance(message.get("content"), str)
    )


def ask(
    talk: Talk,
    questions: Sequence[Question],
    max_tokens: int,
    temperature: float = 0.0,
    thinking: bool | None = None,
    base: Talk | None = None,
    progress: Progress = silent,
) -> list[Asked]:
    """Put every question to the tuned model and the base.

    The base is the same server at scale 0 when it has an adapter, else the server ``base``, else it is not asked.
    """
    sampling = Sampling(temperature=temperature, seed=0)
    options: dict[str, Any] = {"max_tokens": max_tokens, "sampling": sampling, "thinking": thinking}
    # One side after the other, so that the adapter's scale changes once and not with every question.
    order = [("tuned", talk, 1.0)]
    plain = talk if talk.has_adapter else base
    if plain is not None:
        order.append(("base", plain, 0.0))
    answers: dict[str, list[Answer]] = {}
    total, done = len(questions) * len(order), 0
    for side, client, scale in order:
        answers[side] = []
        for question in questions:
            progress(f"asking the {side} model: {clean(question.prompt, 60)}", float(done), float(total))
            answers[side].append(client.chat(list(question.messages), scale, **options))
            done += 1
    talk.settle()
    progress("asked", float(total), float(total))
    bases: Sequence[Answer | None] = answers.get("base") or [None] * len(questions)
    return [
        Asked(one, of_base, tuned, one.unmet(tuned.text), one.unmet(of_base.text) if of_base is not None else [])
        for one, tuned, of_base in zip(questions, answers["tuned"], bases, strict=True)
    ]
