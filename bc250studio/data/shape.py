"""Turn one row of a recognised format into a chat (or a plain text), or say why it cannot be one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bc250studio.data import verdict
from bc250studio.data.recognise import Recognition, parsed
from bc250studio.data.turns import Message, kind, looks_like_messages, messages_of, pairs_before, text_of, tools_of
from bc250studio.data.verdict import Dropped
from bc250studio.errors import clean

_PLACEHOLDER = re.compile(r"\{\{\s*[A-Za-z_][A-Za-z0-9_ .-]{0,40}\s*\}\}")
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.S)


@dataclass(slots=True)
class Chat:
    """What one row says. ``text`` is set for plain text, ``messages`` otherwise.

    Only answers at ``learn_from`` or later in ``messages`` are learnt.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    text: str | None = None
    learn_from: int = 0

    @property
    def prompt_key(self) -> str:
        """What must not be on both sides of a split: everything before the first answer, or the text."""
        if self.text is not None:
            return self.text
        parts = []
        for message in self.messages:
            if message["role"] == "assistant":
                break
            if message["role"] != "system":
                parts.append(" ".join(str(message.get("content") or "").split()).lower())
        return "\n".join(parts)

    def identity(self) -> str:
        """Equal for rows that would teach the same."""
        if self.text is not None:
            return self.text
        plain = self.tools is None and all(len(message) == 2 for message in self.messages)
        if plain:  # most rows; much quicker than JSON
            return "\x1e".join(f"{message['role']}\x1f{message['content']}" for message in self.messages)
        return json.dumps([self.messages, self.tools], sort_keys=True)


def shape(
    value: Any,
    recognition: Recognition,
    *,
    system: str | None = None,
    use_chosen: bool = False,
    fill: Mapping[str, str] | None = None,
) -> Chat:
    """The chat in one row.

    Raises:
        Dropped: with the reason the table shows.
    """
    chat = _BY_FORMAT[recognition.format](value, recognition, use_chosen)
    if chat.text is not None:
        if not chat.text.strip():
            raise Dropped(verdict.EMPTY_TEXT)
        _placeholders(chat.text)
        return chat
    if fill:
        for message in chat.messages:
            if isinstance(message.get("content"), str):
                message["content"] = _PLACEHOLDER.sub(
                    lambda m: fill.get(m.group().strip("{} "), m.group()), message["content"]
                )
    if system and chat.messages and chat.messages[0]["role"] != "system":
        chat.messages.insert(0, {"role": "system", "content": system})
        chat.learn_from += 1 if chat.learn_from else 0
    _check(chat)
    return chat


# -- formats


def _conversation(value: Any, recognition: Recognition, _: bool = False) -> Chat:
    columns = recognition.columns
    row = value if isinstance(value, dict) else {}
    turns = value if isinstance(value, list) else parsed(row.get(columns.get("messages", "")))
    messages = messages_of(turns)
    system = row.get(columns.get("system", ""))
    if isinstance(system, str) and system.strip() and messages and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": text_of(system)})
    return Chat(messages, tools_of(row.get(columns.get("tools", ""))))


def _alpaca(value: Any, recognition: Recognition, _: bool = False) -> Chat:
    row, columns = _row(value), recognition.columns
    instruction = text_of(row.get(columns["instruction"], ""), blank=True)
    instances = row.get(columns["instances"]) if "instances" in columns else None
    source = row
    if isinstance(instances, list) and instances and isinstance(instances[0], dict):  # self-instruct: nested pairs
        if len(instances) > 1:
            raise Dropped(verdict.UNKNOWN_SHAPE, f"{len(instances)} instances in one row; write one row each")
        source = instances[0]
    extra = text_of(source.get(columns.get("input", "input"), ""), blank=True)
    output = text_of(source.get(columns.get("output", "output")), blank=True)
    prompt = f"{instruction}\n\n{extra}" if instruction.strip() and extra.strip() else instruction or extra
    messages = pairs_before(row.get(columns.get("history", "")))
    system = row.get(columns.get("system", ""))
    if isinstance(system, str) and system.strip():
        messages.insert(0, {"role": "system", "content": text_of(system)})
    messages += [{"role": "user", "content": prompt}, {"role": "assistant", "content": output}]
    return Chat(messages, tools_of(row.get(columns.get("tools", ""))))


def _pair(first: str, second: str):  # type: ignore[no-untyped-def]
    def read(value: Any, recognition: Recognition, _: bool = False) -> Chat:
        row, columns = _row(value), recognition.columns
        prompt, answer = row.get(columns[first]), row.get(columns[second])
        messages: list[Message] = []
        system = row.get(columns.get("system", ""))
        if isinstance(system, str) and system.strip():
            messages.append({"role": "system", "content": text_of(system)})
        start = 0
        if isinstance(parsed(prompt), list) and looks_like_messages(parsed(prompt)):
            messages += messages_of(parsed(prompt))
            start = len(messages)
        else:
            messages.append({"role": "user", "content": text_of(prompt, blank=True)})
        if isinstance(parsed(answer), list) and looks_like_messages(parsed(answer)):
            messages += messages_of(parsed(answer))
        else:
            messages.append({"role": "assistant", "content": text_of(answer, blank=True)})
        return Chat(messages, tools_of(row.get(columns.get("tools", ""))), learn_from=start)

    return read


