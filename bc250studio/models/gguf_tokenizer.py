"""Build a fast tokenizer from a GGUF's metadata, giving the ids llama.cpp gives.

A GGUF names its splitter (``tokenizer.ggml.pre``) but does not carry it; the expressions below are the ones the
models' own tokenizer.json files use, keyed by llama.cpp's name. Token types: 1 normal, 2 unknown, 3 control,
4 user defined, 5 unused, 6 byte (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bc250studio.errors import BadInput, clean
from bc250studio.models.gguf_header import GgufHeader

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|{_CASED_TAIL}"
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_CASED_TAIL}"
)
# Expressions applied one after the other (each splits what the ones before it left whole), and the names using them.
_SPLITTERS: list[tuple[list[str], str]] = [
    ([r"\p{N}", _GPT2], "smollm starcoder refact command-r codeshell exaone minerva-7b"),
    ([_GPT2], "gpt-2 gpt2 phi-2 olmo mpt jina-es jina-de default"),
    ([_LLAMA3], "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral lfm2 dbrx smaug-bpe midm-2.0"),
    ([_QWEN2], "qwen2 deepseek-r1-qwen megrez hunyuan stablelm2 kormo"),
    ([_QWEN35], "qwen35"),
    ([_TEKKEN], "tekken"),
    ([_GPT4O], "gpt-4o llama4 kanana2"),
]
_SPLITS = {name: splits for splits, names in _SPLITTERS for name in names.split()}
_BOS_BY_DEFAULT = {"llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2", "tekken", "minerva-7b"}


def build(header: GgufHeader) -> Backend:
    """A ``tokenizers.Tokenizer`` from the metadata of a GGUF file.

    Raises:
        BadInput: no vocabulary in the file, or a kind of tokenizer or splitter that is not known here.
    """
    kind, tokens = header.get("tokenizer.ggml.model"), header.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise BadInput(f"{header.path} carries no vocabulary; use the model's Hugging Face folder instead.")
    if kind == "gpt2":
        backend = _byte_level(header, tokens)
    elif kind == "llama":
        backend = _sentencepiece(header, tokens)
    else:
        raise BadInput(
            f"{header.path} has a tokenizer of kind {clean(kind, 40)!r}, which cannot be rebuilt from GGUF;"
            " use the model's Hugging Face folder instead."
        )
    _add_special(backend, tokens, header.get("tokenizer.ggml.token_type") or [])
    return backend


def adds_bos(header: GgufHeader) -> bool:
    """Does llama.cpp put a BOS in front of a text of this model?"""
    explicit = header.get("tokenizer.ggml.add_bos_token")
    if isinstance(explicit, bool):
        return explicit
    if header.get("tokenizer.ggml.model") == "llama":
        return True
    return header.get("tokenizer.ggml.pre") in _BOS_BY_DEFAULT


def _byte_level(header: GgufHeader, tokens: list[str]) -> Backend:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    pre = header.get("tokenizer.ggml.pre", "default")
    if pre not in _SPLITS:
        raise BadInput(
            f"{header.path} splits words the way {clean(pre, 40)!r} does, which is not known here;"
            " use the model's Hugging Face folder instead."
        )
    merges = [tuple(m.split(" ", 1)) for m in header.get("tokenizer.ggml.merges") or [] if " " in m]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    usable = [(a, b) for a, b in merges if a in vocabulary and b in vocabulary and a + b in vocabulary]
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=usable, ignore_merges=pre in _BOS_BY_DEFAULT))
    splits = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in _SPLITS[pre]]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(header: GgufHeader, tokens: list[str]) -> Backend:
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = header.get("tokenizer.ggml.scores") or [0.0] * len(tokens)
    types = header.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = header.get("tokenizer.ggml.unknown_token_id", 0)
    merges = _merges_of(tokens, scores, types, vocabulary)
    fallback = "<0x00>" in vocabulary
    model = models.BPE(
        vocab=vocabulary, merges=merges, unk_token=tokens[unknown], fuse_unk=True, byte_fallback=fallback
    )
    backend = Tokenizer(model)
    steps: list[Any] = [normalizers.Replace(" ", "▁")]
    prefix = header.get("tokenizer.ggml.add_space_prefix", True)
    if prefix:  # llama.cpp writes the space after every special token too, as this normaliser does
        steps.insert(0, normalizers.Prepend("▁"))
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        + ([decoders.Strip(" ", 1, 0)] if prefix else [])
    )
    return backend


def _merges_of(
    tokens: list[str], scores: list[float], types: list[int], vocabulary: dict[str, int]
) -> list[tuple[str, str]]:
    """The merges that a sentencepiece vocabulary implies: best score first, then the order of the vocabulary."""
    found = []
    for index, token in enumerate(tokens):
        if types[index] != 1 or len(token) < 2:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                found.append((-scores[index], index, vocabulary[left], left, right))
    return [(left, right) for *_, left, right in sorted(found)]


def _add_special(backend: Backend, tokens: list[str], types: Iterable[int]) -> None:
    from tokenizers import AddedToken

    control, plain = [], []
    for token, kind in zip(tokens, types, strict=False):
        if kind == 3 and token:
            control.append(AddedToken(token, normalized=False, special=True))
        elif kind == 4 and token:
            plain.append(AddedToken(token, normalized=False, special=False))
    backend.add_special_tokens(control)
    backend.add_tokens(plain)
