"""Which characters of a rendered chat are learnt: the assistant's, for any template, verified on every row.

A chat becomes one or more *examples*. Every answer must stand in its example exactly as it will be asked for: behind
the prompt the server will render (history + generation prompt). Most templates render history as it was said, so one
example carries all answers. Some do not (they drop thinking from earlier turns): an answer whose prompt is no prefix
of the whole chat gets an example of its own, rendered up to that answer. No answer is ever learnt behind a prompt
that serving would not produce.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bc250studio.data import verdict
from bc250studio.data.shape import Chat, Message
from bc250studio.data.verdict import Dropped
from bc250studio.errors import BadInput, clean
from bc250studio.models.tokenizer import Tokenizer

_OPENED_THOUGHT = re.compile(r"<think>\s*(</think>\s*)?\Z")
_EMPTY_THOUGHT = re.compile(r"\s*<think>\s*</think>\s*")
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(slots=True)
class Example:
    """Text with the character ranges that are learnt.

    ``messages`` is the part of the chat it renders; ``turns[i]`` is the message that ``spans[i]`` is the answer of.
    """

    text: str
    spans: list[tuple[int, int]]
    messages: list[Message] = field(default_factory=list)
    tools: list[dict[str, Any]] | None = None
    turns: list[int] = field(default_factory=list)


class Masker:
    """Renders chats and finds what is learnt in them, for one tokenizer and one way of training.

    ``notes`` counts what is worth telling: how often a template was worked around.
    """

    def __init__(self, tokenizer: Tokenizer, train_on: str = "assistant", thinking: bool | None = None) -> None:
        self.tokenizer, self.train_on, self.thinking = tokenizer, train_on, thinking
        self.tagged = bool(_GENERATION.search(tokenizer.template))
        self.knows_calls = tokenizer.supports("tool_calls")
        self.knows_thoughts = any(map(tokenizer.supports, ("reasoning_content", "thinking", "reasoning")))
        self.knows_tools = tokenizer.supports("tools")
        self.notes: dict[str, int] = {}
        self._specials = tuple(tokenizer.added_tokens)

    def _note(self, text: str) -> None:
        self.notes[text] = self.notes.get(text, 0) + 1

    def examples(self, chat: Chat) -> list[Example]:
        """The examples of one chat.

        Raises:
            Dropped: the template refuses the chat, or the mask cannot be derived.
        """
        if chat.text is not None:
            end = self.tokenizer.special.get("eos_token", "")
            text = chat.text if end and chat.text.endswith(end) else chat.text + end
            return [Example(text, [(0, len(text))])]
        messages, tools = self.served_form(chat.messages, chat.tools)
        whole = self._render(messages, tools)
        if self.train_on == "all":
            return [Example(whole, [(0, len(whole))], messages, tools)]
        answers = [
            i
            for i, m in enumerate(messages)
            if m["role"] == "assistant" and i >= chat.learn_from and m.get("weight") != 0
        ]
        if self.train_on == "last":
            answers = [i for i in answers if i == len(messages) - 1]
        if not answers:
            raise Dropped(verdict.NO_ANSWER)
        tagged = self._by_tags(messages, tools, answers, whole) if self.tagged else None
        return [tagged] if tagged else self._by_prefixes(messages, tools, answers, whole)

    def served_form(
        self, messages: Sequence[Message], tools: list[dict[str, Any]] | None
    ) -> tuple[list[Message], list[dict[str, Any]] | None]:
        """The messages as this template can show them: calls written out as text where it knows none."""
        found = []
        for message in messages:
            if message.get("tool_calls") and not self.knows_calls:
                self._note("calls written out as the answer's text, because the template knows no tool calls")
                calls = [c["function"] for c in message["tool_calls"]]
                body = json.dumps(calls[0] if len(calls) == 1 else calls, ensure_ascii=False)
                text = f"{message['content']}\n{body}" if message["content"] else body
                message = {**{k: v for k, v in message.items() if k != "tool_calls"}, "content": text}
            if message.get("reasoning_content") and not self.knows_thoughts:
                self._note("thoughts left out, because the template does not show them")
            found.append(message)
        if tools and not self.knows_tools:
            self._note("tools left out, because the template does not show them")
            tools = None
        return found, tools

    def _render(self, messages: Sequence[Message], tools: Any, prompt: bool = False) -> str:
        try:
            return self.tokenizer.render(
                _plain(messages), tools=tools, add_generation_prompt=prompt, thinking=self.thinking
            )
        except BadInput as error:
            words = str(error).removeprefix("The chat template refuses this chat: ")
            raise Dropped(verdict.TEMPLATE_REFUSES, clean(words, 120)) from error

    # -- by rendering prefixes

    def _by_prefixes(self, messages: list[Message], tools: Any, answers: list[int], whole: str) -> list[Example]:
        shared: list[tuple[int, int]] = []
        turns: list[int] = []
        own: list[Example] = []
        last = len(messages) - 1
        for index in answers:
            prompt = self._render(messages[:index], tools, prompt=True)
            upto = whole if index == last else self._render(messages[: index + 1], tools)
            text = self._as_served(prompt, upto, messages[index])
            span = self._span(prompt, text, messages[index])
            if whole.startswith(text[: span[1]]):
                shared.append(span)
                turns.append(index)
            else:
                if len(answers) > 1:
                    self._note("answers put in a row of their own, because the template changes earlier turns")
                own.append(Example(text, [span], messages[: index + 1], tools, [index]))
        if shared:
            own.append(Example(whole, shared, messages, tools, turns))
        return own

    def _as_served(self, prompt: str, upto: str, message: Message) -> str:
        """The chat up to an answer, behind the very prompt that serving renders.

        A generation prompt may hold a thought that the template does not repeat once the turn is answered (an empty
        one when thinking is off): the answer is then put behind that prompt, as the server's model would write it.

        Raises:
            Dropped: the prompt is another text, or thought and thinking switch contradict each other.
        """
        if upto.startswith(prompt):
            return upto
        thought = _OPENED_THOUGHT.search(prompt)
        if thought is None or not upto.startswith(prompt[: thought.start()]):
            raise Dropped(verdict.NO_MASK, "the template renders the prompt differently once it is answered")
        rest = upto[thought.start() :]
        thinks = bool(message.get("reasoning_content")) or "</think>" in str(message.get("content") or "")
        if thought.group(1) is None:
            raise Dropped(
                verdict.NO_MASK, "the prompt opens a thought and the row has none; data.thinking = false fits it"
            )
        if thinks:
            raise Dropped(verdict.NO_MASK, "the row has a thought, but thinking is off; data.thinking = true fits it")
        return prompt + rest

    def _span(self, prompt: str, upto: str, message: Message) -> tuple[int, int]:
        """Where the answer stands in ``upto``: from the end of the prompt through its closing token.

        Raises:
            Dropped: the answer is not where it should be.
        """
        start = len(prompt)
        content = str(message.get("content") or "")
        if not message.get("reasoning_content") and not _EMPTY_THOUGHT.match(content):
            # An empty thought that the template itself puts in is no answer of the row.
            supplied = _EMPTY_THOUGHT.match(upto, start)
            if supplied:
                start = supplied.end()
                self._note("empty thoughts supplied by the template, not learnt")
        end = self._close(upto, start)
        body = upto[start:end]
        # Templates trim answers and move thoughts about; the last words must be there whatever else happens.
        words = content.split("</think>")[-1].strip()
        if not message.get("tool_calls") and words and words not in body:
            raise Dropped(verdict.NO_MASK, "the answer is not behind its prompt as it stands in the row")
        if end <= start:
            raise Dropped(verdict.NO_MASK, "the template renders nothing for the answer")
        return start, end

    def _close(self, text: str, start: int) -> int:
        """The end of the last special token of ``text``, or its end when it closes with none."""
        end = len(text.rstrip())
        if end > start and text.endswith(self._specials, start, end):
            return end
        self._note("answers that the template closes with no special token")
        return len(text)

    # -- by generation tags

    def _by_tags(self, messages: list[Message], tools: Any, answers: list[int], whole: str) -> Example | None:
        """Spans from the template's own tags, each through the closing token that follows it.

        None when the tags do not fit this chat or an answer does not stand behind its served prompt: then the
        prefixes decide.
        """
        turns = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        spans = self.tokenizer.tagged_spans(_plain(messages), tools=tools, thinking=self.thinking)
        spans = [(begin, end) for begin, end in spans if end > begin]
        if len(spans) != len(turns):
            return None
        learnt = []
        for turn, (begin, end) in zip(turns, spans, strict=True):
            if turn not in answers:
                continue
            prompt = self._render(messages[:turn], tools, prompt=True)
            if not whole.startswith(prompt) or end <= len(prompt):
                return None
            learnt.append((max(begin, len(prompt)), self._through_closing(whole, end)))
        return Example(whole, learnt, messages, tools, answers)

    def _through_closing(self, text: str, end: int) -> int:
        """``end`` moved behind the special token that follows, unless the answer ended with one already."""
        if text[:end].rstrip().endswith(self._specials):
            return len(text[:end].rstrip())
        follows = end + len(text[end:]) - len(text[end:].lstrip())
        token = next((t for t in self._specials if text.startswith(t, follows)), "")
        return follows + len(token) if token else end


def _plain(messages: Sequence[Message]) -> list[Message]:
    """Without the keys that are ours."""
    return [{k: v for k, v in m.items() if k != "weight"} for m in messages]
