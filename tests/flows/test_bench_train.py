"""``bench train`` and ``bench step`` as a user types them, on a tiny random model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bc250studio.bench import recipes_ours, recipes_step, recipes_train, records
from bc250studio.bench.report import step_text, train_text
from bc250studio.cli.main import main
from bc250studio.jobs.progress import silent

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 300,
    "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tiny products gain nothing from a second thread, and lose much on a busy machine."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def shape(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return f"random:{tmp_path / 'config.json'}"


@pytest.fixture
def lengths(tmp_path: Path) -> str:
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps([[3 + i % 5, 12 + 7 * (i % 6)] for i in range(30)]))
    return str(path)


def measured(recipe: Any, *words: str) -> dict[str, Any]:
    """What the recipe's own process would measure, without a process of its own."""
    parser = argparse.ArgumentParser()
    recipe.add(parser)
    found = recipe.measure(vars(parser.parse_args([*words, "--device", "cpu"])), silent)
    assert isinstance(found, dict)
    return found


def test_ours_and_the_post_agree_on_the_same_rows(shape: str, lengths: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "train", "--model", shape, "--lengths", lengths, "--tokens", "128", "--rows", "16"]
    code = main([*command, "--device", "cpu", "--against", "post", "--check-steps", "3", "--json"])
    assert code == 0
    result = json.loads(capsys.readouterr().out)
    assert result["losses_equal"] and result["loss_difference"] < 1e-4 and result["ratio"] > 0
    baseline, ours = result["results"]["baselines"][0], result["results"]["variants"][0]
    # Each side trained on the same tokens; only the positions computed differ.
    assert sum(t["real_tokens"] for t in baseline["turns"]) == sum(t["real_tokens"] for t in ours["turns"])
    assert sum(t["labelled_tokens"] for t in baseline["turns"]) == sum(t["labelled_tokens"] for t in ours["turns"])
    assert baseline["turns"][0]["all_positions"] > ours["turns"][0]["all_positions"]
    # The steps of the check moved the adapter: the held-out loss is another one after them, on both sides.
    assert ours["losses"]["held_out_before"] != ours["losses"]["held_out_after"]
    assert ours["peak_gib"] > 0 and len(ours["losses"]["equal_steps"]) == 3
    assert records.read(result["record"])["summary"].endswith("post")


def test_full_rows_pass_sizes_and_the_plan(shape: str) -> None:
    found = measured(
        recipes_train, "--model", shape, "--random", "--tokens", "32,64", "--rows", "4", "--rounds", "1",
        "--against", "reference,plain", "--check-steps", "2", "--plan",
    )  # fmt: skip
    table = train_text(found)
    assert [side["name"] for side in found["results"]["baselines"]] == ["reference", "plain"] * 2
    for name in ("ours 32 ", "ours 64 ", "ours 32 recompute=layer", "ours 32 packing=False", "ours 32 dtype=bf16"):
        assert name in table
    same_type = [side for side in found["results"]["variants"] if "dtype" not in side["changed"]]
    assert all(side["claimed"] and side["ratios"]["plain"] > 0 for side in same_type)


@pytest.mark.parametrize("against", ["plain", "reference", "post"])
def test_every_weight_is_trained_as_plain_transformers_does(shape: str, lengths: str, against: str) -> None:
    found = measured(
        recipes_train, "--model", shape, "--lengths", lengths, "--tokens", "128", "--rows", "12", "--rounds", "1",
        "--against", against, "--kind", "full", "--check-steps", "3", "--dtype", "fp32,bf16",
    )  # fmt: skip
    baseline = found["results"]["baselines"][0]
    full, halves = found["results"]["variants"]
    assert full["claimed"] and full["loss_difference"] < 1e-4
    assert full["losses"]["held_out_before"] != full["losses"]["held_out_after"]
    assert "transformers, padded by" in baseline["words"] and found["regime"]["adapter"].startswith("every weight")
    # 16-bit weights lose small updates: the row shows both losses.
    assert halves["changed"] == {"dtype": "bf16"} and halves["losses"]["held_out_after"] > 0
    assert "dtype=bf16" in train_text(found)


def test_a_type_that_does_not_exist_is_a_sentence(shape: str, lengths: str) -> None:
    words = ["bench", "train", "--model", shape, "--lengths", lengths, "--dtype", "fp32,fp8"]
    assert main(words) == 2


def test_an_engine_that_computes_something_else_gets_no_claim(
    shape: str, lengths: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes_ours, "LEARNING_RATE", {"lora": 1e-2})
    found = measured(
        recipes_train, "--model", shape, "--lengths", lengths, "--tokens", "128", "--rows", "12", "--rounds", "1"
    )
    assert found["results"]["loss_difference"] > 1e-3
    assert not found["results"]["losses_equal"] and "not claimed" in train_text(found)


def test_a_step_is_taken_apart(shape: str, lengths: str) -> None:
    words = ("--model", shape, "--lengths", lengths, "--tokens", "128", "--recipes", "ours,reference", "--steps", "1")
    found = measured(recipes_step, *words)
    recipes = found["results"]["recipes"]
    assert [recipe["name"] for recipe in recipes] == ["ours", "reference"]
    for recipe in recipes:
        names = {row["name"] for row in recipe["classes"]}
        assert {"products NT fp32", "products NN fp32", "products TN fp32", "loss: products", "host gaps"} <= names
        assert recipe["product_tflop"] > 0
    assert "whole step" in step_text(found)


@pytest.mark.parametrize("verb", ["train", "step"])
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--model", "random:minicpm5-2", "--random"], "Did you mean 'minicpm5-2b'"),
        (["--model", "SHAPE", "--random", "--tokens", "2k"], "--tokens takes whole numbers"),
        (["--model", "SHAPE", "--data", "x.json"], "no tokenizer"),
        (["--model", "SHAPE", "--lengths", "/nowhere.json"], "cannot be read"),
        (["--model", "./nowhere", "--random"], "No model"),
    ],
)
def test_bad_input_ends_with_two_and_leaves_no_record(
    shape: str, verb: str, words: list[str], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", verb, *(shape if word == "SHAPE" else word for word in words)]) == 2
    assert wanted in capsys.readouterr().err
    assert records.names() == []


def test_what_only_torch_knows_comes_back_from_the_process(shape: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "train", "--model", shape, "--random", "--device", "cuda:77"]) == 2
    assert "no device 'cuda:77'" in capfd.readouterr().err
