"""The training step: packed equals alone, accumulation is exact, seeds repeat, overflow changes nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bc250studio.errors import BadInput
from bc250studio.train.engine import Trainer
from tests.train_help import assert_close, model_of, packed, row_by_row, rows_of, scatter_b, trainer_of

LENGTHS = [40, 23, 61, 17, 30]


@pytest.mark.parametrize("sizes", ["free", "fixed", "padded"])
@pytest.mark.parametrize("prefix", [0, 12])
@pytest.mark.parametrize("attention", ["auto", "math16"])
def test_a_packed_pass_equals_its_rows_alone(sizes: str, prefix: int, attention: str) -> None:
    rows = rows_of(LENGTHS, prefix)
    packing = sizes != "padded"
    trainer = trainer_of(
        model_of(),
        rows,
        sizes if packing else "free",
        attention=attention,
        packing=packing,
        tokens_per_pass=320,
        tokens_per_step=320,
    )
    assert trainer.sizes.kind == sizes
    assert trainer.sizes.prefix == (prefix if packing else 0)
    scatter_b(trainer)
    loss, gradients = packed(trainer)
    truth, expected = row_by_row(trainer, rows)
    assert loss == pytest.approx(truth, rel=1e-5)
    assert_close(gradients, expected, 1e-4)


@pytest.mark.parametrize("recompute", ["none", "light", "layer"])
def test_every_recompute_plan_gives_the_same_gradients(recompute: str) -> None:
    rows = rows_of(LENGTHS)
    plain = trainer_of(model_of(), rows, layer_kernels="off", recompute="none")
    other = trainer_of(model_of(), rows, recompute=recompute)
    assert other.kernels["norms"] == 5 and other.kernels["mlps"] == 2
    scatter_b(plain)
    scatter_b(other)
    loss, gradients = packed(plain)
    again, others = packed(other)
    assert again == pytest.approx(loss, rel=1e-6)
    assert_close(others, gradients, 1e-4)


def test_four_passes_of_one_row_give_the_gradient_of_one_pass_of_four() -> None:
    rows = rows_of([50, 44, 61, 37])
    one = trainer_of(model_of(), rows)
    four = trainer_of(model_of(), rows, tokens_per_pass=64, tokens_per_step=256)
    assert [len(p.rows) for p in one.plan[0]] == [4]
    assert [len(p.rows) for p in four.plan[0]] == [1, 1, 1, 1]
    scatter_b(one)
    scatter_b(four)
    loss, gradients = packed(one)
    again, others = packed(four)
    assert again == pytest.approx(loss, rel=1e-6)
    assert_close(others, gradients, 1e-5)


def losses(trainer: Trainer) -> list[float]:
    return [step.loss for step in trainer.steps()]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_same_seed_gives_the_same_losses_bit_for_bit(dropout: float) -> None:
    found = []
    for seed in (3, 3, 4):
        torch.manual_seed(11)
        rows = rows_of([30, 45, 28, 61, 33, 52, 41, 25], 0)
        trainer = trainer_of(model_of(), rows, seed=seed, epochs=2.0, tokens_per_step=128, tokens_per_pass=128,
                             adapter={"dropout": dropout})  # fmt: skip
        found.append(losses(trainer))
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_the_loss_falls_and_evaluation_sees_it() -> None:
    rows = rows_of([30] * 12)
    trainer = trainer_of(model_of(), rows, epochs=10.0, learning_rate=2e-2)
    before, tokens = trainer.evaluate(rows)
    losses(trainer)
    after, _ = trainer.evaluate(rows)
    assert tokens == rows.labelled_count
    assert after < before - 0.5


def test_the_rates_count_what_they_say() -> None:
    rows = rows_of(LENGTHS, 12)
    step = next(iter(trainer_of(model_of(), rows, "fixed").steps()))
    assert step.all_positions == 256
    assert step.real_tokens == sum(LENGTHS)
    assert step.labelled_tokens == rows.labelled_count
    free = next(iter(trainer_of(model_of(), rows, "free").steps()))
    assert free.all_positions == sum(LENGTHS) - 4 * 12  # the shared beginning is computed once


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    rows = rows_of(LENGTHS)
    trainer = trainer_of(model_of(), rows, steps=3)
    trainer.optimiser.scale.dynamic, trainer.optimiser.scale.value = True, 8.0
    trainer.step()
    before = trainer.flat.values.detach().clone()
    state = {k: v.clone() for k, v in trainer.optimiser.tensors().items()}
    trainer.flat.gradient.fill_(float("nan"))
    outcome = trainer.optimiser.read(trainer.optimiser.queue(1e-3, torch.tensor(1.0)))
    assert outcome.skipped
    assert trainer.optimiser.scale.value == 4.0
    assert torch.equal(trainer.flat.values.detach(), before)
    for key, value in trainer.optimiser.tensors().items():
        assert torch.equal(value, state[key]), key


def test_the_loss_scale_does_not_change_the_step() -> None:
    rows = rows_of(LENGTHS)
    found = []
    for scale in (1.0, 1024.0):
        trainer = trainer_of(model_of(), rows, steps=3)
        trainer.optimiser.scale.value = scale
        found.append([(s.loss, s.gradient_norm) for s in trainer.steps()])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


def test_clipping_bounds_the_update_and_weight_decay_shrinks_weights() -> None:
    rows = rows_of(LENGTHS)
    trainer = trainer_of(model_of(), rows, steps=1, clip=1e-4)
    step = trainer.step()
    assert step.gradient_norm > 1e-4
    assert float(trainer.flat.gradient.norm()) == pytest.approx(1e-4, rel=1e-2)
    decayed = trainer_of(model_of(), rows, steps=1, weight_decay=10.0, learning_rate=1e-2)
    plain = trainer_of(model_of(), rows, steps=1, learning_rate=1e-2)
    decayed.step()
    plain.step()
    assert float(decayed.flat.values.detach().norm()) < float(plain.flat.values.detach().norm())


def test_full_training_in_16_bits_is_refused_with_the_reason() -> None:
    with pytest.raises(BadInput, match="loses small updates"):
        trainer_of(model_of().to(torch.bfloat16), rows_of(LENGTHS), adapter={"kind": "full"})


@pytest.mark.parametrize("tied", [False, True])
def test_full_training_equals_plain_transformers(tied: bool) -> None:
    rows = rows_of(LENGTHS)
    trainer = trainer_of(model_of(tie_word_embeddings=tied), rows, steps=2, adapter={"kind": "full"})
    loss, gradients = packed(trainer)
    truth, expected = row_by_row(trainer, rows)
    assert loss == pytest.approx(truth, rel=1e-5)
    assert_close(gradients, expected, 1e-4)


class Products(TorchDispatchMode):
    """Counts the sizes of matrix products, linear and batched apart."""

    def __init__(self) -> None:
        super().__init__()
        self.linear: Counter[tuple[Any, ...]] = Counter()
        self.batched: Counter[tuple[Any, ...]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm", "addmm_"):
            left, right = args[-2:]
            strides = (left.stride(0) < left.stride(1), right.stride(0) < right.stride(1))
            self.linear[(tuple(left.shape), tuple(right.shape), strides)] += 1
        elif name in ("bmm", "baddbmm"):
            left, right = args[-2:]
            self.batched[(tuple(left.shape), tuple(right.shape))] += 1
        return func(*args, **(kwargs or {}))


def test_sizes_stand_still_over_200_steps() -> None:
    prefix = 10
    random = np.random.default_rng(0)
    lengths = [int(n) for n in np.clip(np.exp(random.normal(3.6, 0.6, 1500)), prefix + 5, 190)]
    model = model_of(
        num_hidden_layers=1, hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1
    )
    trainer = trainer_of(model, rows_of(lengths, prefix), "fixed", attention="math16", loss_chunk=64, steps=200)
    with Products() as seen:
        for _ in trainer.steps():
            pass
    # The output layer: forward and gradient for each of three chunk sizes.
    head = {key for key in seen.linear if any(300 in shape for shape in key[:2])}
    assert len({key[0][0] for key in head}) <= 3
    body = set(seen.linear) - head
    positions = {key for key in body if not any(256 in shape for shape in key[:2])}
    assert not positions, f"products whose size is not that of a pass: {positions}"
    # Of each attention product (scores, probabilities x values and their gradients) at most 16 sizes.
    kinds: dict[tuple[bool, bool], set[Any]] = {}
    for left, right in seen.batched:
        kinds.setdefault((left[1] >= left[2], right[1] >= right[2]), set()).add((left, right))
    rungs = {group for layout in trainer.sizes.layouts for group in layout.groups}
    assert len(rungs) <= 16
    assert {(left[0]) for left, _ in seen.batched} <= {count for count, _ in rungs}
    assert len(seen.batched) <= 5 * len(rungs)  # q k^T (twice: light), p v, and three gradients share shapes
