"""Toy GGUF models: one random layer, a real or a made-up vocabulary, any template; quick to load."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from bc250studio.models.find import find
from bc250studio.models.gguf_header import read_header

HIDDEN, HEADS, FEED = 64, 4, 128
_FREE = ["<repo_name>", "<reponame>", "<file_sep>", "<filename>", "<gh_stars>", "<issue_start>", "<issue_comment>"]


def byte_level(
    path: Path, template: str | None, *, names: dict[str, str] | None = None, bos: str | None = None,
    eos: str = "<|im_end|>", add_bos: bool = False, pre: str = "smollm",
) -> Path:  # fmt: skip
    """A model with SmolLM2's vocabulary, some of its unused special tokens renamed (``names``: old -> new)."""
    source = read_header(find("demo:smollm2-135m").gguf)  # type: ignore[arg-type]
    tokens = [(names or {}).get(t, t) for t in source.get("tokenizer.ggml.tokens")]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(source.get("tokenizer.ggml.token_type"))
    writer.add_token_merges(source.get("tokenizer.ggml.merges"))
    writer.add_bos_token_id(tokens.index(bos) if bos else 1)
    writer.add_eos_token_id(tokens.index(eos))
    writer.add_add_bos_token(add_bos)
    writer.add_add_space_prefix(False)
    return _finish(writer, path, len(tokens), template)


def sentencepiece(path: Path, template: str | None, words: list[str], *, add_space_prefix: bool) -> Path:
    """A model with a made-up sentencepiece vocabulary: bytes, then ``words`` and their beginnings, by rank."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    tokens = special + [f"<0x{value:02X}>" for value in range(256)]
    types = [3, 3, 3, 2, 3, 3] + [6] * 256
    pieces: dict[str, None] = dict.fromkeys(["▁"])
    for word in words:
        word = word.replace(" ", "▁")
        for end in range(2, len(word) + 1):
            pieces.setdefault(word[:end])
    for character in sorted({c for piece in pieces for c in piece}):
        pieces.setdefault(character)
    tokens += list(pieces)
    types += [1] * len(pieces)
    scores = [0.0] * 262 + [-float(rank) for rank in range(len(pieces))]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(add_space_prefix)
    return _finish(writer, path, len(tokens), template)


def _finish(writer: gguf.GGUFWriter, path: Path, vocabulary: int, template: str | None) -> Path:
    if template is not None:
        writer.add_chat_template(template)
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocabulary)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    random = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        values = np.ones(shape, np.float32) if len(shape) == 1 else random.normal(0, 0.05, shape).astype(np.float16)
        writer.add_tensor(name, values)

    add("token_embd.weight", vocabulary, HIDDEN)
    add("output_norm.weight", HIDDEN)
    for name in ("attn_norm", "ffn_norm"):
        add(f"blk.0.{name}.weight", HIDDEN)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        add(f"blk.0.{name}.weight", HIDDEN, HIDDEN)
    for name in ("ffn_gate", "ffn_up"):
        add(f"blk.0.{name}.weight", FEED, HIDDEN)
    add("blk.0.ffn_down.weight", HIDDEN, FEED)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
