"""Examples to token ids with labels.

The ids before an answer must be the ids of its prompt alone, because that is what the server gets. Text does not
always fall apart like that: a prompt's last newline melts with one that the answer begins with, or splits differently
before another character. Such an answer gets a row of its own, cut at the border.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from bc250studio.data.mask import Example
from bc250studio.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Encoding

_LOOK_BACK_TOKENS = 64


@dataclass(slots=True)
class Encoded:
    """Token ids of an example and which of them are learnt; one BOS where the server adds one, never labelled."""

    example: Example
    ids: list[int]
    labelled: list[bool]


class Encoder:
    """Encodes examples for one tokenizer; the ends of prompts are mostly the same few texts, so they are cached."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._whole = frozenset(tokenizer.backend.get_added_tokens_decoder())
        self._ids_of = lru_cache(4096)(tokenizer.encode)

    def encode(self, examples: Sequence[Example]) -> list[list[Encoded]]:
        """For every example the rows it becomes: one, and one more for each answer whose border is not clean."""
        encodings = self.tokenizer.encode_batch([example.text for example in examples])
        return [self._rows(example, encoding) for example, encoding in zip(examples, encodings, strict=True)]

    def _rows(self, example: Example, encoding: Encoding) -> list[Encoded]:
        ids = encoding.ids
        labels = [False] * len(ids)
        apart: list[Encoded] = []
        for index, (begin, end) in enumerate(example.spans):
            first = _token_at(encoding, begin, len(example.text), len(ids))
            if begin and not self._is_served(example.text, begin, ids, first, encoding):
                apart.append(self._by_itself(example, index))
                continue
            last = _token_at(encoding, end, len(example.text), len(ids))
            labels[first:last] = [True] * (last - first)
        if apart and not any(labels):
            return apart
        return [*apart, self._finish(example, ids, labels)]

    def _is_served(self, text: str, border: int, ids: list[int], first: int, encoding: Encoding) -> bool:
        """Are the ids before the border those of the prompt alone?

        Tokens that are matched whole part a text for good, so only what follows the last of them is compared.
        """
        begin = first
        while begin > 0 and ids[begin - 1] not in self._whole and first - begin < _LOOK_BACK_TOKENS:
            begin -= 1
        if begin == first:  # the prompt ends with such a token
            return True
        reach = encoding.token_to_chars(begin)
        if reach is None or first - begin >= _LOOK_BACK_TOKENS:
            return self.tokenizer.encode(text[:border]) == ids[:first]
        if begin == 0 or not self.tokenizer.adds_prefix:
            return self._ids_of(text[reach[0] : border]) == ids[begin:first]
        return self.tokenizer.encode(text[:border]) == ids[:first]

    def _by_itself(self, example: Example, index: int) -> Encoded:
        """The answer behind the ids of its prompt, both encoded by themselves."""
        begin, end = example.spans[index]
        turn = example.turns[index] if example.turns else len(example.messages) - 1
        alone = Example(example.text[:end], [(begin, end)], example.messages[: turn + 1], example.tools, [turn])
        prompt, answer = self.tokenizer.encode(example.text[:begin]), self._continued(example.text[begin:end])
        return self._finish(alone, prompt + answer, [False] * len(prompt) + [True] * len(answer))

    def _continued(self, text: str) -> list[int]:
        """Ids of a text that goes on behind another one: without the space that some tokenizers put in front."""
        if not self.tokenizer.adds_prefix:
            return self.tokenizer.encode(text)
        mark = self.tokenizer.encode("\n")
        ids = self.tokenizer.encode("\n" + text)
        return ids[len(mark) :] if ids[: len(mark)] == mark else self.tokenizer.encode(text)

    def _finish(self, example: Example, ids: list[int], labels: list[bool]) -> Encoded:
        with_bos = self.tokenizer.with_bos(ids)
        if len(with_bos) > len(ids):
            labels = [False, *labels]
        if labels:
            labels[0] = False
        return Encoded(example, with_bos, labels)


def _token_at(encoding: Encoding, position: int, length: int, count: int) -> int:
    """Index of the first token at or behind a character."""
    if position >= length:
        return count
    token = encoding.char_to_token(position)
    if token is not None:
        reach = encoding.token_to_chars(token)
        return token if reach is None or reach[0] >= position else token + 1
    # The character belongs to no token (a normaliser took it away): the next one that does.
    return next((index for index, (begin, _) in enumerate(encoding.offsets) if begin >= position), count)
