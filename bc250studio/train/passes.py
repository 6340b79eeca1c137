"""One pass: hidden states through the model's own layers, chunked loss, gradients back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bc250studio.train import attention
from bc250studio.train.feed import Batch
from bc250studio.train.loss import Head, chunked_cross_entropy


def hidden_states(body: Any, batch: Batch) -> Tensor:
    """Last hidden states [B, L, width], final norm included, from the architecture's own forward."""
    inputs = {"input_ids": batch.ids, "position_ids": batch.positions, "use_cache": False}
    if batch.mask is not None:
        inputs["attention_mask"] = batch.mask
    return body(**inputs).last_hidden_state


def loss_and_gradient(
    hidden: Tensor, head: Head, batch: Batch, chunk: int, factor: float, gradient: Tensor | None
) -> Tensor:
    """Summed loss of a pass; ``gradient`` fp [positions + 1, width] receives d(loss * factor)/d(hidden).

    Its last row takes what belongs to the entries that only fill a chunk, which is zero.
    """
    flat = hidden.detach().view(-1, hidden.shape[-1])
    chosen = flat.index_select(0, batch.index.clamp(max=flat.shape[0] - 1))
    if gradient is None:
        return chunked_cross_entropy(chosen, head, batch.targets, batch.counted, chunk, None)
    part = torch.empty_like(chosen)
    total = chunked_cross_entropy(chosen, head, batch.targets, batch.counted, chunk, part, factor)
    gradient.zero_()
    gradient.index_copy_(0, batch.index, part)
    return total


def forward_backward(body: Any, head: Head, batch: Batch, chunk: int, factor: float) -> Tensor:
    """Add this pass's gradients to the trainable parameters' ``grad``; returns the summed loss."""
    with attention.use(batch.segments):
        hidden = hidden_states(body, batch)
        gradient = hidden.new_empty((hidden.shape[0] * hidden.shape[1] + 1, hidden.shape[-1]))
        total = loss_and_gradient(hidden, head, batch, chunk, factor, gradient)
        hidden.backward(gradient[:-1].view(hidden.shape))
    return total


@torch.no_grad()
def forward_loss(body: Any, head: Head, batch: Batch, chunk: int) -> Tensor:
    """Summed loss of a pass without gradients."""
    with attention.use(batch.segments):
        hidden = hidden_states(body, batch)
        return loss_and_gradient(hidden, head, batch, chunk, 1.0, None)
