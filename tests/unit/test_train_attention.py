"""Attention by rows, rungs and two products: the same numbers as one masked softmax a row."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from bc250studio.train import attention, layouts, math_attention
from bc250studio.train.feed import Feed
from tests.train_help import rows_of

SCALE = 0.3


def plain(q: Tensor, k: Tensor, v: Tensor, window: int | None, softcap: float | None) -> Tensor:
    """[heads, s, size] each; keys repeated, one dense mask."""
    k, v = (x.repeat_interleave(q.shape[0] // k.shape[0], 0) for x in (k, v))
    scores = q @ k.transpose(1, 2) * SCALE
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    distance = torch.arange(q.shape[1])[:, None] - torch.arange(q.shape[1])
    hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


@pytest.mark.parametrize("kind_way", [("free", "rows"), ("fixed", "rungs"), ("fixed", "math"), ("fixed", "math32")])
@pytest.mark.parametrize("prefix", [0, 9])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (8, None), (None, 2.0), (8, 2.0)])
def test_each_way_is_one_masked_softmax_a_row(
    kind_way: tuple[str, str], prefix: int, window: int | None, softcap: float | None
) -> None:
    kind, way = kind_way
    if way == "rungs" and softcap is not None:
        pytest.skip("fused kernels cap nothing; the engine takes math for such models")
    rows = rows_of([30, 17, 64, 12], prefix)
    lengths = rows.lengths
    sizes = layouts.choose(lengths, 160, kind, prefix)
    feed = Feed(rows, sizes, way, 16, frozenset({4, 2}))
    (planned,) = layouts.pack(np.arange(4), lengths, sizes)
    batch = feed.batch(planned)
    positions = batch.ids.shape[1]
    generator = torch.Generator().manual_seed(0)
    # Rows that share a beginning have the same q, k, v there: draw one pass, then lay it out row by row.
    q, k, v = (torch.randn(1, heads, positions, 8, generator=generator).requires_grad_(True) for heads in (4, 2, 2))
    weights = torch.randn(1, positions, 4, 8, generator=generator)
    places, start = [], prefix
    for row in planned.rows:
        own = int(lengths[row]) - prefix
        places.append(torch.cat((torch.arange(prefix), torch.arange(start, start + own))))
        start += own
    weights[:, start:] = 0  # nothing is learnt from the filler
    with attention.use(batch.segments):
        out, _ = attention.attention(None, q, k, v, None, SCALE, sliding_window=window, softcap=softcap)
        found = torch.autograd.grad((out * weights).sum(), (q, k, v))
    expected = torch.zeros_like(out)
    truth = q.new_zeros(())
    for number, place in enumerate(places):
        y = plain(q[0][:, place], k[0][:, place], v[0][:, place], window, softcap).transpose(0, 1)
        own = place if number == 0 else place[prefix:]
        y = y if number == 0 else y[prefix:]
        expected[0, own] = y.detach()
        truth = truth + (y * weights[0, own]).sum()
    torch.testing.assert_close(out[:, :start], expected[:, :start], rtol=1e-4, atol=1e-5)
    for one, other in zip(found, torch.autograd.grad(truth, (q, k, v)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_two_products_pass_gradcheck() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, heads, 5, 3, generator=generator, dtype=torch.float64).requires_grad_(True)
        for heads in (4, 2, 2)
    )
    mask = torch.ones(5, 5).tril().bool()
    for softcap in (None, 1.5):
        attend = partial(math_attention.attend, scale=0.7, mask=mask, softcap=softcap)
        assert torch.autograd.gradcheck(attend, (q, k, v))


def test_attention_outside_a_pass_says_so() -> None:
    x = torch.zeros(1, 1, 2, 4)
    with pytest.raises(RuntimeError, match="outside a pass"):
        attention.attention(None, x, x, x)
