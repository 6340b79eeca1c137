"""Tokens that a fine-tune added to the vocabulary, written into the tokenizer of the merged file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bc250studio.errors import BadInput, clean
from bc250studio.export.gguf_write import Fields
from bc250studio.models.gguf_file import F32, I32, STRING, U32, GgufFile

TENSORS = ("token_embd.weight", "output.weight")
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
"""llama.cpp's token types."""


def extend(fields: Fields, base: GgufFile, trained: Path | None, size: int) -> None:
    """Bring the file's token list to ``size`` entries with the added tokens of the trained folder's tokenizer.

    Raises:
        BadInput: the folder has no tokenizer, or its tokens do not continue the base's.
    """
    tokens = list(base.get("tokenizer.ggml.tokens") or [])
    where = (trained or Path()) / "tokenizer.json"
    try:
        listed = json.loads(where.read_text("utf-8"))["added_tokens"]
        added = {int(entry["id"]): (str(entry["content"]), bool(entry.get("special"))) for entry in listed}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"Tokens were added to the vocabulary ({size} instead of {len(tokens)}), but {clean(where)} does not say "
            "which; save the tokenizer into the adapter's folder."
        ) from error
    kinds: list[Any] = list(base.get("tokenizer.ggml.token_type") or [1] * len(tokens))
    scores: list[Any] | None = base.get("tokenizer.ggml.scores")
    for index in range(len(tokens), size):
        text, special = added.get(index, (f"[PAD{index}]", None))
        if text in tokens:
            raise BadInput(
                f"{clean(where)}: the added token {clean(text, 60)} exists already in the base's vocabulary."
            )
        tokens.append(text)
        kinds.append(UNUSED if special is None else CONTROL if special else USER_DEFINED)
    fields.put_array("tokenizer.ggml.tokens", STRING, tokens)
    fields.put_array("tokenizer.ggml.token_type", I32, kinds)
    if scores is not None:
        fields.put_array("tokenizer.ggml.scores", F32, [*scores, *[0.0] * (size - len(scores))])
    if f"{base.arch}.vocab_size" in base.fields:
        fields.put(f"{base.arch}.vocab_size", U32, size)
