"""Examples to token ids with labels.

The ids before an answer must be the ids of its prompt alone, because that is what the server gets. Where a token
would reach over the border (the prompt's last newline melting with the answer's first), the text is cut there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bc250studio.data.mask import Example
from bc250studio.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Encoding


def encode(tokenizer: Tokenizer, examples: Sequence[Example]) -> list[tuple[list[int], list[bool]]]:
    """(ids, labelled) of every example; one BOS where the server adds one, never labelled."""
    encodings = tokenizer.encode_batch([example.text for example in examples])
    return [_labelled(tokenizer, example, encoding) for example, encoding in zip(examples, encodings, strict=True)]


def _labelled(tokenizer: Tokenizer, example: Example, encoding: Encoding) -> tuple[list[int], list[bool]]:
    ids = encoding.ids
    labels = [False] * len(ids)
    for begin, end in example.spans:
        first, clean_cut = _token_at(encoding, begin, len(example.text), len(ids))
        if not clean_cut and not tokenizer.adds_prefix:
            return _in_pieces(tokenizer, example)
        last, _ = _token_at(encoding, end, len(example.text), len(ids))
        labels[first:last] = [True] * (last - first)
    return _finish(tokenizer, ids, labels)


def _token_at(encoding: Encoding, position: int, length: int, count: int) -> tuple[int, bool]:
    """Index of the first token at or behind a character, and whether a token begins exactly there."""
    if position >= length:
        return count, True
    token = encoding.char_to_token(position)
    if token is None:  # the character belongs to no token; look for the next one that does
        for index, (begin, _) in enumerate(encoding.offsets):
            if begin >= position:
                return index, True
        return count, True
    reach = encoding.token_to_chars(token)
    return token, reach is None or reach[0] == position


def _in_pieces(tokenizer: Tokenizer, example: Example) -> tuple[list[int], list[bool]]:
    """The text cut at the borders of the answers and every piece encoded by itself."""
    ids: list[int] = []
    labels: list[bool] = []
    at = 0
    for begin, end in example.spans:
        for text, flag in ((example.text[at:begin], False), (example.text[begin:end], True)):
            piece = tokenizer.encode(text) if text else []
            ids += piece
            labels += [flag] * len(piece)
        at = end
    rest = tokenizer.encode(example.text[at:]) if at < len(example.text) else []
    return _finish(tokenizer, ids + rest, labels + [False] * len(rest))


def _finish(tokenizer: Tokenizer, ids: list[int], labels: list[bool]) -> tuple[list[int], list[bool]]:
    with_bos = tokenizer.with_bos(ids)
    if len(with_bos) > len(ids):
        labels = [False, *labels]
    if labels:
        labels[0] = False
    return with_bos, labels
