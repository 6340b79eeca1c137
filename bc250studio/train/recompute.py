"""Recompute plans, a word per decoder layer: what is computed again in the backward pass to save memory.

``none``    keep everything the light functions keep, and the activation products too
``light``   compute norms, activation products and attention probabilities again: many bytes, few FLOPs
``layer``   keep a layer's input only and run the whole layer again: a third more work
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from bc250studio.errors import JobFailed

PLANS = ("none", "light", "layer")
POOLS = int(1.2 * 2**30)
"""Bytes reserved but not used: blocks of the allocator's two pools (recorded passes, and everything else)."""
SLACK = 1.04
"""Reserved over allocated memory inside the recorded passes' pool."""


class OutOfMemory(JobFailed):
    """No plan fits, or another needs a fresh process: then ``plan`` says which."""

    def __init__(self, sentence: str, plan: list[str] | None) -> None:
        super().__init__(sentence)
        self.plan = plan


def ran_out(error: BaseException) -> bool:
    """Is this a failed allocation? On a GPU it has a type of its own, on the CPU a sentence (alloc_cpu.cpp)."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error)
    return "DefaultCPUAllocator" in text or "bad_alloc" in text


def has_budget(train: Any) -> bool:
    """Does the profile say how much memory may be used?"""
    return train.memory_budget_gib is not None or train.device_memory_fraction is not None


def budget_bytes(train: Any, device: torch.device) -> int:
    """Bytes of device memory torch may reserve, by the profile's budget or share of the device."""
    _, total = torch.cuda.mem_get_info(device)
    if train.memory_budget_gib is not None:
        return min(int(train.memory_budget_gib * 2**30), total)
    return int((train.device_memory_fraction or 1.0) * total)


def cap(train: Any, device: torch.device) -> None:
    """Let the allocator refuse what is over the budget: a lighter plan is taken instead of the system's memory."""
    if device.type != "cuda" or not has_budget(train):
        return
    _, total = torch.cuda.mem_get_info(device)
    torch.cuda.set_per_process_memory_fraction(min(budget_bytes(train, device) / total, 1.0), device)


def uncap(device: torch.device) -> None:
    """Take ``cap`` back: in a bench other sides share the process."""
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def apply(layers: Sequence[Any], plan: Sequence[str], dropout: bool) -> None:
    """Give each decoder layer its word of ``plan``. ``dropout``: random numbers must be the same the second time.

    The RNG is saved only where something is random: saving it waits for the device and breaks device graphs.
    """
    for layer, word in zip(layers, plan, strict=True):
        original = layer.__dict__.pop("_whole_forward", None) or layer.forward
        layer.forward = original
        for module in layer.modules():
            module.__dict__["keep_product"] = word == "none"
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
    """The plan to begin with. ``auto``: the CPU has memory and no speed to spare, so nothing is computed again there;
    a GPU takes ``light``, which costs about nothing. A memory budget is then spent by ``fit``."""
    word = wanted if wanted != "auto" else ("none" if device.type == "cpu" else "light")
    return [word] * layers


def fit(kept: Sequence[dict[str, int]], room: int) -> list[str]:
    """The fastest plan whose layers together keep at most ``room`` bytes of a pass.

    ``kept``: for each layer the bytes it keeps under each word. Words are exchanged where a byte costs least time:
    first every ``none`` for ``light`` (elementwise work), then ``light`` for ``layer`` (all of its products), from the
    first layer on.
    """
    plan = ["none"] * len(kept)
    size = sum(layer["none"] for layer in kept)
    for word in ("light", "layer"):
        for i, layer in enumerate(kept):
            if size > room and layer[word] < layer[plan[i]]:
                size += layer[word] - layer[plan[i]]
                plan[i] = word
    # What the last exchange freed too much of: take back what it is worth most for.
    for slow, fast in (("layer", "light"), ("light", "none")):
        for i, layer in enumerate(kept):
            if plan[i] == slow and size + layer[fast] - layer[slow] <= room:
                size += layer[fast] - layer[slow]
                plan[i] = fast
    return plan


def room(kept: Sequence[dict[str, int]], head: Any, positions: int, train: Any) -> int:
    """Bytes that the layers may keep together in a pass of ``positions``.

    What is left of the budget beside all that is allocated already (weights, adapters, optimiser), the larger of one
    loss chunk and one layer's work in the backward pass, and the allocator's share.
    """
    device, element = head.weight.device, head.weight.element_size()
    # A chunk's logits in the base's type; without Triton an fp32 copy and the gradient too.
    logits = train.loss_chunk * head.weight.shape[0] * (element if head.fused else 2 * element + 4)
    layer = 2 * max((k["light"] for k in kept), default=0)
    around = 4 * positions * head.weight.shape[1] * element
    used = torch.cuda.memory_allocated(device)
    return int((budget_bytes(train, device) - used - max(layer, logits) - around - POOLS) / SLACK)


def lighter(plan: Sequence[str]) -> list[str] | None:
    """The next plan after an allocation failed: no ``none``, then ``layer`` for half of the rest; None when all are."""
    if "none" in plan:
        return ["light" if word == "none" else word for word in plan]
    left = [i for i, word in enumerate(plan) if word == "light"]
    if not left:
        return None
    heavy = set(left[: -(-len(left) // 2)])
    return ["layer" if i in heavy else word for i, word in enumerate(plan)]


def words(plan: Sequence[str]) -> str:
    """``layer x 12, light x 30``: for a person."""
    return ", ".join(f"{word} x {list(plan).count(word)}" for word in reversed(PLANS) if word in plan)


def measure(
    layers: Sequence[Any], forward: Callable[[], Any], standing: Sequence[torch.Tensor] = ()
) -> list[dict[str, int]]:
    """Bytes that each layer keeps for the backward pass under each word, seen by autograd itself.

    ``forward`` runs the body over one pass; it is run twice, and what autograd would keep is let go of after each
    layer, so that this needs one layer's memory. Weights and the ``standing`` tensors (the flat parameters, whose
    views the layers use) do not count.
    """
    found: list[dict[str, int]] = []
    for word in ("none", "light"):
        apply(layers, [word] * len(layers), dropout=False)
        for i, (own, given) in enumerate(_kept(layers, forward, standing)):
            if word == "none":
                found.append({"none": own, "layer": given})
            else:
                found[i]["light"] = own
    return found


def _kept(layers: Sequence[Any], forward: Callable[[], Any], standing: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """(bytes kept, bytes of its input) of each layer."""
    weights = {p.untyped_storage().data_ptr() for layer in layers for p in layer.parameters()}
    weights |= {tensor.untyped_storage().data_ptr() for tensor in standing}
    held: dict[int, Any] = {}
    sizes: list[tuple[int, int]] = []

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            held[storage.data_ptr()] = tensor
        return None  # nothing is kept: this graph is never run backwards

    def before(layer: Any, args: Any, kwargs: Any) -> None:
        held.clear()

    def after(layer: Any, args: Any, kwargs: Any, output: Any) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        own = sum(t.untyped_storage().nbytes() for t in held.values())
        sizes.append((own, hidden.numel() * hidden.element_size()))
        held.clear()

    hooks = [layer.register_forward_pre_hook(before, with_kwargs=True) for layer in layers]
    hooks += [layer.register_forward_hook(after, with_kwargs=True) for layer in layers]
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda nothing: nothing):
            forward()
    finally:
        for hook in hooks:
            hook.remove()
        held.clear()
    return sizes
