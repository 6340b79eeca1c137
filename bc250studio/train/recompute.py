"""Recompute plans, a word per decoder layer: what is computed again in the backward pass to save memory.

``none``    keep everything the light functions keep, and the activation products too
``light``   compute norms, activation products and attention probabilities again: many bytes, few FLOPs
``layer``   keep a layer's input only and run the whole layer again: a third more work
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

PLANS = ("none", "light", "layer")


def apply(layers: Sequence[Any], plan: Sequence[str], dropout: bool) -> None:
    """Give each decoder layer its word of ``plan``. ``dropout``: random numbers must be the same the second time.

    The RNG is saved only where something is random: saving it waits for the device and breaks device graphs.
    """
    for layer, word in zip(layers, plan, strict=True):
        original = layer.__dict__.pop("_whole_forward", None) or layer.forward
        layer.forward = original
        if word == "layer":
            layer.__dict__["_whole_forward"] = original
            layer.forward = _again(original, dropout)


def _again(forward: Any, dropout: bool) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=dropout, **kwargs)

    return run


def choose(wanted: str, layers: int, device: torch.device) -> list[str]:
    """The plan for a run. ``auto``: the CPU has memory and no speed to spare, so nothing is computed again there;
    a GPU starts with ``light``, which costs about nothing."""
    word = wanted if wanted != "auto" else ("none" if device.type == "cpu" else "light")
    return [word] * layers
