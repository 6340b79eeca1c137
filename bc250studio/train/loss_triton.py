"""Cross-entropy of a chunk in one Triton kernel: a read for the normaliser, a read and a write for the gradient.

Plain torch passes some eight times over the fp32 logits of a chunk; this kernel works on the base type's logits in
place, with fp32 sums, so a chunk needs a third of the memory as well. Same formula, same rounding of the result.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


# Triton types its arguments itself.
@triton.jit
def _cross_entropy_kernel(
    logits,
    stride,
    targets,
    weights,
    losses,
    vocabulary,
    scale,
    GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    weight = tl.load(weights + row)
    chosen = tl.load(logits + target).to(tl.float32) * scale
    columns = tl.arange(0, BLOCK)
    # Running maximum and sum: one read gives the log of the sum of exponentials.
    maximum = -float("inf")
    total = 0.0
    for start in range(0, vocabulary, BLOCK):
        inside = start + columns < vocabulary
        x = tl.load(logits + start + columns, mask=inside, other=-float("inf")).to(tl.float32) * scale
        larger = tl.maximum(maximum, tl.max(x))
        total = total * tl.exp(maximum - larger) + tl.sum(tl.exp(x - larger))
        maximum = larger
    normaliser = maximum + tl.log(total)
    tl.store(losses + row, (normaliser - chosen) * weight)
    if GRADIENT:
        for start in range(0, vocabulary, BLOCK):
            inside = start + columns < vocabulary
            x = tl.load(logits + start + columns, mask=inside, other=-float("inf")).to(tl.float32) * scale
            p = tl.exp(x - normaliser)
            p = tl.where(start + columns == target, p - 1.0, p) * weight
            tl.store(logits + start + columns, p.to(logits.dtype.element_ty), mask=inside)


def cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor, scale: float, gradient: bool) -> Tensor:
    """Weighted losses fp32 [n] of logits [n, vocabulary]; with ``gradient``, logits become weight * (softmax - onehot).

    ``scale`` multiplies the logits first (the gradient is with respect to the scaled ones).
    """
    losses = torch.empty(len(targets), dtype=torch.float32, device=logits.device)
    _cross_entropy_kernel[(len(targets),)](
        logits,
        logits.stride(0),
        targets,
        weights,
        losses,
        logits.shape[1],
        scale,
        GRADIENT=gradient,
        BLOCK=_BLOCK,
        num_warps=16,
    )
    return losses
