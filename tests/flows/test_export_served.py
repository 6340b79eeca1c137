"""Real llama-server against PEFT: log-probabilities of adapters and merged files on tiny models with f32 bases."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from bc250studio.export.adapter import write_adapter, write_pairs
from bc250studio.export.merged import write_merged
from bc250studio.export.peft_adapter import read_adapter
from bc250studio.models.find import find
from bc250studio.models.gguf_file import GgufFile
from tests.export_tools import LlamaServer, largest_difference, logprobs, make_adapter, tiny

pytestmark = [pytest.mark.server, pytest.mark.slow]

LIMIT = 1e-3
IDS = [504, 2365, 282, 260, 1234, 45, 999, 3021, 11, 7890]
FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"]
OPTIONS: dict[str, dict[str, Any]] = {
    "rslora": {"use_rslora": True},
    "alpha": {"alpha_pattern": {r"layers\.0\.self_attn\.(q|k|qkv)_proj": 64, "down_proj": 3}},
    "rank": {"rank_pattern": {"o_proj": 2, r"layers\.1\.mlp\.down_proj": 12}},
}
COMBINATIONS = [c for n in range(4) for c in itertools.combinations(OPTIONS, n)]


def adapter_of(family: str, folder: Path, out: Path, names: tuple[str, ...], **more: Any) -> tuple[Path, Any]:
    """A random adapter with the named options."""
    options: dict[str, Any] = {"r": 8, "lora_alpha": 16, "std": 0.03 if "gemma" in family else 0.12}
    for name in names:
        options |= OPTIONS[name]
    return make_adapter(folder, out, **(options | more))


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_of_every_scale(family: str, tmp_path: Path) -> None:
    folder, base = tiny(family)
    files, references = [], []
    for names in COMBINATIONS:
        adapter, model = adapter_of(family, folder, tmp_path / ("-".join(names) or "plain"), names)
        with GgufFile(base) as file:
            files.append(write_pairs(read_adapter(adapter), file, family, tmp_path / f"{adapter.name}.gguf").path)
        references.append(logprobs(model, IDS))
        with model.disable_adapter():
            untouched = logprobs(model, IDS)
    with LlamaServer(base, files) as server:
        assert largest_difference(server, untouched, IDS) < LIMIT
        for index, names in enumerate(COMBINATIONS):
            effect = abs(references[index] - untouched).max()
            assert effect > 100 * LIMIT, "the adapter does nothing, so the test would show nothing"
            assert largest_difference(server, references[index], IDS, index) < LIMIT, (family, names)


# Every family with every combination takes three minutes more: BC250STUDIO_ALL=1.
EVERY = FAMILIES if os.environ.get("BC250STUDIO_ALL") else FAMILIES[:1]


@pytest.mark.parametrize(
    ("family", "names"),
    [(family, names) for family in EVERY for names in COMBINATIONS]
    + [(family, COMBINATIONS[-1]) for family in FAMILIES if family not in EVERY],
)
def test_merged_files(family: str, names: tuple[str, ...], tmp_path: Path) -> None:
    folder, base = tiny(family)
    adapter, model = adapter_of(family, folder, tmp_path / "adapter", names)
    merged = write_merged(adapter, find(str(folder)), base, tmp_path / "merged.gguf")
    reference = logprobs(model, IDS)
    with LlamaServer(merged.path) as server:
        assert largest_difference(server, reference, IDS[:4]) < LIMIT


@pytest.mark.parametrize(
    "options",
    [
        {"use_dora": True},
        {"modules_to_save": ["norm"]},
        {"target_modules": ["q_proj", "lm_head"]},
        {"target_modules": ["q_proj", "embed_tokens"]},
        {"target_modules": ["v_proj"], "trainable_token_indices": [504, 282]},
    ],
    ids=lambda options: "-".join(options),
)
def test_merged_files_of_what_cannot_be_an_adapter(options: dict[str, Any], tmp_path: Path) -> None:
    folder, base = tiny("llama", tie_word_embeddings=True)
    adapter, model = adapter_of("llama", folder, tmp_path / "adapter", (), **options)
    merged = write_merged(adapter, find(str(folder)), base, tmp_path / "merged.gguf")
    with LlamaServer(merged.path) as server:
        assert largest_difference(server, logprobs(model, IDS), IDS[:4]) < LIMIT


@pytest.mark.parametrize("module", ["lm_head", "embed_tokens"])
def test_untied_head_and_embedding_are_adapters(module: str, tmp_path: Path) -> None:
    folder, base = tiny("llama")
    adapter, model = adapter_of("llama", folder, tmp_path / "adapter", (), target_modules=["q_proj", module])
    out = write_adapter(adapter, find(str(folder)), tmp_path / "adapter.gguf", "f32", base)
    with LlamaServer(base, [out.path]) as server:
        assert largest_difference(server, logprobs(model, IDS), IDS[:4], 0) < LIMIT


def test_f16_and_q8_0_adapters(tmp_path: Path) -> None:
    folder, base = tiny("llama")
    adapter, model = adapter_of("llama", folder, tmp_path / "adapter", ("rslora",))
    kinds = {"f16": {"f16": 28}, "q8_0": {"f16": 14, "q8_0": 14}, "bf16": {"bf16": 28}}
    for outtype, types in kinds.items():
        out = write_adapter(adapter, find(str(folder)), tmp_path / f"{outtype}.gguf", outtype, base)
        assert out.types == types
    reference = logprobs(model, IDS)
    with LlamaServer(base, [tmp_path / f"{outtype}.gguf" for outtype in kinds]) as server:
        assert largest_difference(server, reference, IDS[:4], 0) < 0.05
        assert largest_difference(server, reference, IDS[:4], 1) < 0.5
