"""Why a row is not learnt: the reasons, in the user's words, and the exception that carries one."""

from __future__ import annotations

BROKEN = "broken"
UNKNOWN_SHAPE = "unknown shape"
UNKNOWN_ROLE = "unknown role"
EMPTY_ANSWER = "empty answer"
EMPTY_PROMPT = "empty prompt"
EMPTY_TEXT = "empty text"
NO_ANSWER = "no answer"
TWO_USERS = "two users in a row"
TWO_ANSWERS = "two answers in a row"
STARTS_WITH_ANSWER = "starts with an answer"
MISPLACED_SYSTEM = "system message in the middle"
MISPLACED_TOOL = "tool result without a call"
NOT_TEXT = "not text"
DUPLICATE = "duplicate"
PLACEHOLDER = "unfilled placeholder"
TOO_LONG = "longer than max_length"
ANSWER_CUT = "answer cut away by length"
TEMPLATE_REFUSES = "refused by the chat template"
NO_MASK = "mask cannot be derived"
PREFERENCE = "preference row"


class Dropped(Exception):
    """A row is left out. ``reason`` is one of the constants above, ``detail`` what is particular to the row."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail
