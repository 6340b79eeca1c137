"""Before the first step: every kind of matrix product this run will compute, in its type, against float64.

A matrix kernel that computes wrongly does not crash; it trains nonsense for a night. So each product of a step
(forward, back to the input, gradients of A and B, the head) is computed once at this run's own sizes on the
device. A lattice of its result, one element in every 64 x 64 tile, is compared with float64 on the CPU.
About a second. ``kernels/proof.py`` is the thorough version; layers forbid importing it from here, and a child
process would load its own kernels and cost ten seconds of start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bc250studio.errors import JobFailed
from bc250studio.train.adapters import ADAPTER
from bc250studio.train.engine import Trainer

TILE = 64
"""Side of the squares of a result of which one element each is compared: no kernel's tile is smaller."""
CPU_ROWS = 128
"""Rows of the products on a CPU, whose kernels do not depend on how many there are."""
ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}

Multiply = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Product:
    """``left @ right`` as a step computes it: [m, k] x [k, n], either possibly a transposed view.

    ``kind`` for a person: ``y = x W^T``; ``layer``: the first layer that has this shape.
    """

    kind: str
    layer: str
    m: int
    n: int
    k: int
    left_transposed: bool
    right_transposed: bool
    dtype: torch.dtype

    @property
    def name(self) -> str:
        """``y = x W^T of model.layers.0.mlp.down_proj (2048 x 576 x 1536, float16)``."""
        return f"{self.kind} of {self.layer} ({self.m} x {self.n} x {self.k}, {str(self.dtype).removeprefix('torch.')})"


def products(trainer: Trainer) -> list[Product]:
    """One product of each kind, shape and type that a step computes; layers of equal shape are one."""
    found: dict[tuple[Any, ...], Product] = {}
    for product in _all(trainer):
        key = (product.kind, product.m, product.n, product.k, product.dtype)
        found.setdefault(key, product)
    return list(found.values())


def _all(trainer: Trainer) -> Iterator[Product]:
    on_cpu = trainer.device.type == "cpu"
    rows = min(trainer.tokens, CPU_ROWS) if on_cpu else trainer.tokens
    for name, module in trainer.model.named_modules():
        base = getattr(module, "base_layer", module)
        if not isinstance(base, nn.Linear) or base.weight.dtype not in ROUNDOFF:
            continue
        if base.weight is trainer.parts.head.weight:
            rows_here = min(trainer.train.loss_chunk, CPU_ROWS) if on_cpu else trainer.train.loss_chunk
        else:
            rows_here = rows
        if ".lora_" in name or name.endswith("base_layer"):
            continue
        yield from _of_layer(name.removeprefix("base_model.model."), module, base, rows_here, trainer.full)


def _of_layer(name: str, module: Any, base: nn.Linear, rows: int, full: bool) -> Iterator[Product]:
    out, inner, dtype = base.out_features, base.in_features, base.weight.dtype
    yield Product("y = x W^T", name, rows, out, inner, False, True, dtype)
    yield Product("dx = dy W", name, rows, inner, out, False, False, dtype)
    if full:
        yield Product("dW = dy^T x", name, out, inner, rows, True, False, dtype)
    adapter = getattr(module, "lora_A", None)
    if adapter is None or ADAPTER not in adapter:
        return
    rank = adapter[ADAPTER].weight.shape[0]
    yield Product("h = x A^T", name, rows, rank, inner, False, True, dtype)
    yield Product("y += h B^T", name, rows, out, rank, False, True, dtype)
    yield Product("dh = dy B", name, rows, rank, out, False, False, dtype)
    yield Product("dB = dy^T h", name, out, rank, rows, True, False, dtype)
    yield Product("dA = dh^T x", name, rank, inner, rows, True, False, dtype)
    yield Product("dx += dh A", name, rows, inner, rank, False, False, dtype)


def _stored(rows: int, columns: int, transposed: bool, dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    """Random [rows, columns]; transposed: a view of storage the other way round, as the step has it."""
    random = torch.Generator(device=device).manual_seed(seed)  # its own: the run's random numbers stay where they are
    shape = (columns, rows) if transposed else (rows, columns)
    made = torch.randn(shape, generator=random, device=device).to(dtype)
    return made.t() if transposed else made


def worst_error(product: Product, device: torch.device, multiply: Multiply = torch.mm) -> float:
    """Largest error of the compared elements over what rounding explains; at most 1 is right, not finite is inf.

    The bound is 4u(|C| + its typical size) + 2(k+1) 2^-24 (|A||B|): output rounding, with room for libraries that
    add partial sums in the output's type, and the worst case of k fp32 multiply-adds (Higham, section 3.5).
    """
    left = _stored(product.m, product.k, product.left_transposed, product.dtype, device, 1)
    right = _stored(product.k, product.n, product.right_transposed, product.dtype, device, 2)
    result = multiply(left, right)
    rows, columns = _lattice(product.m, 3).to(device), _lattice(product.n, 4).to(device)
    seen = result.index_select(0, rows).index_select(1, columns).cpu().double()
    if not bool(torch.isfinite(seen).all()):
        return float("inf")
    a, b = left.index_select(0, rows).cpu().double(), right.index_select(1, columns).cpu().double()
    exact, magnitude = a @ b, a.abs() @ b.abs()
    rounding = 4 * ROUNDOFF[product.dtype] * (exact.abs() + product.k**0.5)
    return float(((seen - exact).abs() / (rounding + 2 * (product.k + 1) * 2.0**-24 * magnitude)).max())


def _lattice(size: int, seed: int) -> Tensor:
    """One random index of every ``TILE``; the first and last of all among them."""
    random = torch.Generator().manual_seed(seed)
    starts = torch.arange(0, size, TILE)
    chosen = starts + (torch.rand(len(starts), generator=random) * (size - starts).clamp(max=TILE)).long()
    return torch.cat((chosen, torch.tensor([0, size - 1]))).unique()


def check(trainer: Trainer, multiply: Multiply = torch.mm) -> str:
    """Compute and compare them all; returns what was checked, as a sentence.

    Raises:
        JobFailed: names the first product that is wrong.
    """
    began = time.perf_counter()
    wanted = products(trainer)
    worst = 0.0
    for product in wanted:
        try:
            error = worst_error(product, trainer.device, multiply)
        except torch.OutOfMemoryError:
            continue  # the step itself is planned to fit; this product is checked by the first losses
        if not error <= 1.0:
            raise JobFailed(
                f"The matrix product {product.name} computes wrongly on {trainer.device}: its error is {error:.3g} "
                "times what rounding explains. Set kernels.library to stock, or see: bc250studio kernels prove"
            )
        worst = max(worst, error)
    return (
        f"{len(wanted)} kinds of matrix products agree with float64 (worst at {100 * worst:.0f} % of the bound, "
        f"{time.perf_counter() - began:.1f} s)."
    )
