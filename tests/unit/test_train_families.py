"""Every model family trains packed, or says why not, with PEFT's own losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from bc250studio.data.rows import Rows
from bc250studio.train import families
from bc250studio.train.engine import Trainer
from tests.tiny import FAMILIES
from tests.train_help import assert_close, model_of, packed, row_by_row, rows_of, scatter_b, trainer_of

LENGTHS = [40, 23, 61, 17, 30, 52, 28, 44]


def peft_losses(model: Any, trainer: Trainer, rows: Rows, rate: float) -> list[float]:
    """The same steps with PEFT as it comes: its layers, the model's own attention and loss, torch's AdamW."""
    wrapped = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    with torch.no_grad():
        for (name, one), (_, other) in zip(
            [(n, p) for n, p in wrapped.named_parameters() if p.requires_grad],
            trainer.flat.state().items(),
            strict=True,
        ):
            assert one.shape == other.shape, name
            one.copy_(other)
    wrapped.train()
    trainable = [p for p in wrapped.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trainable, lr=rate, weight_decay=0.0)
    found = []
    for passes in trainer.plan:
        used = [rows.row(r) for p in passes for r in p.rows]
        labelled = sum(int(labels.sum()) for _, labels in used)
        total = 0.0
        for ids, labels in used:
            tokens = torch.from_numpy(ids.astype(np.int64))[None]
            marked = torch.where(torch.from_numpy(labels.copy())[None], tokens, torch.tensor(-100))
            loss = wrapped(input_ids=tokens, labels=marked).loss * (int(labels.sum()) / labelled)
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimiser.step()
        optimiser.zero_grad()
        found.append(total)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_are_pefts_own(family: str) -> None:
    rows = rows_of(LENGTHS, 10)
    said: list[str] = []
    from bc250studio.profiles.adapter import Adapter
    from bc250studio.profiles.train import Train

    settings = Train(
        tokens_per_step=128,
        tokens_per_pass=128,
        loss_chunk=16,
        steps=3,
        learning_rate=5e-3,
        schedule="constant",
        warmup=0.0,
    )
    trainer = Trainer(model_of(family), rows, settings, Adapter(rank=4, alpha=8.0), sizes="fixed", note=said.append)
    assert any("packed" in sentence for sentence in said)
    assert trainer.sizes.kind == "fixed", said
    expected = peft_losses(model_of(family), trainer, rows, 5e-3)
    found = [step.loss for step in trainer.steps()]
    np.testing.assert_allclose(found, expected, rtol=2e-4)


@pytest.mark.parametrize("family", ["gemma2", "mistral"])
def test_rows_longer_than_a_sliding_window_keep_their_window(family: str) -> None:
    rows = rows_of([70, 50, 20])
    for sizes in ("free", "fixed"):
        trainer = trainer_of(model_of(family, sliding_window=16), rows, sizes)
        scatter_b(trainer)
        loss, gradients = packed(trainer)
        truth, expected = row_by_row(trainer, rows)
        assert loss == pytest.approx(truth, rel=1e-5)
        assert_close(gradients, expected, 2e-4)


def test_a_model_whose_rows_see_each_other_is_not_packed_and_the_reason_is_shown() -> None:
    """A layer that looks back over row borders, as a recurrent model does."""
    model = model_of()
    layer = model.model.layers[0]
    forward = layer.forward

    def leaking(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        out = forward(hidden_states, *args, **kwargs)
        return out + 0.5 * torch.cumsum(hidden_states, 1)

    layer.forward = leaking
    said: list[str] = []
    from bc250studio.profiles.adapter import Adapter
    from bc250studio.profiles.train import Train

    rows = rows_of(LENGTHS)
    trainer = Trainer(
        model,
        rows,
        Train(tokens_per_step=256, tokens_per_pass=256, loss_chunk=16, steps=2),
        Adapter(rank=4),
        note=said.append,
    )
    assert trainer.sizes.kind == "padded"
    assert any("not packed" in sentence and "see each other" in sentence for sentence in said)
    assert all(np.isfinite(step.loss) for step in trainer.steps())


def test_an_architecture_without_the_interface_is_not_packed() -> None:
    parts = families.Parts(model_of())
    parts.body.forward = lambda **kwargs: (_ for _ in ()).throw(TypeError("unknown argument position_ids"))
    from bc250studio.train import layouts

    reason = families.why_not_packed(parts, rows_of([20, 30]), "rows", layouts.Sizes("free", 128))
    assert reason is not None and "cannot use our attention" in reason
