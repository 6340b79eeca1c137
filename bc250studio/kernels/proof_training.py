"""The second half of a proof: gradients, norms and fifty optimiser steps against the CPU, and a fixed-seed loss run.

Imported by proof.py only; torch is imported inside the functions.
"""

from __future__ import annotations

import math
from typing import Any

LIMITS = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 5e-2}
"""Largest relative error (norm) of a gradient after three layers in that type, against float64."""
STEPS_LIMIT = 2e-3
"""Largest relative difference of a loss within fifty FP32 optimiser steps, against float64 on the CPU."""


def training_checks(device: Any, quick: bool = False) -> list[dict[str, Any]]:
    """Each check as ``{name, passed, measured, limit}``; ``fault`` where one could not be computed."""
    import torch

    types = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    checks = []
    for name, dtype in types.items():
        checks.append(
            _check(
                f"gradients of an adapted gated layer in {name}", LIMITS[name], lambda d=dtype: _gradients(device, d)
            )
        )
        checks.append(_check(f"norm layers in {name}", LIMITS[name], lambda d=dtype: _norms(device, d)))
    if not quick:
        checks.append(_check("50 AdamW steps in fp32", STEPS_LIMIT, lambda: _fifty_steps(device)))
    return checks


def _check(name: str, limit: float, measure: Any) -> dict[str, Any]:
    try:
        measured = float(measure())
    except RuntimeError as error:
        return {
            "name": name,
            "passed": False,
            "measured": None,
            "limit": limit,
            "fault": str(error).splitlines()[0][:200],
        }
    return {"name": name, "passed": bool(measured <= limit), "measured": measured, "limit": limit}


def _worst(found: list[Any], exact: list[Any]) -> float:
    errors = [
        float((f.double().cpu() - e).norm() / e.norm().clamp_min(1e-30)) for f, e in zip(found, exact, strict=True)
    ]
    return math.inf if any(not math.isfinite(error) for error in errors) else max(errors)


def _leaf(tensor: Any, where: Any, kind: Any) -> Any:
    """A fresh copy that collects its own gradient."""
    return tensor.detach().clone().to(where, kind).requires_grad_()


def _gradients(device: Any, dtype: Any) -> float:
    """Gradients of x, gate, up, down and a low-rank pair through y = down(silu(gate x) * up x) + B A x."""
    import torch
    from torch.nn import functional

    generator = torch.Generator().manual_seed(3)

    def draw(*size: int) -> Any:
        return (torch.randn(*size, generator=generator) / math.sqrt(size[-1])).to(dtype)

    width, inner, rank, tokens = 96, 160, 8, 133
    weights = [draw(inner, width), draw(inner, width), draw(width, inner), draw(rank, width), draw(width, rank)]
    x, pull = draw(tokens, width) * math.sqrt(width), draw(tokens, width)

    def gradients(where: Any, kind: Any) -> list[Any]:
        leaves = [_leaf(t, where, kind) for t in (x, *weights)]
        h, gate, up, down, first, second = leaves
        hidden = functional.silu(functional.linear(h, gate)) * functional.linear(h, up)
        y = functional.linear(hidden, down) + functional.linear(functional.linear(h, first), second)
        y.backward(pull.to(where, kind))
        return [leaf.grad for leaf in leaves]

    return _worst(gradients(device, dtype), gradients("cpu", torch.float64))


def _norms(device: Any, dtype: Any) -> float:
    """RMS norm and layer norm, forward and backward."""
    import torch
    from torch.nn import functional

    generator = torch.Generator().manual_seed(4)
    x, pull = torch.randn(77, 129, generator=generator).to(dtype), torch.randn(77, 129, generator=generator).to(dtype)
    weight = torch.rand(129, generator=generator).to(dtype) + 0.5

    def results(where: Any, kind: Any) -> list[Any]:
        found: list[Any] = []
        for layer in (functional.rms_norm, functional.layer_norm):
            a, w = _leaf(x, where, kind), _leaf(weight, where, kind)
            y = layer(a, (129,), w, eps=1e-6)
            y.backward(pull.to(where, kind))
            found += [y.detach(), a.grad, w.grad]
        return found

    return _worst(results(device, dtype), results("cpu", torch.float64))


def _fifty_steps(device: Any) -> float:
    """Largest relative difference of the loss over fifty steps of a small network."""
    import torch

    ours, exact = _losses(device, torch.float32, 50, 64), _losses("cpu", torch.float64, 50, 64)
    if any(not math.isfinite(loss) for loss in ours):
        return math.inf
    return max(abs(a - b) / abs(b) for a, b in zip(ours, exact, strict=True))


def _losses(device: Any, dtype: Any, steps: int, width: int) -> list[float]:
    import torch
    from torch.nn import functional

    generator = torch.Generator().manual_seed(5)
    weights = [
        (torch.randn(4 * width, width, generator=generator, dtype=torch.float64) / math.sqrt(width))
        .to(device, dtype)
        .requires_grad_(),
        (torch.randn(width, 4 * width, generator=generator, dtype=torch.float64) / math.sqrt(4 * width))
        .to(device, dtype)
        .requires_grad_(),
    ]
    x = torch.randn(128, width, generator=generator, dtype=torch.float64).to(device, dtype)
    target = torch.randn(128, width, generator=generator, dtype=torch.float64).to(device, dtype)
    optimiser = torch.optim.AdamW(weights, lr=3e-3)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        y = functional.linear(functional.gelu(functional.linear(x, weights[0])), weights[1])
        loss = functional.mse_loss(y, target)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


def loss_run(device: Any, dtype: Any, steps: int = 12, width: int = 512, tokens: int = 512) -> list[float]:
    """Losses of a fixed-seed run with a frozen base in ``dtype`` and FP32 low-rank adapters: for stock against tuned.

    Two gated layers of ``width``, random tokens, a vocabulary of 1,000; the same numbers on every device but
    for rounding.
    """
    import torch
    from torch.nn import functional

    generator = torch.Generator().manual_seed(6)

    def frozen(rows: int, columns: int) -> Any:
        return (torch.randn(rows, columns, generator=generator) / math.sqrt(columns)).to(device, dtype)

    embedding, head = frozen(1000, width) * math.sqrt(width), frozen(1000, width)
    layers = [[frozen(3 * width, width), frozen(3 * width, width), frozen(width, 3 * width)] for _ in range(2)]
    pairs = []
    for _ in layers:
        down = (torch.randn(16, width, generator=generator) / math.sqrt(width)).to(device).requires_grad_()
        pairs.append((down, torch.zeros(width, 16, device=device, requires_grad=True)))
    ids = torch.randint(0, 1000, (steps, tokens), generator=generator).to(device)
    optimiser = torch.optim.AdamW([p for pair in pairs for p in pair], lr=1e-2)
    losses = []
    for step in range(steps):
        optimiser.zero_grad()
        h = embedding[ids[step]]
        for (gate, up, down), (first, second) in zip(layers, pairs, strict=True):
            n = functional.rms_norm(h, (width,))
            low = functional.linear(functional.linear(n, first.to(dtype)), second.to(dtype))
            h = (
                h
                + functional.linear(functional.silu(functional.linear(n, gate)) * functional.linear(n, up), down)
                + low
            )
        logits = functional.linear(functional.rms_norm(h, (width,)), head).float()
        loss = functional.cross_entropy(logits[:-1], ids[step][1:])
        (loss * 128).backward()
        for parameter in (p for pair in pairs for p in pair):
            if parameter.grad is not None:
                parameter.grad.div_(128)
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses
