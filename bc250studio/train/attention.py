"""Attention over a pass of many rows: every row sees itself only, no dense mask is ever built.

Registered through transformers' ``AttentionInterface`` as ``bc250studio``, so each architecture keeps its own
projections, norms and rotary code and calls us with q, k, v of shape [1, heads, positions, head size].
How the positions divide into rows stands in a ``Segments``, set around a pass with ``use``.

Four ways to compute it, one per kind of device:

``rows``    one causal ``scaled_dot_product_attention`` a row, exact lengths: the CPU's way.
``rungs``   rows of similar length share one batched causal call; lengths are rounded up to a rung of a short
            ladder, so the sizes stand still and a device graph can hold them. Tail padding under a causal
            call needs no mask: a real query never looks behind itself.
``math``    the same grouping with our own two-product attention (``math_attention``), in the base's type: all that
            gfx1013 has. ``math32`` converts to fp32 first, as transformers' math attention does.
``varlen``  torch's variable-length flash attention: one call a layer, the row borders are a tensor.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bc250studio.train import math_attention

NAME = "bc250studio"


@dataclass
class Slots:
    """Index tensors that carry rows into slots and back, for the ways ``rungs`` and ``math``.

    ``groups``: (slots, rung) per rung, in order; S = sum of their products. ``gather`` int64 [S]: the position
    whose q, k, v fill a slot element (an unused position for padding). ``spread`` int64 [S]: the position whose
    output gradient belongs to it (unused for padding and for repeated prefixes). ``back`` int64 [positions]: the
    slot element that holds a position's output; unused positions point at padding, whose gradients are zero.
    """

    groups: tuple[tuple[int, int], ...]
    gather: Tensor
    spread: Tensor
    back: Tensor
    rows: dict[int, math_attention.Rows] = field(default_factory=dict)
    """The same as rows of [positions * heads, size], by number of heads, for the way ``math``."""


@dataclass
class Segments:
    """How the positions of one pass divide into rows.

    ``prefix``: the first ``prefix`` positions are a beginning that all rows share (0: none); ``lengths`` are
    the rows' own positions behind it, in order. ``slots`` for the ways ``rungs`` and ``math``; ``queries``,
    ``keys`` (int32 borders), ``key_index`` and ``longest`` for ``varlen``.
    """

    way: str
    lengths: tuple[int, ...] = ()
    prefix: int = 0
    slots: Slots | None = None
    queries: Tensor | None = None
    keys: Tensor | None = None
    key_index: Tensor | None = None
    longest: int = 0
    masks: dict[int, Tensor] = field(default_factory=dict)


_current: list[Segments | None] = [None]


@contextmanager
def use(segments: Segments | None) -> Iterator[None]:
    """Attention inside this block follows ``segments``; keep it open until the backward pass is done."""
    before = _current[0]
    _current[0] = segments
    try:
        yield
    finally:
        _current[0] = before


def active() -> Segments | None:
    """The segments of the pass under way; None outside a pass of ours."""
    return _current[0]


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """What transformers calls per layer; returns [1, positions, heads, head size] and no weights."""
    segments = _current[0]
    if segments is None:
        raise RuntimeError("attention was called outside a pass; wrap the call in attention.use(segments)")
    if unused.get("s_aux") is not None:
        raise RuntimeError("attention sinks are not supported")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if softcap is not None and (segments.way == "varlen" or (segments.way == "rungs" and segments.slots is not None)):
        raise RuntimeError(f"attention by {segments.way} cannot cap scores")
    if segments.way == "varlen":
        output = _by_borders(segments, query, key, value, scale, sliding_window)
    elif segments.slots is None:
        output = _by_rows(segments, query, key, value, scale, sliding_window, softcap)
    elif segments.way == "rungs":
        output = _by_rungs(segments, query, key, value, scale, sliding_window)
    else:
        output = _by_products(segments, query, key, value, scale, sliding_window, softcap)
    return output, None


def register() -> str:
    """Make ``attention`` known to transformers; returns its name."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, attention)
    return NAME


