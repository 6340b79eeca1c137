"""Do trainer and server see the same tokens? Rendered prompts byte for byte, ids one by one, and the end token.

Twenty chats: fixed ones with what usually breaks (empty system message, emoji, Chinese, trailing blanks,
newlines), the rest from the evaluation rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bc250studio.errors import BadInput, JobFailed, clean
from bc250studio.models.tokenizer import Tokenizer
from bc250studio.serve.talk import Talk

CHATS = 20
Message = dict[str, Any]

FIXED: tuple[tuple[Message, ...], ...] = (
    ({"role": "user", "content": "Hello"},),
    ({"role": "user", "content": "A flag 🏳️‍🌈, a family 👨‍👩‍👧‍👦, a smile 😀 and a rare one 🫨."},),
    ({"role": "user", "content": "请用中文回答:一加一等于几?谢谢。"},),
    ({"role": "user", "content": "blanks at the end   "},),
    ({"role": "user", "content": "line\n\nline\r\n\ttab"},),
    ({"role": "user", "content": "Ünïcödé, naïve, \u00a0no-break, \u200bzero width, e\u0301"},),
    (
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Two. 😀"},
        {"role": "user", "content": "Three?"},
    ),
)
_WITH_SYSTEM: tuple[tuple[Message, ...], ...] = (
    ({"role": "system", "content": ""}, {"role": "user", "content": "An empty system message."}),
    ({"role": "system", "content": "Be brief. 简短。"}, {"role": "user", "content": "2 + 2 = ?"}),
)


@dataclass(frozen=True)
class Sameness:
    """``checked`` chats compared; ``note`` names the first difference, empty when all are equal."""

    equal: bool
    checked: int
    note: str
    closing_id: int | None
    closing_stops: bool | None


def chats_to_compare(tokenizer: Tokenizer, chats: Sequence[Sequence[Message]]) -> list[list[Message]]:
    """Fixed chats the template accepts, then evaluation chats up to their last question."""
    chosen: list[list[Message]] = []
    for fixed in (*FIXED, *_WITH_SYSTEM):
        try:
            tokenizer.render(list(fixed), add_generation_prompt=True)
        except BadInput:
            continue
        chosen.append([dict(message) for message in fixed])
    for chat in chats:
        if len(chosen) >= CHATS:
            break
        last = max((i for i, message in enumerate(chat) if message.get("role") == "user"), default=-1)
        if last >= 0 and all(isinstance(message.get("content"), str) for message in chat[: last + 1]):
            chosen.append([dict(message) for message in chat[: last + 1]])
    return chosen


def compare(
    talk: Talk, tokenizer: Tokenizer, chats: Sequence[Sequence[Message]], thinking: bool | None = None
) -> Sameness:
    """Compare every chat; stops at the first difference.

    Raises:
        JobFailed: the server does not answer.
    """
    options = {} if thinking is None else {"chat_template_kwargs": {"enable_thinking": thinking}}
    chosen = chats_to_compare(tokenizer, chats)
    closing = closing_id(tokenizer, thinking)
    for number, chat in enumerate(chosen):
        try:
            ours = tokenizer.render(chat, add_generation_prompt=True, thinking=thinking)
        except BadInput:
            continue
        try:
            theirs = talk.render(chat, **options)
        except (BadInput, JobFailed) as error:
            return Sameness(False, number, f"the server's template refuses a chat: {clean(error, 200)}", closing, None)
        if _without_bos(ours, tokenizer) != _without_bos(theirs, tokenizer):
            return Sameness(False, number, _first_difference("the templates render", ours, theirs), closing, None)
        our_ids, their_ids = tokenizer.encode(ours), talk.tokenize(ours)
        if our_ids != their_ids:
            at = next((i for i, (a, b) in enumerate(zip(our_ids, their_ids, strict=False)) if a != b), None)
            at = min(len(our_ids), len(their_ids)) if at is None else at
            around = clean(tokenizer.decode(our_ids[max(0, at - 3) : at + 3]), 60)
            found = f"{our_ids[at : at + 3]} against {their_ids[at : at + 3]}"
            note = f"the tokenizers differ at token {at} (near {around!r}): {found}"
            return Sameness(False, number, note, closing, None)
    return Sameness(True, len(chosen), "", closing, None if closing is None else stops_at(talk, closing))


def _without_bos(text: str, tokenizer: Tokenizer) -> str:
    bos = tokenizer.special.get("bos_token")
    return text.removeprefix(bos) if bos and tokenizer.add_bos else text


def _first_difference(what: str, ours: str, theirs: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return (
        f"{what} differently at character {at}: {clean(ours[at : at + 40])!r} against {clean(theirs[at : at + 40])!r}"
    )


def closing_id(tokenizer: Tokenizer, thinking: bool | None = None) -> int | None:
    """The token with which training closed an answer; None when the template does not show one."""
    question: list[Message] = [{"role": "user", "content": "Hello"}]
    answer = "word"
    try:
        text = tokenizer.render([*question, {"role": "assistant", "content": answer}], thinking=thinking)
    except BadInput:
        return None
    behind = text.rpartition(answer)[2]
    ids = tokenizer.encode(behind)
    return ids[0] if ids and ids[0] in tokenizer.special_ids else None


def stops_at(talk: Talk, token: int) -> bool:
    """Whether the server ends an answer at ``token``: it is made to pick it and has to stop before the limit."""
    answer = talk.complete("Hello", n_predict=4, scale=1.0, logit_bias=[[token, 1e4]])
    return answer.stop == "end"
