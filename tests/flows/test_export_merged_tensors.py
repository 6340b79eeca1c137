"""Every kind of fine-tune, merged into an f32 base, tensor by tensor against PEFT's own merge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bc250studio.errors import BadInput
from bc250studio.export.merged import write_merged
from bc250studio.export.way import way_of
from bc250studio.models.find import find
from bc250studio.models.gguf_file import GgufFile
from bc250studio.models.gguf_map import read_model
from tests.export_tools import make_adapter, tiny

PATTERNS = {"alpha_pattern": {"(q|qkv)_proj": 64, "down_proj": 3}, "rank_pattern": {"o_proj": 2}, "use_rslora": True}
KINDS: dict[str, dict[str, Any]] = {
    "patterns": PATTERNS,
    "dora": {"use_dora": True, **PATTERNS},
    "norms": {"modules_to_save": ["norm", "input_layernorm"]},
    "tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [5, 2, 4000]},
    "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "head": {"target_modules": ["q_proj", "lm_head"]},
    "whole head": {"target_modules": ["k_proj"], "modules_to_save": ["lm_head"]},
    "whole both": {"target_modules": ["k_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
}


def merged_weights(tuned: Any) -> dict[str, np.ndarray]:
    """The weights PEFT's merge gives; where it adapts one of two tied tensors, what its forward pass computes.

    PEFT's own merge writes into the shared tensor there and so changes both (its warning says as much).
    """
    import torch

    model = tuned.get_base_model()
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    parted = {}
    with torch.no_grad():
        for name, module in (("lm_head.weight", head), ("model.embed_tokens.weight", embedding)):
            if hasattr(module, "get_delta_weight") and model.config.tie_word_embeddings:
                base = module.get_base_layer().weight
                parted = {"lm_head.weight": base.clone(), "model.embed_tokens.weight": base.clone()}
                parted[name] = base + module.get_delta_weight("default")
        merged = tuned.merge_and_unload()
        return {name: value.float().numpy() for name, value in (merged.state_dict() | parted).items()}


def merge_and_compare(folder: Path, base: Path, tmp_path: Path, **options: Any) -> float:
    """Largest difference between our merged file and PEFT's merged model, both in transformers' layout."""
    adapter, tuned = make_adapter(folder, tmp_path / "adapter", r=8, lora_alpha=16, **options)
    before = (adapter / "adapter_model.safetensors").read_bytes()
    out = write_merged(adapter, find(str(folder)), base, tmp_path / "merged.gguf").path
    assert (adapter / "adapter_model.safetensors").read_bytes() == before
    reference = merged_weights(tuned)
    worst = 0.0
    with GgufFile(out) as file:
        for name, array in read_model(file, reference):
            assert array.shape == reference[name].shape, name
            worst = max(worst, float(np.abs(array - reference[name]).max()))
    return worst


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "mistral", "smollm3"])
def test_patterns_of_every_family(family: str, tmp_path: Path) -> None:
    folder, base = tiny(family)
    assert merge_and_compare(folder, base, tmp_path, **PATTERNS) < 1e-5


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "patterns"])
def test_kinds_that_only_a_merge_can_hold(kind: str, tied: bool, tmp_path: Path) -> None:
    folder, base = tiny("llama", tie_word_embeddings=tied)
    assert merge_and_compare(folder, base, tmp_path, **KINDS[kind]) < 1e-5
    expected = "adapter" if kind in ("embedding", "head") and not tied else "merged"
    assert way_of(tmp_path / "adapter", find(str(folder)), base).kind == expected


@pytest.mark.parametrize("options", [{"bias": "lora_only"}, {"lora_bias": True}])
def test_biases(options: dict[str, Any], tmp_path: Path) -> None:
    folder, base = tiny("qwen2")
    options = {"target_modules": ["q_proj", "k_proj"], **options}
    assert merge_and_compare(folder, base, tmp_path, **options) < 1e-5
    found = way_of(tmp_path / "adapter", find(str(folder)), base)
    assert found.kind == "merged" and any("bias" in reason for reason in found.reasons)


def test_norms_of_gemma_are_shifted(tmp_path: Path) -> None:
    folder, base = tiny("gemma3", tie_word_embeddings=True)
    assert merge_and_compare(folder, base, tmp_path, modules_to_save=["norm", "q_norm"]) < 1e-5


def test_dora_of_gemma_and_phi(tmp_path: Path) -> None:
    for family in ("gemma2", "phi3"):
        folder, base = tiny(family)
        assert merge_and_compare(folder, base, tmp_path / family, use_dora=True) < 1e-5


@pytest.mark.parametrize("options", [{"modules_to_save": ["lm_head"]}, {"target_modules": ["q_proj", "embed_tokens"]}])
def test_gemma2_cannot_part_head_and_embedding(options: dict[str, Any], tmp_path: Path) -> None:
    folder, base = tiny("gemma2")
    with pytest.raises(BadInput, match="always uses the embedding as the output"):
        merge_and_compare(folder, base, tmp_path, **options)


def test_full_fine_tune(tmp_path: Path) -> None:
    from tests.tiny import tiny_model

    _, base = tiny("llama")
    other = tiny_model("llama", seed=7, folder=tmp_path / "tuned")
    out = write_merged(other, None, base, tmp_path / "merged.gguf")
    from tests.export_tools import base_gguf

    direct = base_gguf(other, tmp_path / "direct.gguf")
    with GgufFile(out.path) as ours, GgufFile(direct) as wanted:
        assert ours.tensors.keys() == wanted.tensors.keys()
        assert all((ours.array(name) == wanted.array(name)).all() for name in ours.tensors)
    with GgufFile(base) as before, GgufFile(out.path) as after:
        assert before.fields == {k: v for k, v in after.fields.items() if k in before.fields}


def test_added_tokens_enter_the_tokenizer(tmp_path: Path) -> None:
    import peft
    import torch
    import transformers

    folder, base = tiny("llama", tie_word_embeddings=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<|board|>"], special_tokens=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    options = peft.LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])
    tuned = peft.get_peft_model(model, options)
    with torch.no_grad():
        for parameter in tuned.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.1)
    tuned.save_pretrained(tmp_path / "adapter")
    tokenizer.save_pretrained(tmp_path / "adapter")
    assert way_of(tmp_path / "adapter", find(str(folder)), base).kind == "merged"
    out = write_merged(tmp_path / "adapter", find(str(folder)), base, tmp_path / "merged.gguf").path
    reference = {name: value.numpy() for name, value in tuned.merge_and_unload().state_dict().items()}
    with GgufFile(out) as file:
        assert file.get("tokenizer.ggml.tokens")[len(tokenizer) - 1] == "<|board|>"
        assert len(file.get("tokenizer.ggml.tokens")) == len(file.get("tokenizer.ggml.token_type")) == len(tokenizer)
        assert file.get("llama.vocab_size") == len(tokenizer)
        for name, array in read_model(file, reference):
            assert np.abs(array - reference[name]).max() < 1e-5, name
