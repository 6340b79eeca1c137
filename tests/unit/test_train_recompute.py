"""Recompute plans: what a layer keeps, the fastest plan that fits, and what happens when memory runs out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bc250studio.train import attention, recompute
from bc250studio.train.passes import hidden_states
from tests.train_help import model_of, rows_of, trainer_of

KEPT = {"none": 30, "light": 20, "layer": 3}


@given(st.integers(1, 12), st.integers(0, 400))
def test_the_plan_fits_and_wastes_no_room(layers: int, room: int) -> None:
    plan = recompute.fit([KEPT] * layers, room)
    size = sum(KEPT[word] for word in plan)
    if room >= layers * KEPT["layer"]:
        assert size <= room
    else:
        assert set(plan) == {"layer"}
    # No single layer could take a faster word and still fit.
    faster = {"layer": "light", "light": "none"}
    for word in set(plan) & set(faster):
        assert size - KEPT[word] + KEPT[faster[word]] > room


def test_every_failure_leads_to_a_lighter_plan_until_all_layers_are_computed_again() -> None:
    plan: list[str] | None = ["none", "light", "none", "light", "none"]
    seen = []
    while plan is not None:
        seen.append(plan)
        plan = recompute.lighter(plan)
    assert seen[1] == ["light"] * 5
    assert seen[-1] == ["layer"] * 5
    assert len(seen) <= 6
    assert recompute.words(seen[2]) == "layer x 3, light x 2"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_layer_keeps_is_what_autograd_holds(dtype: torch.dtype) -> None:
    rows = rows_of([40, 30, 50])
    trainer = trainer_of(model_of().to(dtype), rows, recompute="light")
    batch = trainer.feed.batch(trainer.plan[0][0])

    def forward() -> None:
        with attention.use(batch.segments):
            hidden_states(trainer.parts.body, batch)

    trainer.model.train()
    kept = recompute.measure(trainer.parts.layers, forward, trainer.flat.tensors)
    assert len(kept) == 2
    positions = batch.all_positions
    for layer in kept:
        assert layer["layer"] == positions * 64 * dtype.itemsize
        # none keeps the activation product (96 wide) that light computes again
        assert layer["none"] - layer["light"] == positions * 96 * dtype.itemsize
        # light: inputs and outputs of two norms, q, k, v and the output, gate and up, and what is small
        wide = positions * (4 * 64 + 64 + 2 * 32 + 2 * 64 + 2 * 96) * dtype.itemsize
        assert 0.8 * wide < layer["light"] < 1.3 * wide


@pytest.mark.parametrize("fails_at", [[3], [3, 4, 4]])
def test_running_out_of_memory_changes_no_loss(fails_at: list[int], monkeypatch: Any) -> None:
    rows = rows_of([40, 30, 50, 45, 25, 60])
    settings = {"steps": 6, "tokens_per_pass": 128, "tokens_per_step": 256}
    undisturbed = [step.loss for step in trainer_of(model_of(), rows, **settings).steps()]
    trainer = trainer_of(model_of(), rows, **settings)
    said: list[str] = []
    trainer.note = said.append
    work = trainer.passes.forward_backward
    left = list(fails_at)

    def failing(batch: Any, factor: float) -> torch.Tensor:
        total = work(batch, factor)
        if left and trainer.done + 1 == left[0]:
            left.pop(0)
            raise torch.OutOfMemoryError("out of memory: tried to allocate 2 GiB")  # after gradients were added
        return total

    monkeypatch.setattr(trainer.passes, "forward_backward", failing)
    found = [step.loss for step in trainer.steps()]
    assert not left
    assert found == pytest.approx(undisturbed, rel=1e-5)
    assert sum("lighter plan" in sentence for sentence in said) == len(fails_at)


def test_when_no_plan_is_left_the_sentence_says_what_to_lower(monkeypatch: Any) -> None:
    trainer = trainer_of(model_of(), rows_of([40, 30]), steps=2)

    def failing(batch: Any, factor: float) -> torch.Tensor:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(trainer.passes, "forward_backward", failing)
    with pytest.raises(recompute.OutOfMemory, match=r"lower train\.tokens_per_pass or train\.loss_chunk"):
        trainer.step()
