"""Norm and gated MLP as single autograd functions that keep little and convert nothing.

Eager code keeps every intermediate of a norm (fp32 copies, squares) and of silu(gate) * up; here a norm keeps its
input and one number a row, an MLP keeps gate, up and the rank-sized products. What is missing is cheap to compute
again: elementwise work, a fiftieth of the products.

Where Triton works, Liger's kernels do the elementwise parts (``Elementwise``); otherwise plain torch does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bc250studio.train.adapters import add_product


class RmsNorm(torch.autograd.Function):
    """weight * x / rms(x), statistics in fp32; rounding as in Llama (before the weight) or Gemma (after 1 + weight).

    Source of the gradient: d x = r * (g - x * r^2 * mean(g * x)) with g = dy * weight, r = 1 / rms.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, gemma: bool) -> Tensor:
        wide = x.float()
        r = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, r)
        ctx.gemma = gemma
        if gemma:
            return (wide * r * (1.0 + weight.float())).to(x.dtype)
        return weight * (wide * r).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        x, weight, r = ctx.saved_tensors
        dy, wide = gradients[0].float(), x.float()
        g = dy * (1.0 + weight.float() if ctx.gemma else weight.float())
        dx = None
        if ctx.needs_input_grad[0]:
            dx = (r * (g - wide * (r * r * (g * wide).mean(-1, keepdim=True)))).to(x.dtype)
        dw = None
        if ctx.needs_input_grad[1]:
            dw = (dy * wide * r).flatten(0, -2).sum(0).to(weight.dtype)
        return dx, dw, None, None


class Projection(NamedTuple):
    """One linear layer of an MLP: frozen weight, fp32 masters, their copies in the base's type, scale.

    Without an adapter, ``A`` to ``b`` are None.
    """

    W: Tensor
    A: Tensor | None = None
    B: Tensor | None = None
    a: Tensor | None = None
    b: Tensor | None = None
    scale: float = 0.0

    def apply(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """(y, x a^T) for x [n, in]."""
        y = x @ self.W.t()
        if self.a is None or self.b is None:
            return y, None
        h = x @ self.a.t()
        y.addmm_(h, self.b.t(), alpha=self.scale)
        return y, h

    def back(self, d: Tensor, x: Tensor, h: Tensor | None, into: Tensor | None, wanted: bool = True) -> Tensor | None:
        """Gradient of x (added to ``into`` when given); the adapter's gradients are added to its masters."""
        dx = None
        if wanted:
            dx = d @ self.W if into is None else into.addmm_(d, self.W)
        if self.a is not None and self.b is not None and h is not None:
            assert self.A is not None and self.B is not None
            g = d @ self.b
            add_product(self.B.grad, d, h, self.scale)
            add_product(self.A.grad, g, x, self.scale)
            if dx is not None:
                dx.addmm_(g, self.a, alpha=self.scale)
        return dx


@dataclass(frozen=True)
class Elementwise:
    """act(gate) * up and its gradient. ``kind``: ``silu``, ``gelu`` or ``gelu_tanh``; ``liger``: use Liger's kernel."""

    kind: str
    liger: bool = False

    def product(self, gate: Tensor, up: Tensor) -> Tensor:
        """act(gate) * up."""
        if self.liger:
            from liger_kernel.ops.swiglu import swiglu_forward

            return swiglu_forward(gate, up)[-1]
        return self._act(gate).mul_(up)

    def gradients(self, gate: Tensor, up: Tensor, d: Tensor, product: Tensor | None) -> tuple[Tensor, Tensor]:
        """(d gate, d up). ``gate``, ``up`` and ``d`` may be overwritten."""
        if self.liger:
            from liger_kernel.ops.swiglu import swiglu_backward

            dgate, dup = swiglu_backward(gate, up, d)[-2:]
            return dgate, dup
        d_act = d * up
        if self.kind == "silu":
            dgate = torch.ops.aten.silu_backward(d_act, gate)
        else:
            approximate = "tanh" if self.kind == "gelu_tanh" else "none"
            dgate = torch.ops.aten.gelu_backward(d_act, gate, approximate=approximate)
        return dgate, d.mul_(self._act(gate))

    def _act(self, gate: Tensor) -> Tensor:
        if self.kind == "silu":
            return F.silu(gate)
        return F.gelu(gate, approximate="tanh" if self.kind == "gelu_tanh" else "none")


class GatedMlp(torch.autograd.Function):
    """down(act(gate(x)) * up(x)) with adapters on any of the three.

    Keeps x, gate, up and the rank-sized products; ``keep`` also keeps the activation product (plan ``none``).
    The masters are passed on their own so that autograd knows something here learns.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gate: Projection,
        up: Projection,
        down: Projection,
        act: Elementwise,
        keep: bool,
        *masters: Tensor,
    ) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        g, hg = gate.apply(rows)
        u, hu = up.apply(rows)
        product = act.product(g, u)
        y, hd = down.apply(product)
        ctx.save_for_backward(rows, g, u, hg, hu, hd, product if keep else None)
        ctx.parts, ctx.act, ctx.shape = (gate, up, down), act, x.shape
        return y.view(*x.shape[:-1], y.shape[-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        x, g, u, hg, hu, hd, product = ctx.saved_tensors
        gate, up, down = ctx.parts
        d = gradients[0].reshape(-1, down.W.shape[0])
        if product is None and down.a is not None:
            product = ctx.act.product(g, u)
        dproduct = down.back(d, product, hd, None)
        del product
        dg, du = ctx.act.gradients(g, u, dproduct, None)
        wanted = ctx.needs_input_grad[0]
        dx = gate.back(dg, x, hg, None, wanted)
        dx = up.back(du, x, hu, dx, wanted)
        masters = (None,) * (len(ctx.needs_input_grad) - 6)
        return (dx.view(ctx.shape) if dx is not None else None, None, None, None, None, None, *masters)


class GatedProduct(torch.autograd.Function):
    """act(gate) * up alone, keeping gate and up: for MLPs whose weights learn too."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, act: Elementwise) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.act = act
        return act.product(gate, up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        gate, up = ctx.saved_tensors
        # The function may overwrite its arguments; autograd still owns these.
        return (*ctx.act.gradients(gate.clone(), up.clone(), gradients[0].clone(), None), None)
