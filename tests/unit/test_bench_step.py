"""Sorting a profile into classes: by hand-made events, and on a real step of a tiny model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from bc250studio.bench.step_classes import PRODUCT, class_of, classify, flops_of, product_name


@dataclass
class Event:
    name: str
    cpu_parent: Any = None
    self_cpu_time_total: float = 0.0
    input_shapes: list[Any] = field(default_factory=list)
    kernels: list[Any] = field(default_factory=list)
    device_type: str = "DeviceType.CPU"
    time_range: Any = None


@dataclass
class Range:
    microseconds: float

    def elapsed_us(self) -> float:
        return self.microseconds


def test_products_are_named_by_layout_type_and_size() -> None:
    # x [m, k] @ W.t() with W [n, k]: the second factor is stored transposed.
    assert product_name([5, 3], [3, 1], [3, 7], [1, 3], "torch.float16") == "NT fp16 1x5x7x3"
    assert product_name([5, 7], [7, 1], [7, 3], [3, 1], "torch.float32") == "NN fp32 1x5x3x7"
    assert product_name([3, 5], [1, 3], [5, 7], [7, 1], "torch.bfloat16") == "TN bf16 1x3x7x5"
    assert product_name([2, 5, 3], [15, 3, 1], [2, 3, 7], [21, 7, 1], "torch.float32") == "NN fp32 2x5x7x3"
    assert flops_of("NN fp32 2x5x7x3") == 2 * 2 * 5 * 7 * 3


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["aten::mm", PRODUCT + "NT fp16 1x8x64x32", "LoraFunction"], "products NT fp16"),
        (["aten::mm", PRODUCT + "NT fp16 1x8x1000x32"], "loss: products"),
        (["aten::bmm", PRODUCT + "NN fp16 4x8x8x8", "_MathAttentionBackward"], "attention: products"),
        (["aten::_flash_attention_forward", "aten::scaled_dot_product_attention"], "attention"),
        (["aten::copy_", "aten::_to_copy", "aten::to"], "conversions"),
        (["aten::copy_", "aten::contiguous"], "copies"),
        (["aten::_fused_adamw_", "Optimizer.step#AdamW.step"], "optimiser"),
        (["aten::nll_loss_forward", "aten::cross_entropy_loss"], "loss"),
        (["aten::rsqrt", "RmsNorm"], "norms and activations"),
        (["aten::embedding"], "others"),
    ],
)
def test_classes_follow_the_names_around_an_event(names: list[str], wanted: str) -> None:
    event = None
    for name in reversed(names):
        event = Event(name, event)
    assert class_of(event, vocabulary=1000)[0] == wanted


def test_a_gpu_counts_kernels_a_cpu_its_own_time() -> None:
    @dataclass
    class Kernel:
        duration: float
        name: str = "gemm"

    around = Event(PRODUCT + "NT fp16 1x8x64x32")
    events = [around, Event("aten::mm", around, 5e6, kernels=[Kernel(1e6), Kernel(2e6)]), Event("aten::add", None, 1e6)]
    gpu = classify(events, on_gpu=True, vocabulary=1000)
    assert gpu.busy_s == 3.0 and gpu.launches == 2 and gpu.counts["products NT fp16"] == 1
    assert gpu.flops == flops_of("NT fp16 1x8x64x32")
    # A kernel of Triton's that no operation launched counts too; one that was launched counts once.
    events.append(Event("_cross_entropy_rows", device_type="DeviceType.CUDA", time_range=Range(4e6)))
    events.append(Event("gemm", device_type="DeviceType.CUDA", time_range=Range(2e6)))
    events.append(Event("aten::add", device_type="DeviceType.CUDA", time_range=Range(9e6)))
    gpu = classify(events, on_gpu=True, vocabulary=1000)
    assert gpu.seconds["loss"] == 4.0 and gpu.busy_s == 7.0 and gpu.launches == 3
    cpu = classify(events, on_gpu=False, vocabulary=1000)
    assert cpu.busy_s == 6.0
    table = cpu.table(step_s=10.0)
    assert table[-1] == {"name": "host gaps", "seconds": 4.0, "share": 0.4, "calls": 0, "tflops": None}
    assert sum(row["share"] for row in table) == pytest.approx(1.0)


def test_a_real_step_names_every_product_of_its_linears() -> None:
    import torch

    from bc250studio.bench.recipes_step import profile_step

    weight = torch.randn(48, 32)
    x = torch.randn(16, 32, requires_grad=True)

    def step() -> None:
        (x @ weight.t()).square().sum().backward()

    step()
    found = profile_step(step, torch.device("cpu"), vocabulary=1000)
    names = {entry["name"]: entry["calls"] for entry in found.products()}
    assert names == {"NT fp32 1x16x48x32": 1, "NN fp32 1x16x32x48": 1}
    assert found.flops == 2 * (2 * 16 * 48 * 32)
