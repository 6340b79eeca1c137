"""The guards over steps and the check before the first: scripted faults, each with its verdict."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from bc250studio.errors import JobFailed
from bc250studio.profiles.adapter import Adapter
from bc250studio.profiles.train import Train
from bc250studio.train import guards, start_check
from bc250studio.train.engine import Step, Trainer
from bc250studio.train.guards import MOST_BAD, Guards
from tests.train_help import model_of, rows_of

GOOD = Step(1, 400, 0.1, 2.0, 1e-3, 0.5, 64, 60, 50, 0.01, False, (0, 1, 2))


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    torch.set_num_threads(1)
    settings = Train(steps=4, tokens_per_step=64, tokens_per_pass=64, learning_rate=1e-2, loss_chunk=16)
    made = Trainer(model_of(), rows_of([20, 21, 22, 23]), settings, Adapter(rank=4))
    next(iter(made.steps()))
    return made


@pytest.fixture
def said() -> list[tuple[str, str]]:
    return []


def watch(trainer: Trainer, said: list[tuple[str, str]], **more: Any) -> Guards:
    return Guards(trainer, lambda kind, text, **facts: said.append((kind, text)), **more)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"loss": math.nan, "gradient_norm": math.nan, "skipped": True}, "loss is NaN and was skipped"),
        ({"loss": math.inf, "gradient_norm": math.inf, "skipped": True}, "loss is infinite"),
        ({"loss": 0.0}, "exactly zero"),
        ({"gradient_norm": 0.0}, "gradient is exactly zero"),
        ({"gradient_norm": math.inf, "skipped": True}, "gradient overflowed"),
    ],
)
def test_a_fault_warns_at_once_and_ends_the_run_when_it_stays(trainer, said, fault, words):
    guard = watch(trainer, said)
    for number in range(1, MOST_BAD):
        guard.after(replace(GOOD, number=number, rows=(number, 7), **fault))
    assert len(said) == MOST_BAD - 1
    assert all(kind == "warning" and words in text for kind, text in said)
    with pytest.raises(JobFailed, match=r"8 bad steps in a row.*Rows: row 8\."):
        guard.after(replace(GOOD, number=MOST_BAD, rows=(99, 7), **fault))


def test_a_good_step_in_between_forgives(trainer, said):
    guard = watch(trainer, said)
    for number in range(3 * MOST_BAD):
        bad = {"loss": math.nan, "skipped": True} if number % MOST_BAD else {}
        guard.after(replace(GOOD, number=number + 1, **bad))
    assert guard.in_a_row == MOST_BAD - 1


def test_rows_that_are_bad_alone_are_named(trainer, said):
    guard = watch(
        trainer,
        said,
        words=lambda row: f"row {row + 1} ('text {row}')",
        single=lambda row: math.nan if row == 1 else 2.0,
    )
    with pytest.raises(JobFailed, match=r"Bad when alone: row 2 \('text 1'\)\."):
        for _ in range(MOST_BAD):
            guard.after(replace(GOOD, loss=math.nan, skipped=True))


def test_overflow_waits_for_the_loss_scale(trainer, said, monkeypatch):
    monkeypatch.setattr(trainer.optimiser.scale, "dynamic", True)
    monkeypatch.setattr(trainer.optimiser.scale, "value", 64.0)
    guard = watch(trainer, said)
    overflow = replace(GOOD, gradient_norm=math.inf, skipped=True)
    for _ in range(3 * MOST_BAD):
        guard.after(overflow)
    assert len(said) == 3 * MOST_BAD
    monkeypatch.setattr(trainer.optimiser.scale, "value", 1.0)
    with pytest.raises(JobFailed, match="bad steps in a row"):
        for _ in range(MOST_BAD):
            guard.after(overflow)


def test_a_flat_loss_warns_once_and_a_falling_one_never(trainer, said):
    flat, falling = watch(trainer, said), watch(trainer, said)
    for number in range(1, 301):
        falling.after(replace(GOOD, number=number, loss=2.0 * 0.99**number))
    assert said == []
    for number in range(1, 301):
        flat.after(replace(GOOD, number=number, loss=2.0 + 0.01 * (number % 3)))
    assert [text for _, text in said if "does not fall" in text] == [said[0][1]]
    assert len(said) == 1


def test_a_matrix_that_learns_nothing_is_named(trainer, said):
    watch(trainer, said).after(GOOD)  # all have moved after the real step
    names = [name for name in trainer.flat.names if ".lora_B." in name]
    state = trainer.flat.state()
    kept = [state[name].clone() for name in names[2:4]]
    try:
        for name in names[2:4]:
            state[name].zero_()
        assert guards.dead_matrices(trainer) == names[2:4]
        with pytest.raises(JobFailed, match="still exactly zero") as caught:
            watch(trainer, said).after(GOOD)
        assert names[2] in str(caught.value)
        assert "and 1 more" in str(caught.value)
    finally:
        for name, value in zip(names[2:4], kept, strict=True):
            state[name].copy_(value)


def test_every_kind_of_product_is_checked_and_right(trainer):
    kinds = {product.kind for product in start_check.products(trainer)}
    assert kinds == {
        "y = x W^T", "dx = dy W", "h = x A^T", "y += h B^T", "dh = dy B", "dB = dy^T h", "dA = dh^T x", "dx += dh A"
    }  # fmt: skip
    random = torch.get_rng_state()
    assert "agree with float64" in start_check.check(trainer)
    assert torch.equal(random, torch.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_right_products_pass_in_every_type(dtype):
    product = start_check.Product("y = x W^T", "layer", 130, 200, 1537, False, True, dtype)
    assert 0 < start_check.worst_error(product, torch.device("cpu")) < 1


def _one_wrong_tile(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    result = left @ right
    if result.shape[0] >= 64 and right.shape[0] == 96:  # only the products whose inner side is 96 are broken
        result[:64, -64:] = 0
    return result


@pytest.mark.parametrize(
    "wrong",
    [
        _one_wrong_tile,
        lambda a, b: (a @ b) * (1.001 if b.shape[0] == 96 else 1.0),
        lambda a, b: (a @ b).fill_(math.nan) if b.shape[0] == 96 else a @ b,
        lambda a, b: torch.cat((a[:, :-1] @ b[:-1],)) if b.shape[0] == 96 else a @ b,
    ],
    ids=["a tile", "a scale", "nan", "the last k"],
)
def test_a_wrong_product_is_named(trainer, wrong):
    with pytest.raises(JobFailed, match=r"dx = dy W of .*gate_proj|y = x W\^T of .*down_proj") as caught:
        start_check.check(trainer, wrong)
    assert "float32" in str(caught.value)
