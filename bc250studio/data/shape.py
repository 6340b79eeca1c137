"""Turn one row of a recognised format into a chat (or a plain text), or say why it cannot be one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bc250studio.data import verdict
from bc250studio.data.recognise import Recognition, parsed
from bc250studio.data.verdict import Dropped
from bc250studio.errors import clean

Message = dict[str, Any]

_SPEAKERS = {
    "user": "user human prompter question customer input instruction",
    "assistant": "assistant gpt model bot chatbot ai chatgpt bing output answer",
    "system": "system developer",
    "call": "function_call tool_call tool_calls",
    "tool": "tool function observation tool_response function_response tool_result ipython",
}
_ROLES = {name: role for role, names in _SPEAKERS.items() for name in names.split()}
_PLAIN_ROLES = ("user", "assistant", "system")
_SURROGATE = re.compile("[\ud800-\udfff]")
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
    messages = _messages(turns)
    system = row.get(columns.get("system", ""))
    if isinstance(system, str) and system.strip() and messages and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": _text(system)})
    return Chat(messages, _tools(row.get(columns.get("tools", ""))))


def _alpaca(value: Any, recognition: Recognition, _: bool = False) -> Chat:
    row, columns = _row(value), recognition.columns
    instruction = _text(row.get(columns["instruction"], ""), blank=True)
    instances = row.get(columns["instances"]) if "instances" in columns else None
    source = row
    if isinstance(instances, list) and instances and isinstance(instances[0], dict):  # self-instruct: nested pairs
        if len(instances) > 1:
            raise Dropped(verdict.UNKNOWN_SHAPE, f"{len(instances)} instances in one row; write one row each")
        source = instances[0]
    extra = _text(source.get(columns.get("input", "input"), ""), blank=True)
    output = _text(source.get(columns.get("output", "output")), blank=True)
    prompt = f"{instruction}\n\n{extra}" if instruction.strip() and extra.strip() else instruction or extra
    messages = _pairs_before(row.get(columns.get("history", "")))
    system = row.get(columns.get("system", ""))
    if isinstance(system, str) and system.strip():
        messages.insert(0, {"role": "system", "content": _text(system)})
    messages += [{"role": "user", "content": prompt}, {"role": "assistant", "content": output}]
    return Chat(messages, _tools(row.get(columns.get("tools", ""))))


def _pair(first: str, second: str):  # type: ignore[no-untyped-def]
    def read(value: Any, recognition: Recognition, _: bool = False) -> Chat:
        row, columns = _row(value), recognition.columns
        prompt, answer = row.get(columns[first]), row.get(columns[second])
        messages: list[Message] = []
        system = row.get(columns.get("system", ""))
        if isinstance(system, str) and system.strip():
            messages.append({"role": "system", "content": _text(system)})
        start = 0
        if isinstance(parsed(prompt), list) and _looks_like_messages(parsed(prompt)):
            messages += _messages(parsed(prompt))
            start = len(messages)
        else:
            messages.append({"role": "user", "content": _text(prompt, blank=True)})
        if isinstance(parsed(answer), list) and _looks_like_messages(parsed(answer)):
            messages += _messages(parsed(answer))
        else:
            messages.append({"role": "assistant", "content": _text(answer, blank=True)})
        return Chat(messages, _tools(row.get(columns.get("tools", ""))), learn_from=start)

    return read


def _plain_text(value: Any, recognition: Recognition, _: bool = False) -> Chat:
    text = value if isinstance(value, str) else _row(value).get(recognition.columns.get("text", "text"))
    return Chat([], text=_text(text, blank=True))


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
        messages = _messages(parsed(row.get(columns["messages"], [])))
    elif isinstance(row.get(columns.get("system", "")), str) and row[columns["system"]].strip():
        messages = [{"role": "system", "content": _text(row[columns["system"]])}]
    if isinstance(chosen, list) and _looks_like_messages(chosen):
        answer = _messages(chosen)
        whole = any(m["role"] == "user" for m in answer)  # the prompt is inside `chosen` already
        prompt = [] if whole else _prompt_of(row, columns)
        return Chat((messages if not whole else []) + prompt + answer)
    if isinstance(chosen, dict):
        answer = _messages([chosen])
    else:
        answer = [{"role": "assistant", "content": _text(chosen, blank=True)}]
    return Chat(messages + ([] if "messages" in columns else _prompt_of(row, columns)) + answer)


def _prompt_of(row: dict[str, Any], columns: dict[str, str]) -> list[Message]:
    for slot in ("prompt", "instruction", "question"):
        if slot in columns:
            value = parsed(row.get(columns[slot]))
            if isinstance(value, list) and _looks_like_messages(value):
                return _messages(value)
            extra = row.get(columns.get("input", ""), "") if slot == "instruction" else ""
            text = _text(value, blank=True)
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


# -- parts


def _row(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Dropped(verdict.UNKNOWN_SHAPE, f"{_kind(value)} where columns are expected")
    return value


def _kind(value: Any) -> str:
    names: dict[type, str] = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "true or false",
        type(None): "nothing",
    }
    return names.get(type(value), "a number")


def _looks_like_messages(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(m, dict) and ({"role", "from"} & set(m)) for m in value)
    )


def _text(value: Any, blank: bool = False) -> str:
    """A value as text. Numbers are written as the file writes them; other things are not text.

    Raises:
        Dropped: an object, a list, true or false, or half a character.
    """
    if isinstance(value, str):
        if _SURROGATE.search(value):
            raise Dropped(verdict.NOT_TEXT, "half a character (lone surrogate)")
        return value
    if value is None:
        if blank:
            return ""
        raise Dropped(verdict.NOT_TEXT, "nothing where a text is expected")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return json.dumps(value)
    raise Dropped(verdict.NOT_TEXT, f"{_kind(value)} where a text is expected")


def _content(value: Any) -> str:
    """Message content: a text, or a list of parts of which all are texts."""
    if isinstance(value, list):
        parts = []
        for part in value:
            if isinstance(part, str):
                parts.append(_text(part))
            elif isinstance(part, dict) and part.get("type", "text") in ("text", "output_text", "input_text"):
                parts.append(_text(part.get("text")))
            else:
                kind = part.get("type") if isinstance(part, dict) else _kind(part)
                raise Dropped(verdict.NOT_TEXT, f"a part of type {clean(kind, 30)}")
        return "".join(parts)
    return _text(value, blank=True)


def _messages(turns: Any) -> list[Message]:
    """Messages with our roles from role/content, from/value or one-key-per-speaker turns."""
    if not isinstance(turns, list):
        raise Dropped(verdict.UNKNOWN_SHAPE, f"no list of messages but {_kind(turns)}")
    if turns and isinstance(turns[0], dict) and not {"role", "from", "speaker", "author"} & set(turns[0]):
        turns = _speaker_keys(turns)
    messages: list[Message] = []
    for index, turn in enumerate(turns, 1):
        message = _message(turn, index)
        before = messages[-1] if messages else {}
        call_only = message.get("tool_calls") and not message["content"]
        if call_only and before.get("role") == "assistant":  # a call written as a turn of its own belongs to the answer
            before["tool_calls"] = [*before.get("tool_calls", []), *message["tool_calls"]]
        else:
            messages.append(message)
    return messages


def _speaker_keys(turns: list[Any]) -> list[Any]:
    """[{"user": "..", "assistant": ".."}, ...] written out."""
    found = []
    for turn in turns:
        if not isinstance(turn, dict):
            raise Dropped(verdict.UNKNOWN_SHAPE, f"{_kind(turn)} where a message is expected")
        found += [{"role": key, "content": text} for key, text in turn.items() if str(key).lower() in _ROLES]
    return found


def _message(turn: Any, index: int) -> Message:
    if not isinstance(turn, dict):
        raise Dropped(verdict.UNKNOWN_SHAPE, f"turn {index} is {_kind(turn)}")
    if len(turn) == 2 and turn.get("role") in _PLAIN_ROLES and type(turn.get("content")) is str:
        return {"role": turn["role"], "content": _text(turn["content"])}  # most turns of most files
    name = next((turn[k] for k in ("role", "from", "speaker", "author") if k in turn), None)
    role = _ROLES.get(str(name).strip().lower()) if isinstance(name, str) else None
    if role is None:
        raise Dropped(verdict.UNKNOWN_ROLE, f"{clean(name, 30)!r} in turn {index}")
    body = next((turn[k] for k in ("content", "value", "text", "message", "parts") if k in turn), None)
    if role == "call":
        return {"role": "assistant", "content": "", "tool_calls": _calls_in_text(body, index)}
    message: Message = {"role": role, "content": _content(body)}
    if role == "assistant":
        calls = turn.get("tool_calls")
        if isinstance(calls, list) and calls:
            message["tool_calls"] = [_call(c, index) for c in calls]
        elif isinstance(turn.get("function_call"), dict):
            message["tool_calls"] = [_call(turn["function_call"], index)]
        thought = next((turn[k] for k in ("reasoning_content", "reasoning", "thinking") if turn.get(k)), None)
        if thought is not None:
            message["reasoning_content"] = _text(thought)
        if turn.get("weight") == 0 or turn.get("train") is False:
            message["weight"] = 0
    if role == "tool":
        for key in ("name", "tool_call_id"):
            if isinstance(turn.get(key), str):
                message[key] = turn[key]
    return message


def _calls_in_text(body: Any, index: int) -> list[dict[str, Any]]:
    """ShareGPT's function_call turn: its value is the call (or a list of calls) as JSON text."""
    value = parsed(body)
    calls = value if isinstance(value, list) else [value]
    if not calls or not all(isinstance(c, dict) for c in calls):
        raise Dropped(verdict.NOT_TEXT, f"the call in turn {index} is not JSON")
    return [_call(c, index) for c in calls]


def _call(call: Any, index: int) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else {}
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        raise Dropped(verdict.NOT_TEXT, f"the call in turn {index} names no function")
    arguments = parsed(function.get("arguments", function.get("parameters", {})))
    found: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments or {}}}
    if isinstance(call.get("id"), str):
        found["id"] = call["id"]
    return found


def _tools(value: Any) -> list[dict[str, Any]] | None:
    """Tools as the OpenAI list of {"type": "function", "function": {...}}."""
    value = parsed(value)
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        return None
    tools = [t for t in (parsed(entry) for entry in value) if isinstance(t, dict) and t]
    return [t if "function" in t else {"type": "function", "function": t} for t in tools] or None


def _pairs_before(history: Any) -> list[Message]:
    """Alpaca's history: [[question, answer], ...]."""
    messages: list[Message] = []
    for pair in parsed(history) if isinstance(parsed(history), list) else []:
        if isinstance(pair, (list, tuple)) and len(pair) == 2:
            messages.append({"role": "user", "content": _text(pair[0])})
            messages.append({"role": "assistant", "content": _text(pair[1])})
    return messages


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
