"""Attention from two matrix products and a softmax: what a GPU without fused attention has.

Keeps the base type throughout (softmax sums run in fp32 inside the kernel), shares each key head among its
query heads as one larger product instead of repeating keys, and keeps only q, k and v: the S x S
probabilities are computed again in the backward pass, two cheap products against rung**2 numbers a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor, softcap: float | None = None) -> Tensor:
    """softmax(cap(scale * q k^T) + mask) v.

    q: [n, heads, queries, size]; k, v: [n, key heads, keys, size]; mask: boolean [queries, keys], true = seen.
    Returns [n, heads, queries, size].
    """
    return _MathAttention.apply(q, k, v, scale, mask, softcap)


def _folded(x: Tensor, key_heads: int) -> Tensor:
    """[n, heads, s, size] -> [n, key heads, group * s, size]: the query heads of one key head in one product."""
    n, heads, s, size = x.shape
    return x.reshape(n, key_heads, heads // key_heads * s, size)


def _scores(q: Tensor, k: Tensor, scale: float, softcap: float | None) -> Tensor:
    scores = (q * scale) @ k.transpose(-1, -2)  # scaled before the product: fp16 scores stay small
    if softcap is not None:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    return scores


def _probabilities(scores: Tensor, mask: Tensor, s: int) -> Tensor:
    grouped = scores.unflatten(2, (-1, s))  # [n, key heads, group, s, keys]
    grouped.masked_fill_(~mask, float("-inf"))
    return torch.softmax(scores, -1)


class _MathAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor, softcap: float | None) -> Tensor:
        folded = _folded(q, k.shape[1])
        p = _probabilities(_scores(folded, k, scale, softcap), mask, q.shape[2])
        ctx.save_for_backward(q, k, v, mask)
        ctx.scale, ctx.softcap = scale, softcap
        return (p @ v).view(q.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        q, k, v, mask = ctx.saved_tensors
        folded, d = _folded(q, k.shape[1]), _folded(gradients[0], k.shape[1])
        scores = _scores(folded, k, ctx.scale, ctx.softcap)
        # d softcap: 1 - tanh^2, taken before the mask writes -inf over the scores.
        slope = None if ctx.softcap is None else 1.0 - (scores / ctx.softcap).square_()
        p = _probabilities(scores, mask, q.shape[2])
        dv = p.transpose(-1, -2) @ d
        ds = d @ v.transpose(-1, -2)
        # softmax backward: p * (ds - sum(ds * p)), the sum in fp32
        ds = torch.ops.aten._softmax_backward_data(ds, p, -1, ds.dtype)
        if slope is not None:
            ds *= slope
        dq = (ds @ k).mul_(ctx.scale)
        dk = (ds.transpose(-1, -2) @ folded).mul_(ctx.scale)
        return dq.view(q.shape), dk, dv, None, None, None
