"""Attention from two matrix products and a softmax: what a GPU without fused attention has.

Keeps the base type throughout (softmax sums run in fp32 inside the kernel), shares each key head among its query
heads as one larger product instead of repeating keys, and keeps only q, k and v: the S x S probabilities are computed
again in the backward pass, two cheap products against rung**2 numbers a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class Rows:
    """Row numbers in a [positions * heads, size] view, for one number of heads; int32.

    ``gather`` [S * heads]: the row for each slot element, a slot's heads one after the other, so that products need no
    copy. ``spread``: the same for output gradients. ``back`` [positions * heads]: the slot element of each row.
    """

    gather: Tensor
    spread: Tensor
    back: Tensor


@dataclass(frozen=True)
class Spec:
    """What ``packed`` needs besides q, k, v. ``rows``: by number of heads; ``mask(rung)``: boolean [rung, rung]."""

    groups: tuple[tuple[int, int], ...]
    rows: dict[int, Rows]
    prefix: int
    scale: float
    softcap: float | None
    wide: bool
    mask: Callable[[int], Tensor]


def packed(q: Tensor, k: Tensor, v: Tensor, spec: Spec) -> Tensor:
    """Causal attention of every slot. q: [1, heads, positions, size]; k, v: [1, key heads, positions, size].

    Returns [1, positions, heads, size]. ``spec.wide`` computes scores and softmax in fp32.
    """
    return _Packed.apply(q, k, v, spec)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor, softcap: float | None = None) -> Tensor:
    """softmax(cap(scale * q k^T) + mask) v for one group of equal sizes.

    q: [n, heads, queries, size]; k, v: [n, key heads, keys, size]; mask: boolean [queries, keys], true = seen.
    Returns [n, heads, queries, size].
    """
    return _Attend.apply(q, k, v, scale, mask, softcap)


# -- the formula, on folded operands: q [batch, group * queries, size], k and v [batch, keys, size] ----------------


def _probabilities(q: Tensor, k: Tensor, mask: Tensor, softcap: float | None) -> tuple[Tensor, Tensor | None]:
    """(softmax of masked scores, slope of the cap). q is scaled already, so fp16 scores stay small."""
    scores = torch.bmm(q, k.transpose(1, 2))
    slope = None
    if softcap is not None:
        scores.div_(softcap).tanh_()
        slope = 1.0 - scores.square()
        scores.mul_(softcap)
    scores.unflatten(1, (-1, mask.shape[0])).masked_fill_(~mask, float("-inf"))
    return torch.softmax(scores, -1), slope


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, d: Tensor, mask: Tensor, softcap: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(d of the scaled q, d k, d v)."""
    p, slope = _probabilities(q, k, mask, softcap)
    dv = torch.bmm(p.transpose(1, 2), d)
    # softmax backward: p * (ds - sum(ds * p)), the sum in fp32
    ds = torch.ops.aten._softmax_backward_data(torch.bmm(d, v.transpose(1, 2)), p, -1, p.dtype)
    if slope is not None:
        ds *= slope
    return torch.bmm(ds, k), torch.bmm(ds.transpose(1, 2), q), dv


