"""The estimate of training's memory against a process that really trains, and a run that checks its own."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from bc250studio import profiles
from bc250studio.board import presets
from bc250studio.cli.main import main
from bc250studio.models import memory_measured, memory_training
from bc250studio.models.describe import describe
from bc250studio.models.find import find
from bc250studio.train import memory_check
from tests.tiny import tiny_model

pytestmark = pytest.mark.slow


def test_the_estimate_is_within_a_tenth_of_the_measured_peak(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = ["bench", "fit", "--model", "random:smollm2-135m", "--tokens", "512", "--recompute", "none,layer"]
    assert main([*words, "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    kept, again = found["results"]["points"]
    assert kept["losses"] == pytest.approx(again["losses"], rel=1e-4)  # both trained, and trained the same
    assert kept["measured_bytes"] > again["measured_bytes"] and kept["estimated_bytes"] > again["estimated_bytes"]
    assert abs(kept["off"]) <= 0.1 and abs(again["off"]) <= 0.1
    assert sum(kept["parts"].values()) == kept["estimated_bytes"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--model", "random:smollm2-135"], "smollm2-135m"),
        (["--model", "random:smollm2-135m", "--recompute", "lite"], "light"),
        (["--model", "random:smollm2-135m", "--tokens", "many"], "whole numbers"),
    ],
)
def test_wrong_options_are_sentences(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "fit", *words, "--device", "cpu"]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(("factor", "words"), [(1.0, "as estimated"), (1.4, "corrected by that")])
def test_a_run_says_what_its_first_steps_took(factor: float, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    source = find(str(tiny_model("llama")))
    profile = profiles.from_text(f'[model]\nbase = "{source.folder}"\ndevice = "cpu"\n', "test").profile
    chip = presets.of("cpu")
    expected = memory_training.training(describe(source), profile, chip).total_bytes
    measured = int(factor * expected)
    monkeypatch.setattr(memory_check, "peak_bytes", lambda device: measured)
    said: list[tuple[str, str, dict[str, Any]]] = []
    trainer: Any = SimpleNamespace(device=torch.device("cpu"), recompute=["none", "none"])
    check = memory_check.MemoryCheck(
        profile, source, trainer, lambda kind, text, **facts: said.append((kind, text, facts))
    )
    for number in range(1, 6):
        check.after(SimpleNamespace(number=number, of=5))  # type: ignore[arg-type]
    ((kind, text, facts),) = said
    assert kind == "note" and words in text
    assert facts["memory_measured_gib"] == pytest.approx(factor * facts["memory_estimated_gib"], abs=0.002)
    assert memory_measured.training(describe(source), profile, chip).total_bytes == pytest.approx(measured, rel=1e-3)


def test_a_run_with_another_plan_than_the_estimates_corrects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    source = find(str(tiny_model("llama")))
    profile = profiles.from_text(f'[model]\nbase = "{source.folder}"\ndevice = "cpu"\n', "test").profile
    monkeypatch.setattr(memory_check, "peak_bytes", lambda device: 1 << 30)
    said: list[str] = []
    trainer: Any = SimpleNamespace(device=torch.device("cpu"), recompute=["layer", "none"])
    check = memory_check.MemoryCheck(profile, source, trainer, lambda kind, text, **facts: said.append(text))
    check.after(SimpleNamespace(number=1, of=1))  # type: ignore[arg-type]
    assert said == []
    chip = presets.of("cpu")
    assert memory_measured.training(describe(source), profile, chip) == memory_training.training(
        describe(source), profile, chip
    )
