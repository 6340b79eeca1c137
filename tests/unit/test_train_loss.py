"""Chunked cross-entropy: torch's numbers, three sizes, never a whole logits tensor."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bc250studio.train import loss
from bc250studio.train.loss import Head, chunked_cross_entropy, chunks, padded


def case(count: int, chunk: int, head: Head, seed: int = 0) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(seed)
    size = padded(count, chunk)
    hidden = torch.randn(size, head.weight.shape[1], generator=generator)
    targets = torch.randint(0, head.weight.shape[0], (size,), generator=generator)
    counted = (torch.arange(size) < count).float()
    return hidden, targets, counted


@pytest.mark.parametrize(("softcap", "scale"), [(None, 1.0), (5.0, 1.0), (None, 0.25), (3.0, 2.0)])
@pytest.mark.parametrize("bias", [False, True])
def test_loss_and_gradient_are_torchs_own(softcap: float | None, scale: float, bias: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    head = Head(
        torch.randn(50, 8, generator=generator), torch.randn(50, generator=generator) if bias else None, scale, softcap
    )
    hidden, targets, counted = case(37, 16, head)
    truth_input = hidden.clone().requires_grad_(True)
    logits = torch.nn.functional.linear(truth_input, head.weight, head.bias) * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    truth = (torch.nn.functional.cross_entropy(logits, targets, reduction="none") * counted).sum()
    truth.backward()
    gradient = torch.full_like(hidden, 7.0)
    total = chunked_cross_entropy(hidden, head, targets, counted, 16, gradient, factor=0.5)
    torch.testing.assert_close(total, truth.detach(), rtol=1e-5, atol=1e-5)
    assert truth_input.grad is not None
    torch.testing.assert_close(gradient, truth_input.grad * 0.5, rtol=1e-4, atol=1e-6)
    assert torch.equal(total, chunked_cross_entropy(hidden, head, targets, counted, 16, None))


def test_weights_of_the_head_learn_in_full_training() -> None:
    weight = torch.nn.Parameter(torch.randn(30, 8, generator=torch.Generator().manual_seed(2)))
    weight.grad = torch.zeros_like(weight)
    head = Head(weight)
    hidden, targets, counted = case(20, 8, head)
    chunked_cross_entropy(hidden, head, targets, counted, 8, torch.empty_like(hidden), factor=1.0)
    truth = weight.detach().clone().requires_grad_(True)
    (torch.nn.functional.cross_entropy(hidden @ truth.t(), targets, reduction="none") * counted).sum().backward()
    assert truth.grad is not None
    torch.testing.assert_close(weight.grad, truth.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 9, 16, 17, 31, 32, 100])
def test_only_three_chunk_sizes_ever_occur(count: int) -> None:
    parts = chunks(count, 16)
    assert {size for _, size in parts} <= {4, 8, 16}
    assert [start for start, _ in parts] == [sum(s for _, s in parts[:i]) for i in range(len(parts))]
    assert count <= padded(count, 16) < count + 8 if count else padded(count, 16) == 0


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


def test_no_tensor_of_all_logits_is_made() -> None:
    head = Head(torch.randn(1000, 8))
    hidden, targets, counted = case(256, 16, head)
    with Largest() as seen:
        chunked_cross_entropy(hidden, head, targets, counted, 16, torch.empty_like(hidden))
    assert seen.elements == 16 * 1000


def test_one_chunks_logits_live_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a chunk is as large as its logits: kept until the next chunk, it would double the peak."""
    made: list[weakref.ref[torch.Tensor]] = []
    one_chunk = loss._chunk

    def watched(*args: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert all(ref() is None for ref in made)
        losses, d = one_chunk(*args)
        assert d is not None
        made.append(weakref.ref(d))
        return losses, d

    monkeypatch.setattr(loss, "_chunk", watched)
    hidden, weight = torch.randn(40, 8), torch.randn(50, 8)
    targets, counted = torch.randint(0, 50, (40,)), torch.ones(40)
    chunked_cross_entropy(hidden, Head(weight, None), targets, counted, 10, torch.empty_like(hidden))
    assert len(made) == 4