# -- one call a row --------------------------------------------------------------------------------------------


def _by_rows(
    segments: Segments,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    prefix = segments.prefix
    sizes = [*([prefix] if prefix else []), *segments.lengths]
    filler = query.shape[2] - sum(sizes)
    if filler:
        sizes.append(filler)
    pieces = zip(query.split(sizes, 2), key.split(sizes, 2), value.split(sizes, 2), strict=True)
    outputs: list[Tensor] = []
    shared: tuple[Tensor, Tensor] | None = None
    for index, (q, k, v) in enumerate(pieces):
        if prefix and index == 0:
            shared = (k, v)
        elif shared is not None and not (filler and index == len(sizes) - 1):
            k, v = torch.cat((shared[0], k), 2), torch.cat((shared[1], v), 2)
        outputs.append(_one_row(segments, q, k, v, scale, window, softcap))
    return torch.cat(outputs, 2).transpose(1, 2)


def _one_row(
    segments: Segments, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, softcap: float | None
) -> Tensor:
    behind = k.shape[2] - q.shape[2]  # keys of the shared prefix come before the first query
    limited = window is not None and k.shape[2] > window
    if softcap is not None:
        mask = causal_mask(segments, q.shape[2], k.shape[2], window if limited else None, q.device)
        return math_attention.attend(q, k, v, scale, mask, softcap)
    if behind or limited:
        mask = causal_mask(segments, q.shape[2], k.shape[2], window if limited else None, q.device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)


def causal_mask(segments: Segments, queries: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """Boolean [queries, keys], true where a query sees a key; the last query sees the last key.

    One square mask per window serves every size of a pass as its lower right corner. ``prepare_masks`` makes them
    before a device graph is recorded: made while recording, they would lie in memory that other recordings reuse.
    """
    whole = segments.masks.get(window or 0)
    if whole is None or whole.shape[0] < keys:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(f"no mask of {keys} positions and window {window} was prepared")
        whole = segments.masks[window or 0] = _square_mask(max(keys, segments.longest), window, device)
    return whole[keys - queries : keys, :keys]


def _square_mask(size: int, window: int | None, device: torch.device) -> Tensor:
    place = torch.arange(size, device=device)
    distance = place[:, None] - place
    mask = distance >= 0
    return mask if window is None else mask & (distance < window)


def prepare_masks(segments: Segments, body: Any, device: torch.device) -> None:
    """Masks that the layers of ``body`` may ask for in a pass with these slots."""
    if segments.slots is None:
        return
    longest = max(rung for _, rung in segments.slots.groups)
    windows = {getattr(module, "sliding_window", None) for module in body.modules()}
    windows.add(getattr(body.config, "sliding_window", None))
    for window in {w if isinstance(w, int) and w < longest else None for w in windows} | {None}:
        causal_mask(segments, longest, longest, window, device)


# -- one call a rung -------------------------------------------------------------------------------------------


class _Rearrange(torch.autograd.Function):
    """``x.index_select(2, forward)`` whose backward is an ``index_select`` too: no atomic additions.

    ``repeated``: (groups, prefix) when the first ``prefix`` positions were gathered into every slot; their
    gradients are then summed over the slots.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Tensor, backward: Tensor, repeated: Any) -> Tensor:
        ctx.save_for_backward(backward)
        ctx.repeated = repeated
        return x.index_select(2, forward)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (backward,) = ctx.saved_tensors
        (d,) = gradients
        dx = d.index_select(2, backward)
        if ctx.repeated is not None:
            dx[:, :, : ctx.repeated[1]] = sum_prefix(d, *ctx.repeated).to(dx.dtype)
        return dx, None, None, None


def sum_prefix(d: Tensor, groups: tuple[tuple[int, int], ...], prefix: int) -> Tensor:
    """Gradients [1, heads, S, size] of slot elements -> fp32 sum over slots of the first ``prefix`` of each."""
    start = 0
    total = d.new_zeros((d.shape[0], d.shape[1], prefix, d.shape[3]), dtype=torch.float32)
    for count, rung in groups:
        part = d[:, :, start : start + count * rung].unflatten(2, (count, rung))[:, :, :, :prefix]
        total += part.sum(2, dtype=torch.float32)
        start += count * rung
    return total


def _by_rungs(
    segments: Segments,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    window: int | None,
) -> Tensor:
    slots = segments.slots
    assert slots is not None
    repeated = (slots.groups, segments.prefix) if segments.prefix else None
    # A prefix's query is answered once, in the first row's slot, so only keys and values are summed.
    q = _Rearrange.apply(query, slots.gather, slots.back, None)
    k = _Rearrange.apply(key, slots.gather, slots.back, repeated)
    v = _Rearrange.apply(value, slots.gather, slots.back, repeated)
    outputs, start = [], 0
    for count, rung in slots.groups:
        part = slice(start, start + count * rung)
        start += count * rung
        # [1, heads, count * rung, size] -> [count, heads, rung, size]
        a, b, c = (x[0, :, part].unflatten(1, (count, rung)).transpose(0, 1) for x in (q, k, v))
        limited = window if window is not None and rung > window else None
        if limited is not None:
            mask = causal_mask(segments, rung, rung, limited, q.device)
            y = F.scaled_dot_product_attention(a, b, c, attn_mask=mask, scale=scale, enable_gqa=True)
        else:
            y = F.scaled_dot_product_attention(a, b, c, is_causal=True, scale=scale, enable_gqa=True)
        outputs.append(y.transpose(0, 1).flatten(1, 2))
    gathered = torch.cat(outputs, 1)[None]
    return _Rearrange.apply(gathered, slots.back, slots.spread, None).transpose(1, 2)


# -- two products a rung ---------------------------------------------------------------------------------------


def _by_products(
    segments: Segments,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    slots = segments.slots
    assert slots is not None

    def mask(rung: int) -> Tensor:
        limited = window if window is not None and rung > window else None
        return causal_mask(segments, rung, rung, limited, query.device)

    wide = segments.way == "math32"
    spec = math_attention.Spec(slots.groups, slots.rows, segments.prefix, scale, softcap, wide, mask)
    return math_attention.packed(query, key, value, spec)


# -- one call a layer ------------------------------------------------------------------------------------------


def varlen_available(device: torch.device) -> str | None:
    """None when torch's variable-length attention works on ``device``, else why not."""
    if device.type != "cuda":
        return "it needs a CUDA device"
    if torch.version.hip is not None:
        return "it has no kernel for ROCm's gfx1013"
    try:
        from torch.nn.attention import varlen  # noqa: F401
    except ImportError:
        return f"torch {torch.__version__} does not have it"
    if torch.cuda.get_device_capability(device)[0] < 8:
        return "it needs compute capability 8.0"
    return None


@cache
def _parameters(function: Any) -> frozenset[str]:
    """Names of its parameters: they differ between torch 2.10 and 2.13."""
    return frozenset(inspect.signature(function).parameters)


def _by_borders(
    segments: Segments, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    known = _parameters(varlen_attn)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # [positions, heads, size]
    if segments.key_index is not None:
        k, v = k.index_select(0, segments.key_index), v.index_select(0, segments.key_index)
    options: dict[str, Any] = {}
    if q.shape[1] != k.shape[1]:
        if "enable_gqa" in known:
            options["enable_gqa"] = True
        else:
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    if "scale" in known:
        options["scale"] = scale
    elif abs(scale * q.shape[-1] ** 0.5 - 1.0) > 1e-6:
        q = q * (scale * q.shape[-1] ** 0.5)
    left = window - 1 if window is not None and segments.longest > window else -1
    if "window_size" in known:
        options["window_size"] = (left, 0)
    else:
        options["is_causal"] = True
    keys = segments.keys if segments.keys is not None else segments.queries
    return varlen_attn(q, k, v, segments.queries, keys, segments.longest, segments.longest, **options)[None]
