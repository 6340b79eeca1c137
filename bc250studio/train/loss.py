"""Cross-entropy over labelled positions, in chunks, with the gradient made in the forward pass.

A vocabulary of 130,560 makes 1.6 GB of fp32 logits for 2,048 tokens, and as much again for their
gradient. Here the logits of one chunk exist at a time; each chunk's gradient with respect to the hidden
states is made at once, so nothing of the size of the vocabulary waits for the backward pass. Evaluation
uses the same function without the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bc250studio.train.adapters import add_product


@dataclass(frozen=True)
class Head:
    """From hidden states to logits: ``softcap * tanh(scale * (hidden @ weight.T + bias) / softcap)``.

    weight: [vocabulary, hidden]; bias: [vocabulary] or None. ``scale`` covers Cohere's ``logit_scale`` and
    Granite's ``1 / logits_scaling``; ``softcap`` Gemma's ``final_logit_softcapping``.
    """

    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None

    fused: bool = False
    """Use the Triton kernel (loss_triton.py) where the head has no soft cap."""

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 logits [n, vocabulary] of hidden states [n, hidden]."""
        logits = torch.nn.functional.linear(hidden, self.weight, self.bias).float()
        if self.scale != 1.0:
            logits *= self.scale
        if self.softcap is not None:
            logits.div_(self.softcap).tanh_().mul_(self.softcap)
        return logits


def head_of(model: Any, fused: bool = False) -> Head:
    """The output layer of a transformers model with the scaling its config names."""
    layer = model.get_output_embeddings()
    config = model.config
    scale = float(getattr(config, "logit_scale", None) or 1.0)
    if getattr(config, "logits_scaling", None):
        scale /= float(config.logits_scaling)
    softcap = getattr(config, "final_logit_softcapping", None)
    return Head(layer.weight, getattr(layer, "bias", None), scale, softcap, fused)


def chunks(count: int, chunk: int) -> list[tuple[int, int]]:
    """(start, size) of each chunk of ``count`` positions; sizes from the ladder chunk, chunk/2, chunk/4.

    Only three sizes of the output layer's products ever occur, so tuned kernels exist for all of them;
    the last chunk is filled up with masked positions (see ``padded``).
    """
    sizes = sorted({chunk, max(chunk // 2, 1), max(chunk // 4, 1)})
    parts, start = [], 0
    while count - start >= chunk:
        parts.append((start, chunk))
        start += chunk
    rest = count - start
    if rest > 0:
        parts.append((start, next(size for size in sizes if size >= rest)))
    return parts


def padded(count: int, chunk: int) -> int:
    """Labelled positions after filling the last chunk."""
    parts = chunks(count, chunk)
    return parts[-1][0] + parts[-1][1] if parts else 0


@torch.no_grad()
def chunked_cross_entropy(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    counted: Tensor,
    chunk: int,
    gradient: Tensor | None,
    factor: float = 1.0,
) -> Tensor:
    """Sum of the cross-entropies, an fp32 scalar on the device.

    hidden: [n, width], n whole chunks (``padded``); targets: int64 [n]; counted: fp32 [n], 1 where the
    position counts, 0 where it only fills the chunk. ``gradient`` [n, width], when given, is overwritten with
    d(sum * factor)/d(hidden) in hidden's type; ``factor`` holds the loss scale over the step's labelled tokens.
    """
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    one_chunk = _fused_chunk if head.fused and head.softcap is None else _chunk
    d: Tensor | None = None
    for start, size in chunks(len(targets), chunk):
        d = None  # the last chunk's logits go before the next ones come
        part = slice(start, start + size)
        rows = hidden[part]
        losses, d = one_chunk(rows, head, targets[part], counted[part], gradient is not None)
        total += losses
        if gradient is None or d is None:
            continue
        # The product runs in the base type with entries in [-1, 1]; the small factor is applied in
        # fp32 afterwards, so that fp16 never sees 1/N.
        torch.mul(d @ head.weight, factor * head.scale, out=gradient[part])
        if head.weight.grad is not None:  # full training
            add_product(head.weight.grad, d, rows, factor * head.scale)
        if head.bias is not None and head.bias.grad is not None:
            head.bias.grad.add_(d.sum(0, dtype=torch.float32), alpha=factor * head.scale)
    return total


def _chunk(rows: Tensor, head: Head, targets: Tensor, counted: Tensor, wanted: bool) -> tuple[Tensor, Tensor | None]:
    """(summed loss, counted * (softmax - onehot) * d softcap in the base's type) of one chunk."""
    target, weight = targets[:, None], counted[:, None]
    logits = head.logits(rows)
    maximum = logits.amax(-1, keepdim=True)
    chosen = logits.gather(1, target)
    # d tanh of the soft cap, taken before the logits are overwritten: 1 - (z/c)^2.
    slope = None
    if wanted and head.softcap is not None:
        slope = (logits / head.softcap).square_().neg_().add_(1.0)
    exponentials = logits.sub_(maximum).exp_()  # fp32: a sum over 10^5 terms
    normaliser = exponentials.sum(-1, keepdim=True)
    loss = ((normaliser.log() + maximum - chosen) * weight).sum()
    if not wanted:
        return loss, None
    d = exponentials.mul_(weight / normaliser)  # the weight also silences the rows that fill the chunk
    d.scatter_add_(1, target, -weight)
    if slope is not None:
        d.mul_(slope)
    return loss, d.to(rows.dtype)


def _fused_chunk(
    rows: Tensor, head: Head, targets: Tensor, counted: Tensor, wanted: bool
) -> tuple[Tensor, Tensor | None]:
    """The same by one Triton kernel, in place on the base type's logits."""
    from bc250studio.train.loss_triton import cross_entropy

    logits = torch.nn.functional.linear(rows, head.weight, head.bias)
    losses = cross_entropy(logits, targets, counted, head.scale, wanted)
    return losses.sum(), logits if wanted else None
