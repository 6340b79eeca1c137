"""The turns of a conversation, whatever a file calls them: role/content, from/value, a key a speaker, calls, tools."""

from __future__ import annotations

import json
import re
from typing import Any

from bc250studio.data import verdict
from bc250studio.data.recognise import parsed
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


def kind(value: Any) -> str:
    names: dict[type, str] = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "true or false",
        type(None): "nothing",
    }
    return names.get(type(value), "a number")


def looks_like_messages(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(m, dict) and ({"role", "from"} & set(m)) for m in value)
    )


def text_of(value: Any, blank: bool = False) -> str:
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
    raise Dropped(verdict.NOT_TEXT, f"{kind(value)} where a text is expected")


def content_of(value: Any) -> str:
    """Message content: a text, or a list of parts of which all are texts."""
    if isinstance(value, list):
        parts = []
        for part in value:
            if isinstance(part, str):
                parts.append(text_of(part))
            elif isinstance(part, dict) and part.get("type", "text") in ("text", "output_text", "input_text"):
                parts.append(text_of(part.get("text")))
            else:
                found = part.get("type") if isinstance(part, dict) else kind(part)
                raise Dropped(verdict.NOT_TEXT, f"a part of type {clean(found, 30)}")
        return "".join(parts)
    return text_of(value, blank=True)


def messages_of(turns: Any) -> list[Message]:
    """Messages with our roles from role/content, from/value or one-key-per-speaker turns."""
    if not isinstance(turns, list):
        raise Dropped(verdict.UNKNOWN_SHAPE, f"no list of messages but {kind(turns)}")
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
            raise Dropped(verdict.UNKNOWN_SHAPE, f"{kind(turn)} where a message is expected")
        found += [{"role": key, "content": text} for key, text in turn.items() if str(key).lower() in _ROLES]
    return found


def _message(turn: Any, index: int) -> Message:
    if not isinstance(turn, dict):
        raise Dropped(verdict.UNKNOWN_SHAPE, f"turn {index} is {kind(turn)}")
    if len(turn) == 2 and turn.get("role") in _PLAIN_ROLES and type(turn.get("content")) is str:
        return {"role": turn["role"], "content": text_of(turn["content"])}  # most turns of most files
    name = next((turn[k] for k in ("role", "from", "speaker", "author") if k in turn), None)
    role = _ROLES.get(str(name).strip().lower()) if isinstance(name, str) else None
    if role is None:
        raise Dropped(verdict.UNKNOWN_ROLE, f"{clean(name, 30)!r} in turn {index}")
    body = next((turn[k] for k in ("content", "value", "text", "message", "parts") if k in turn), None)
    if role == "call":
        return {"role": "assistant", "content": "", "tool_calls": _calls_in_text(body, index)}
    message: Message = {"role": role, "content": content_of(body)}
    if role == "assistant":
        calls = turn.get("tool_calls")
        if isinstance(calls, list) and calls:
            message["tool_calls"] = [_call(c, index) for c in calls]
        elif isinstance(turn.get("function_call"), dict):
            message["tool_calls"] = [_call(turn["function_call"], index)]
        thought = next((turn[k] for k in ("reasoning_content", "reasoning", "thinking") if turn.get(k)), None)
        if thought is not None:
            message["reasoning_content"] = text_of(thought)
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


def tools_of(value: Any) -> list[dict[str, Any]] | None:
    """Tools as the OpenAI list of {"type": "function", "function": {...}}."""
    value = parsed(value)
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        return None
    tools = [t for t in (parsed(entry) for entry in value) if isinstance(t, dict) and t]
    return [t if "function" in t else {"type": "function", "function": t} for t in tools] or None


def pairs_before(history: Any) -> list[Message]:
    """Alpaca's history: [[question, answer], ...]."""
    messages: list[Message] = []
    for pair in parsed(history) if isinstance(parsed(history), list) else []:
        if isinstance(pair, (list, tuple)) and len(pair) == 2:
            messages.append({"role": "user", "content": text_of(pair[0])})
            messages.append({"role": "assistant", "content": text_of(pair[1])})
    return messages
