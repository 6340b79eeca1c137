"""Planted faults, each caught and each named, through a real llama-server: on the CPU and on a Vulkan device."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bc250studio.errors import StudioError
from bc250studio.models.gguf_file import GgufFile
from bc250studio.models.gguf_map import unpermute
from bc250studio.models.tokenizer import from_folder
from bc250studio.serve import bisect, prove, same_ids, server
from bc250studio.serve.prove import Proof
from bc250studio.serve.reference import Reference, Variant, read_reference
from bc250studio.serve.server import Plan
from tests.serve_tools import Case, case, server_binary, vulkan_or_skip

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture(params=["cpu", pytest.param("Vulkan0", marks=pytest.mark.vulkan)])
def device(request: pytest.FixtureRequest) -> str:
    if request.param != "cpu":
        vulkan_or_skip(server_binary())
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    server.stop_folder(tmp_path)


def proved(folder: Path, plan: Plan, trained: Case, with_ids: bool = False) -> Proof:
    """What the prove stage does, with the reference of ``trained``."""
    reference = read_reference(trained.reference)
    if plan.device != "cpu":  # a CPU-based Vulkan device takes a third of a second a token
        reference = fewer(reference, 12)
    started = server.start(folder, plan, server_binary())
    talk = server.steady_talk(started, plan, server_binary())
    proof, _ = prove.measure(talk, reference, prove.limit_for(plan.model, None), 0.97, False)
    if with_ids:
        found = same_ids.compare(talk, from_folder(trained.folder), [])
        proof.ids_equal, proof.ids_checked, proof.ids_note = found.equal, found.checked, found.note
        proof.closing_stops = found.closing_stops
    if not proof.passed:
        proof.cause = bisect.find_cause(proof, talk, reference, plan, server_binary(), trained.peft)
    return proof


def fewer(reference: Reference, count: int) -> Reference:
    """The same with ``count`` positions, evenly spread."""
    rows = prove.spread(reference.count, count)
    variants = {name: Variant(v.ids[rows], v.logp[rows]) for name, v in reference.variants.items()}
    return replace(reference, sequence=reference.sequence[rows], position=reference.position[rows], variants=variants)


def plan_of(made: Case, device: str) -> Plan:
    return Plan(model=made.base, adapter=made.adapter, device=device, context=256, warmup=False, threads=1, slots=1)


def changed(adapter: Path, out: Path, factor: float = 1.0, only: str = "") -> Path:
    """A copy of an adapter file with every B (or those of ``only``) multiplied."""
    blob = bytearray(adapter.read_bytes())
    with GgufFile(adapter) as file:
        for name, tensor in file.tensors.items():
            if name.endswith(".lora_b") and only in name:
                end = tensor.offset + tensor.size_bytes
                values = np.frombuffer(bytes(blob[tensor.offset : end]), np.float32) * np.float32(factor)
                blob[tensor.offset : end] = values.tobytes()
    out.write_bytes(blob)
    return out


def test_the_right_adapter_is_proved(folder: Path, device: str):
    made = case()
    proof = proved(folder, plan_of(made, device), made, with_ids=True)
    assert proof.passed, proof.as_dict()
    assert proof.adapter.mean_kl < 0.0005 and proof.adapter.top1 == 1.0
    assert proof.base is not None and proof.base.mean_kl < 0.0005
    assert proof.ids_equal and proof.ids_checked >= 7 and proof.closing_stops
    assert proof.change_expected is not None and proof.change_expected > 0.1


@pytest.mark.parametrize(("factor", "said"), [(4.0, "4"), (0.8, "0.8")])
def test_a_scale_that_is_off_is_named_with_its_factor(folder: Path, device: str, factor: float, said: str):
    made = case()
    plan = replace(plan_of(made, device), adapter=changed(made.adapter, folder / "scaled.gguf", factor))
    proof = proved(folder, plan, made)
    assert not proof.passed
    assert proof.cause.startswith("scale: the adapter acts ")
    assert float(proof.cause.split()[4]) == pytest.approx(factor, rel=0.06), proof.cause


def test_a_forgotten_permutation_is_named(folder: Path, device: str):
    made = case()
    assert bisect.reorder_qk(made.adapter, made.base, folder / "plain.gguf", unpermute)
    proof = proved(folder, replace(plan_of(made, device), adapter=folder / "plain.gguf"), made)
    assert not proof.passed
    assert proof.cause.startswith("permutation: the rows of q and k were not reordered"), proof.cause


def test_an_ignored_adapter_is_named(folder: Path, device: str):
    made = case()
    plan = replace(plan_of(made, device), adapter=changed(made.adapter, folder / "nothing.gguf", 0.0))
    proof = proved(folder, plan, made)
    assert not proof.passed
    assert proof.cause.startswith("the adapter is ignored"), proof.cause


def test_a_wrong_base_is_named(folder: Path, device: str):
    made, other = case(), case(seed=1)
    proof = proved(folder, replace(plan_of(made, device), model=other.base), made)
    assert not proof.passed
    assert proof.cause.startswith("base: ") and proof.cause.endswith("wrong base file"), proof.cause


def test_another_template_is_named(folder: Path, device: str):
    made = case()
    blob = made.base.read_bytes()
    assert blob.count(b"<|im_start|>assistant\n") == 1
    (folder / "other.gguf").write_bytes(blob.replace(b"<|im_start|>assistant\n", b"<|im_start|>assist4nt\n"))
    proof = proved(folder, replace(plan_of(made, device), model=folder / "other.gguf"), made, with_ids=True)
    assert proof.same and not proof.passed
    assert proof.cause.startswith("template or tokenizer: the templates render differently"), proof.cause


@pytest.mark.parametrize("what", ["model", "adapter"])
def test_a_truncated_file_is_named_before_anything_starts(folder: Path, device: str, what: str):
    made = case()
    whole = made.base if what == "model" else made.adapter
    short = folder / "short.gguf"
    shutil.copy(whole, short)
    with short.open("r+b") as file:
        file.truncate(whole.stat().st_size - 5000)
    with pytest.raises(StudioError, match="cut off: tensor"):
        server.start(folder, replace(plan_of(made, device), **{what: short}), server_binary())
    assert server.read(folder) is None


def test_a_file_that_differs_in_one_layer_is_named(folder: Path):
    made = case()
    plan = replace(plan_of(made, "cpu"), adapter=changed(made.adapter, folder / "x.gguf", -1.0, "blk.1.ffn_down"))
    proof = proved(folder, plan, made)
    assert not proof.passed
    assert "adapter file: blk.1.ffn_down.weight.lora_b differs" in proof.cause, proof.cause