def _plain_text(value: Any, recognition: Recognition, _: bool = False) -> Chat:
    text = value if isinstance(value, str) else _row(value).get(recognition.columns.get("text", "text"))
    return Chat([], text=text_of(text, blank=True))


def _preference(value: Any, recognition: Recognition, use_chosen: bool = False) -> Chat:
    if not use_chosen:
        raise Dropped(verdict.PREFERENCE)
    row, columns = _row(value), recognition.columns
    if recognition.kto:
        if row.get(columns.get("label", "label")) is not True:
            raise Dropped(verdict.PREFERENCE, "an answer marked as bad")
        chosen = row.get(columns.get("completion", "completion"))
    else:
        chosen = row.get(columns.get("chosen", "chosen"))
    chosen = parsed(chosen)
    messages: list[Message] = []
    if "messages" in columns:
        messages = messages_of(parsed(row.get(columns["messages"], [])))
    elif isinstance(row.get(columns.get("system", "")), str) and row[columns["system"]].strip():
        messages = [{"role": "system", "content": text_of(row[columns["system"]])}]
    if isinstance(chosen, list) and looks_like_messages(chosen):
        answer = messages_of(chosen)
        whole = any(m["role"] == "user" for m in answer)  # the prompt is inside `chosen` already
        prompt = [] if whole else _prompt_of(row, columns)
        return Chat((messages if not whole else []) + prompt + answer)
    if isinstance(chosen, dict):
        answer = messages_of([chosen])
    else:
        answer = [{"role": "assistant", "content": text_of(chosen, blank=True)}]
    return Chat(messages + ([] if "messages" in columns else _prompt_of(row, columns)) + answer)


def _prompt_of(row: dict[str, Any], columns: dict[str, str]) -> list[Message]:
    for slot in ("prompt", "instruction", "question"):
        if slot in columns:
            value = parsed(row.get(columns[slot]))
            if isinstance(value, list) and looks_like_messages(value):
                return messages_of(value)
            extra = row.get(columns.get("input", ""), "") if slot == "instruction" else ""
            text = text_of(value, blank=True)
            return [
                {"role": "user", "content": f"{text}\n\n{extra}" if isinstance(extra, str) and extra.strip() else text}
            ]
    return []


_BY_FORMAT = {
    "messages": _conversation,
    "sharegpt": _conversation,
    "alpaca": _alpaca,
    "prompt_completion": _pair("prompt", "completion"),
    "question_answer": _pair("question", "answer"),
    "text": _plain_text,
    "preference": _preference,
}


def _row(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Dropped(verdict.UNKNOWN_SHAPE, f"{kind(value)} where columns are expected")
    return value


# -- what every chat must be


def _check(chat: Chat) -> None:
    """Refuse chats that no template renders sensibly; cut what comes after the last answer.

    Raises:
        Dropped: with the reason.
    """
    messages = chat.messages
    if not messages:
        raise Dropped(verdict.NO_ANSWER, "no messages")
    before = None
    for index, message in enumerate(messages, 1):
        role = message["role"]
        if role == "system" and index > 1:
            raise Dropped(verdict.MISPLACED_SYSTEM, f"turn {index}")
        if role == before == "user":
            raise Dropped(verdict.TWO_USERS, f"turns {index - 1} and {index}")
        if role == before == "assistant":
            raise Dropped(verdict.TWO_ANSWERS, f"turns {index - 1} and {index}")
        if role == "assistant" and before in (None, "system"):
            raise Dropped(verdict.STARTS_WITH_ANSWER)
        if role == "tool" and before not in ("assistant", "tool"):
            raise Dropped(verdict.MISPLACED_TOOL, f"turn {index}")
        if role == "user" and not message["content"].strip():
            raise Dropped(verdict.EMPTY_PROMPT, f"turn {index}" if index > 2 else "")
        if role == "assistant" and not message["content"].strip() and not message.get("tool_calls"):
            raise Dropped(verdict.EMPTY_ANSWER, f"turn {index}" if index > 3 else "")
        _placeholders(message["content"])
        before = role
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    if not messages:
        raise Dropped(verdict.NO_ANSWER)


def _placeholders(text: str) -> None:
    if "{{" not in text:
        return
    match = _PLACEHOLDER.search(_CODE.sub("", text))
    if match:
        raise Dropped(verdict.PLACEHOLDER, clean(match.group(), 50))