# -- all slots of a pass ---------------------------------------------------------------------------------------


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, spec: Spec) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.spec = spec
        heads, positions, size = q.shape[1:]
        out = None
        for place, (a, b, c), mask in _slots(q, k, v, spec):
            if out is None:
                out = a.new_empty((len(spec.rows[heads].gather), size))
            p, _ = _probabilities(a, b, mask, spec.softcap)
            torch.bmm(p, c, out=out[place].view(a.shape))
        assert out is not None
        return out.index_select(0, spec.rows[heads].back).to(q.dtype).view(1, positions, heads, size)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        q, k, v = ctx.saved_tensors
        spec: Spec = ctx.spec
        heads, positions, size = q.shape[1:]
        few = k.shape[1]
        d = gradients[0].reshape(positions * heads, size).index_select(0, spec.rows[heads].spread)
        dq = torch.empty_like(d)
        dk, dv = (d.new_empty((len(spec.rows[few].gather), size)) for _ in range(2))
        for place, (a, b, c), mask in _slots(q, k, v, spec):
            found = _gradients(a, b, c, d[place].view(a.shape).to(a.dtype), mask, spec.softcap)
            few_place = slice(place.start // heads * few, place.stop // heads * few)
            for target, where, value in zip((dq, dk, dv), (place, few_place, few_place), found, strict=True):
                target[where] = value.reshape(-1, size)
        dq = dq.mul_(spec.scale).index_select(0, spec.rows[heads].back)
        whole = [x.index_select(0, spec.rows[few].back).view(positions, few, size) for x in (dk, dv)]
        if spec.prefix:
            for x, slots in zip(whole, (dk, dv), strict=True):
                x[: spec.prefix] = _sum_prefix(slots, spec, few).to(x.dtype)
        back = (dq.view(positions, heads, size), *whole)
        return (*(x.transpose(0, 1)[None] for x in back), None)


def _slots(q: Tensor, k: Tensor, v: Tensor, spec: Spec) -> Iterator[tuple[slice, tuple[Tensor, ...], Tensor]]:
    """Per group: its rows among the query rows, folded (scaled q, k, v), mask."""
    heads, few, size = q.shape[1], k.shape[1], q.shape[3]

    def gathered(x: Tensor) -> Tensor:
        # position-major rows: a view of what the projection wrote, no copy
        rows = x[0].transpose(0, 1).reshape(-1, size).index_select(0, spec.rows[x.shape[1]].gather)
        return rows.float() if spec.wide else rows

    all_q, all_k, all_v = gathered(q).mul_(spec.scale), gathered(k), gathered(v)
    start = 0
    for count, rung in spec.groups:
        stop = start + count * rung
        place, few_place = slice(start * heads, stop * heads), slice(start * few, stop * few)
        folded = all_q[place].view(count * few, heads // few * rung, size)
        yield place, (folded, *(x[few_place].view(count * few, rung, size) for x in (all_k, all_v))), spec.mask(rung)
        start = stop


def _sum_prefix(d: Tensor, spec: Spec, few: int) -> Tensor:
    """Gradients of the shared beginning, summed over the slots that saw it: fp32 [prefix, key heads, size]."""
    start = 0
    total = d.new_zeros((spec.prefix, few, d.shape[1]), dtype=torch.float32)
    for count, rung in spec.groups:
        part = d[start * few : (start + count * rung) * few].view(count, few, rung, -1)[:, :, : spec.prefix]
        total += part.sum(0, dtype=torch.float32).transpose(0, 1)
        start += count * rung
    return total


# -- one group -------------------------------------------------------------------------------------------------


def _folded(x: Tensor, key_heads: int) -> Tensor:
    """[n, heads, s, size] -> [n * key heads, group * s, size]: the query heads of one key head in one product."""
    n, heads, s, size = x.shape
    return x.reshape(n * key_heads, heads // key_heads * s, size)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor, softcap: float | None) -> Tensor:
        ctx.save_for_backward(q, k, v, mask)
        ctx.scale, ctx.softcap = scale, softcap
        few = k.shape[1]
        p, _ = _probabilities(_folded(q, few) * scale, _folded(k, few), mask, softcap)
        return torch.bmm(p, _folded(v, few)).view(q.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        q, k, v, mask = ctx.saved_tensors
        few = k.shape[1]
        a, b, c, d = (_folded(x, few) for x in (q, k, v, gradients[0]))
        dq, dk, dv = _gradients(a * ctx.scale, b, c, d, mask, ctx.softcap)
        return dq.mul_(ctx.scale).view(q.shape), dk.view(k.shape), dv.view(v.shape), None, None, None
