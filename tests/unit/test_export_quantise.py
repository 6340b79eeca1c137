"""Quantised files: the same types and bytes as llama.cpp's own quantiser, whose results are recorded as digests."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bc250studio.errors import BadInput
from bc250studio.export.merged import quantise
from bc250studio.export.recipe import RECIPES, choose_types, quantisable, recipe_named
from bc250studio.models.gguf_file import GgufFile
from tests.export_tools import SYNTHETIC, importance_for, synthetic_base, write_imatrix
from tests.tiny import demo_gguf

RECORDED = json.loads((Path(__file__).resolve().parents[1] / "data" / "quantise-digests.json").read_text())
SMOLLM2_BYTES = ("q4_k_m", "q8_0", "q2_k")
"""Of the demo model these are compared byte by byte (the others by type, to save time)."""


def summary(path: Path) -> dict[str, object]:
    """As scripts/record_quantise_digests.py writes it."""
    with GgufFile(path) as file:
        found = {
            name: [tensor.type_name, hashlib.sha256(file.raw(tensor).tobytes()).hexdigest()[:16]]
            for name, tensor in file.tensors.items()
        }
    whole = hashlib.sha256(json.dumps(sorted(found.items())).encode()).hexdigest()[:16]
    return {"types": dict(sorted(Counter(kind for kind, _ in found.values()).items())), "digest": whole}


@pytest.mark.parametrize("name", [name for name in SYNTHETIC if name != "llama-80"])
def test_bytes_equal_llama_cpps(name: str, tmp_path: Path) -> None:
    base = synthetic_base(tmp_path / "base.gguf", **SYNTHETIC[name])
    for label, recorded in RECORDED[name].items():
        exported = quantise(base, tmp_path / f"{label}.gguf", label)
        assert summary(exported.path) == recorded, label
        assert exported.types == recorded["types"]


def test_bytes_equal_with_an_importance_matrix(tmp_path: Path) -> None:
    base = synthetic_base(tmp_path / "base.gguf", **SYNTHETIC["llama-2"])
    imatrix = write_imatrix(tmp_path / "imatrix.dat", importance_for(base))
    for label, recorded in RECORDED["llama-2 with importance"].items():
        exported = quantise(base, tmp_path / f"{label}.gguf", label, imatrix=imatrix)
        assert summary(exported.path) == recorded, label
        with GgufFile(exported.path) as file:
            assert file.get("quantize.imatrix.file") == "imatrix.dat"


@pytest.mark.parametrize("label", SMOLLM2_BYTES)
def test_smollm2_bytes(label: str, tmp_path: Path) -> None:
    exported = quantise(demo_gguf(), tmp_path / "out.gguf", label)
    assert summary(exported.path) == RECORDED["smollm2-135m"][label]
    with GgufFile(exported.path) as file:
        assert file.get("general.file_type") == RECIPES[label].file_type
    if label == "q4_k_m":
        assert any("do not divide" in note for note in exported.notes)
        assert any("second time" in note for note in exported.notes)


def test_types_of_eighty_layers(tmp_path: Path) -> None:
    with GgufFile(synthetic_base(tmp_path / "base.gguf", **SYNTHETIC["llama-80"])) as base:
        for label, recorded in RECORDED["llama-80"].items():
            types, _ = choose_types(base, base.tensors.values(), recipe_named(label))
            assert dict(Counter(kind.name.lower() for kind in types.values())) == recorded["types"], label


def test_smollm2_types_of_every_recipe() -> None:
    with GgufFile(demo_gguf()) as base:
        for label, recorded in RECORDED["smollm2-135m"].items():
            types, _ = choose_types(base, base.tensors.values(), recipe_named(label))
            assert dict(Counter(kind.name.lower() for kind in types.values())) == recorded["types"], label


def test_names_and_refusals(tmp_path: Path) -> None:
    assert recipe_named("Q4_K") is RECIPES["q4_k_m"] and recipe_named("fp16") is RECIPES["f16"]
    with pytest.raises(BadInput, match="Did you mean 'q4_k_m'"):
        recipe_named("q4_km")
    base = synthetic_base(tmp_path / "base.gguf")
    with pytest.raises(BadInput, match="importance"):
        quantise(base, tmp_path / "out.gguf", "q2_k_s")
    with pytest.raises(BadInput, match="base itself"):
        quantise(base, base, "q8_0")
    other = write_imatrix(tmp_path / "other.dat", {"blk.0.attn_q.weight": np.ones(64, np.float32)})
    with pytest.raises(BadInput, match="another model"):
        quantise(base, tmp_path / "out.gguf", "q4_k_m", imatrix=other)
    assert not (tmp_path / "out.gguf").exists() and not list(tmp_path.glob(".*"))


def test_norms_and_biases_are_left_alone(tmp_path: Path) -> None:
    with GgufFile(synthetic_base(tmp_path / "base.gguf", experts=4)) as base:
        kept = {name for name, tensor in base.tensors.items() if not quantisable(tensor)}
    assert all("norm" in name or "ffn_gate_inp" in name for name in kept) and len(kept) == 7
