"""Adapters: PEFT's files, PEFT's numbers, our arithmetic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from bc250studio.errors import BadInput
from bc250studio.profiles.adapter import Adapter
from bc250studio.train import adapters
from tests.train_help import assert_close, model_of, packed, row_by_row, rows_of, scatter_b, trainer_of

LENGTHS = [40, 23, 61, 17]
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rslora": {"rslora": True},
    "patterns": {"rank_pattern": {"q_proj": 2, "down_proj": 8}, "alpha_pattern": {"v_proj": 3.0}},
    "some targets": {"targets": ["q_proj", "up_proj"]},
    "dora": {"dora": True},
    "saved module": {"targets": ["q_proj"], "modules_to_save": ["norm"]},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_peft_loads_what_we_wrote_and_computes_the_same(variant: str, tmp_path: Path) -> None:
    rows = rows_of(LENGTHS)
    trainer = trainer_of(model_of(), rows, adapter=VARIANTS[variant], steps=3, learning_rate=1e-2)
    for _ in trainer.steps():
        pass
    adapters.save(trainer.model, tmp_path, "base")
    assert json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"] == "base"
    theirs = PeftModel.from_pretrained(model_of(), str(tmp_path)).eval()
    trainer.model.eval()
    trainer.parts.attend_with(trainer.parts.own_attention)
    tokens = torch.arange(1, 30)[None]
    with torch.no_grad():
        torch.testing.assert_close(trainer.model(tokens).logits, theirs(tokens).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", ["rslora", "patterns", "dora", "saved module"])
def test_gradients_are_pefts_own(variant: str) -> None:
    rows = rows_of(LENGTHS)
    ours = trainer_of(model_of(), rows, adapter=VARIANTS[variant])
    scatter_b(ours)
    loss, gradients = packed(ours)
    theirs = trainer_of(model_of(), rows, adapter=VARIANTS[variant], layer_kernels="off")
    scatter_b(theirs)
    for layer in adapters.fast_layers(theirs.model):
        layer.__class__ = type(layer).__mro__[1]  # PEFT's forward again
    truth, expected = row_by_row(theirs, rows)
    assert loss == pytest.approx(truth, rel=1e-5)
    assert_close(gradients, expected, 1e-4)


def test_dropout_drops_the_adapters_input_only() -> None:
    settings = Adapter(rank=4, dropout=0.5)
    model = adapters.attach(model_of(), settings, 0)
    layer = adapters.fast_layers(model)[0]
    peft_class = type(layer).__mro__[1]
    torch.nn.init.normal_(layer.lora_B["default"].weight)
    x = torch.randn(7, 64)
    layer.train()
    for weight in (layer.lora_A["default"].weight, layer.lora_B["default"].weight):
        weight.grad = torch.zeros_like(weight)
    torch.manual_seed(5)
    ours = layer(x)
    torch.manual_seed(5)
    theirs = peft_class.forward(layer, x)
    torch.testing.assert_close(ours, theirs)
    ours.sum().backward()
    found = [layer.lora_A["default"].weight.grad.clone(), layer.lora_B["default"].weight.grad.clone()]
    for weight in (layer.lora_A["default"].weight, layer.lora_B["default"].weight):
        weight.grad.zero_()
    theirs.sum().backward()
    torch.testing.assert_close(found[0], layer.lora_A["default"].weight.grad)
    torch.testing.assert_close(found[1], layer.lora_B["default"].weight.grad)
    layer.eval()
    torch.testing.assert_close(layer(x), peft_class.forward(layer, x))


def test_training_goes_on_from_an_earlier_adapter(tmp_path: Path) -> None:
    rows = rows_of(LENGTHS)
    first = trainer_of(model_of(), rows, adapter={"rank": 2, "targets": ["q_proj", "gate_proj"]}, steps=2)
    for _ in first.steps():
        pass
    loss, _ = first.evaluate(rows)
    adapters.save(first.model, tmp_path, "base")
    from bc250studio.profiles.train import Train
    from bc250studio.train.engine import Trainer

    settings = Train(tokens_per_step=256, tokens_per_pass=256, loss_chunk=16)
    second = Trainer(model_of(), rows, settings, Adapter(), start_from=tmp_path, sizes="free")
    assert second.flat.count == first.flat.count
    assert second.evaluate(rows)[0] == pytest.approx(loss, rel=1e-6)
    assert second.step().gradient_norm > 0


def test_targets_that_name_no_layer_are_refused() -> None:
    with pytest.raises(BadInput, match="does not fit this model"):
        adapters.attach(model_of(), Adapter(targets=["query_proj"]), 0)


def test_an_earlier_adapter_that_is_not_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not fit this model"):
        adapters.attach(model_of(), Adapter(), 0, tmp_path)
