"""All trainable numbers in one flat fp32 tensor, with one flat gradient and one flat copy in the base's type.

An adapter of a 42-layer model is 588 small matrices. As one tensor, zeroing, unscaling, the norm, clipping, the
AdamW step and the cast are one kernel each, and a checkpoint is three tensors. The model's own parameters
become views, so PEFT and transformers see nothing unusual.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bc250studio.train.adapters import ADAPTER, fast_layers

ALIGNMENT = 64
"""Elements; every matrix starts at a multiple, as matrix kernels want aligned rows."""


class FlatParameters:
    """``values`` and ``gradient``: fp32 [n] on the model's device. ``names`` in order, for checkpoints."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        found = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not found:
            raise ValueError("nothing is trainable")
        device = found[0][1].device
        self.names = [name for name, _ in found]
        self.parameters = [p for _, p in found]
        starts, total = [], 0
        for _, p in found:
            starts.append(total)
            total += -(-p.numel() // ALIGNMENT) * ALIGNMENT
        self.count = sum(p.numel() for p in self.parameters)
        self.values = nn.Parameter(torch.zeros(total, dtype=torch.float32, device=device))
        self.gradient = torch.zeros_like(self.values.data)
        self.values.grad = self.gradient
        self._cast: Tensor | None = None
        place: dict[int, tuple[int, torch.Size]] = {}
        for start, p in zip(starts, self.parameters, strict=True):
            view = slice(start, start + p.numel())
            self.values.data[view].copy_(p.data.reshape(-1))
            p.data = self.values.data[view].view(p.shape)
            p.grad = self.gradient[view].view(p.shape)
            place[id(p)] = (start, p.shape)
        if dtype is not torch.float32:
            self._cast = torch.zeros(total, dtype=dtype, device=device)
        source = self.values.data if self._cast is None else self._cast
        for layer in fast_layers(model):
            pair = []
            for p in (layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight):
                start, shape = place[id(p)]
                pair.append(source[start : start + p.numel()].view(shape))
            layer.__dict__["_cast"] = tuple(pair)
        self.refresh()

    @property
    def tensors(self) -> list[Tensor]:
        """The flat tensors that everything else is a view of."""
        return [self.values.data, self.gradient, *([self._cast] if self._cast is not None else [])]

    @torch.no_grad()
    def refresh(self) -> None:
        """Bring the copy in the base's type up to date; once after every optimiser step."""
        if self._cast is not None:
            self._cast.copy_(self.values.data)

    def zero_gradient(self) -> None:
        """Once before every optimiser step."""
        self.gradient.zero_()

    def state(self) -> dict[str, Tensor]:
        """Name -> fp32 matrix, for checkpoints and tests."""
        return {name: p.data for name, p in zip(self.names, self.parameters, strict=True)}

    def gradients(self) -> dict[str, Tensor]:
        """Name -> fp32 gradient."""
        return {name: p.grad for name, p in zip(self.names, self.parameters, strict=True) if p.grad is not None}


def trainable_count(model: Any) -> int:
    """Number of trainable weights."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
