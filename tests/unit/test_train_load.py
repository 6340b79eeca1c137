"""Loading: types by device, and a bf16 checkpoint in fp16 counted weight by weight."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bc250studio.errors import BadInput
from bc250studio.models import load
from tests.train_help import model_of


def saved(folder: Path, change: Any = None) -> Any:
    model = model_of().to(torch.bfloat16)
    if change is not None:
        with torch.no_grad():
            change(model)
    model.save_pretrained(folder)
    return SimpleNamespace(kind="folder", name="tiny", folder=folder, gguf=None, has_config=True)


def test_the_cpu_trains_in_fp32() -> None:
    assert load.choose_dtype("auto", torch.device("cpu")) is torch.float32
    assert load.choose_dtype("bf16", torch.device("cpu")) is torch.bfloat16
    assert load.choose_device("cpu") == torch.device("cpu")


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadInput, match="sees"):
        load.choose_device("cuda:7")
    with pytest.raises(BadInput, match="is no device"):
        load.choose_device("gpu zero")


def test_a_bf16_checkpoint_in_fp16_says_what_vanished(tmp_path: Path) -> None:
    def shrink(model: Any) -> None:
        model.lm_head.weight[0, :5] = 1e-9

    model = load.load(saved(tmp_path, shrink), dtype=torch.float16, device="cpu")
    assert model.conversion.overflowed == 0
    assert model.conversion.vanished == 5
    assert model.lm_head.weight.dtype is torch.float16
    assert "5 became zero" in model.conversion.sentence(torch.float16)
    assert not any(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("value", [70000.0, float("nan")])
def test_a_weight_beyond_fp16_is_refused_by_name(tmp_path: Path, value: float) -> None:
    def grow(model: Any) -> None:
        model.model.layers[1].mlp.up_proj.weight[3, 4] = value

    source = saved(tmp_path, grow)
    with pytest.raises(BadInput, match=r"layers\.1\.mlp\.up_proj.*set model\.precision to bf16 or fp32"):
        load.load(source, dtype=torch.float16, device="cpu")
    assert load.load(source, dtype=torch.float32, device="cpu") is not None


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no-such-thing"}')
    source: Any = SimpleNamespace(kind="folder", name="odd", folder=tmp_path, gguf=None, has_config=True)
    with pytest.raises(BadInput, match="The model odd cannot be loaded"):
        load.load(source, dtype=torch.float32, device="cpu")
