"""One AdamW step on the flat parameters: unscale, norm, clip, step, loss scale. One host wait a step.

Everything is queued on the device; the host then reads loss, norm and overflow together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bc250studio.train.parameters import FlatParameters

FIRST_SCALE = 2.0**10
"""With a mean loss over labelled tokens, gradients of 16-bit activations sit near 1e-5 * this."""
GROWTH_INTERVAL = 200
"""Steps without overflow after which the scale doubles."""
LARGEST_SCALE = 2.0**16


@dataclass
class LossScale:
    """Dynamic loss scaling for fp16: halve on overflow (that step is skipped), double after a quiet while."""

    value: float = 1.0
    dynamic: bool = False
    quiet: int = 0

    def update(self, overflow: bool) -> None:
        """After every step."""
        if not self.dynamic:
            return
        if overflow:
            self.value = max(self.value / 2.0, 1.0)
            self.quiet = 0
            return
        self.quiet += 1
        if self.quiet >= GROWTH_INTERVAL and self.value < LARGEST_SCALE:
            self.value *= 2.0
            self.quiet = 0


@dataclass(frozen=True)
class Outcome:
    """What one optimiser step came to. ``norm`` is the gradient's, unscaled and before clipping."""

    loss: float
    norm: float
    skipped: bool


class Optimiser:
    """Fused AdamW (betas 0.9, 0.999) over ``FlatParameters``; decoupled weight decay."""

    def __init__(self, flat: FlatParameters, weight_decay: float, clip: float, fp16: bool) -> None:
        self.flat = flat
        self.clip = clip
        self.scale = LossScale(FIRST_SCALE if fp16 else 1.0, fp16)
        # The rate is a float set every step; 0.0 here is never used.
        self.adamw = torch.optim.AdamW([flat.values], lr=0.0, weight_decay=weight_decay, fused=True)
        # Made now, not in the first step: what is left of the memory can then be planned.
        self.adamw.state[flat.values] = {
            "step": torch.zeros((), dtype=torch.float32, device=flat.values.device),
            "exp_avg": torch.zeros_like(flat.values.data),
            "exp_avg_sq": torch.zeros_like(flat.values.data),
        }

    @torch.no_grad()
    def queue(self, learning_rate: float, loss: Tensor) -> Tensor:
        """Apply the accumulated gradient, without waiting; the result is for ``read``.

        ``loss``: fp32 scalar on the device, read together with the norm. A gradient that is not finite changes
        nothing: neither weights nor the optimiser's state.
        """
        flat = self.flat
        norm = torch.linalg.vector_norm(flat.gradient) / self.scale.value
        overflow = (~torch.isfinite(norm)).float()
        factor = torch.ones_like(norm)
        if self.clip > 0:
            factor = torch.clamp(self.clip / (norm + 1e-6), max=1.0)
        flat.gradient.mul_(torch.nan_to_num(factor / self.scale.value, nan=0.0))
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate
        self.adamw.grad_scale = None
        self.adamw.found_inf = overflow  # the fused kernel leaves everything as it is where this is 1
        self.adamw.step()
        flat.refresh()
        return torch.stack((loss, norm))

    def read(self, queued: Tensor) -> Outcome:
        """Wait for the device and see what the step came to; the loss scale follows."""
        seen_loss, seen_norm = queued.tolist()
        skipped = not math.isfinite(seen_norm)
        self.scale.update(skipped)
        return Outcome(seen_loss, seen_norm, skipped)

    def tensors(self) -> dict[str, Tensor]:
        """State for a checkpoint: flat fp32 tensors and the step count."""
        state = self.adamw.state.get(self.flat.values, {})
        kept = {"values": self.flat.values.data}
        if state:
            kept |= {"exp_avg": state["exp_avg"], "exp_avg_sq": state["exp_avg_sq"], "step": state["step"]}
        return kept

    def numbers(self) -> dict[str, Any]:
        """The scalars beside them."""
        return {"loss_scale": self.scale.value, "quiet": self.scale.quiet}

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Exactly what ``tensors`` and ``numbers`` gave."""
        values = self.flat.values
        values.data.copy_(tensors["values"])
        if "exp_avg" in tensors:
            self.adamw.state[values] = {
                "step": tensors["step"].to(values.device, torch.float32).clone(),
                "exp_avg": tensors["exp_avg"].to(values.device).clone(),
                "exp_avg_sq": tensors["exp_avg_sq"].to(values.device).clone(),
            }
        self.scale.value = float(numbers["loss_scale"])
        self.scale.quiet = int(numbers["quiet"])
        self.flat.refresh()
