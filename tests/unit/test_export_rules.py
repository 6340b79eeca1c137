"""What may be an adapter, what only a merged file, and what neither: known before training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bc250studio import profiles
from bc250studio.errors import BadInput
from bc250studio.export.rules import route
from bc250studio.models.describe import Description, describe
from bc250studio.models.find import find
from tests.tiny import tiny_model

BASE: dict[str, Any] = {"peft_type": "LORA", "r": 16, "lora_alpha": 16, "target_modules": ["q_proj"]}


def profile(**overrides: Any) -> profiles.Profile:
    """A profile with some keys set."""
    return profiles.from_text("", "test", overrides={k.replace("__", "."): v for k, v in overrides.items()}).profile


@pytest.fixture(scope="module")
def tied() -> Description:
    """SmolLM2: tied embeddings."""
    return describe(find("demo:smollm2-135m"))


@pytest.fixture(scope="module")
def untied() -> Description:
    """A tiny Llama with its own output."""
    return describe(find(str(tiny_model("llama"))))


def test_plain_lora_is_an_adapter(tied: Description) -> None:
    for options in ({}, {"adapter__rslora": True}, {"adapter__alpha_pattern": {"v_proj": 64.0}}):
        assert route(profile(**options), tied).kind == "adapter"
    assert route(profile(export__kind="merged"), tied).kind == "merged"
    assert route(profile(), None).kind == "adapter"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"adapter__dora": True}, "DoRA"),
        ({"adapter__kind": "full"}, "all weights"),
        ({"adapter__modules_to_save": ["norm"]}, "norm is trained whole"),
        ({"adapter__modules_to_save": ["embed_tokens"]}, "embed_tokens is trained whole"),
        ({"adapter__targets": ["q_proj", "lm_head"]}, "lm_head is tied"),
        ({"adapter__targets": ["q_proj", "embed_tokens"]}, "embed_tokens is tied"),
    ],
)
def test_goes_to_the_merged_way_and_says_why(options: dict[str, Any], words: str, tied: Description) -> None:
    found = route(profile(**options), tied)
    assert found.kind == "merged" and words in found.sentence and found.reasons


def test_untied_head_is_an_adapter(untied: Description) -> None:
    assert route(profile(adapter__targets=["q_proj", "lm_head", "embed_tokens"]), untied).kind == "adapter"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"init_lora_weights": "pissa_niter_4"}, "changes the base's weights"),
        ({"init_lora_weights": "olora"}, "changes the base's weights"),
        ({"use_qalora": True}, "use_qalora"),
        ({"use_something_new": True}, "use_something_new"),
        ({"kasa_config": {"a": 1}}, "kasa_config"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens"),
    ],
)
def test_refused_in_words(change: dict[str, Any], words: str, tied: Description) -> None:
    with pytest.raises(BadInput, match=words):
        route({**BASE, **change}, tied)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "biases"),
        ({"lora_bias": True}, "biases"),
        ({"trainable_token_indices": [3]}, "single tokens"),
        ({"modules_to_save": ["lm_head"]}, "lm_head is trained whole"),
    ],
)
def test_anyones_adapter_config(change: dict[str, Any], words: str, untied: Description) -> None:
    assert route(BASE, untied).kind == "adapter"
    assert words in route({**BASE, **change}, untied).sentence


def test_gemma_cannot_part_head_and_embedding() -> None:
    gemma = describe(find(str(tiny_model("gemma2", tie_word_embeddings=True))))
    assert route(profile(), gemma).kind == "adapter"
    with pytest.raises(BadInput, match="always uses the embedding"):
        route(profile(adapter__modules_to_save=["lm_head"]), gemma)


def test_experts_are_refused_before_training() -> None:
    mixture = describe(find(str(tiny_model("mixtral"))))
    assert route(profile(adapter__targets=["q_proj", "o_proj"]), mixture).kind == "adapter"
    for targets in ("all-linear", ["q_proj", "w1"]):
        with pytest.raises(BadInput, match="experts"):
            route(profile(adapter__targets=targets), mixture)


def test_unknown_architecture_is_refused(tied: Description) -> None:
    from dataclasses import replace

    with pytest.raises(BadInput, match="row layout"):
        route(profile(), replace(tied, gguf_arch="brandnew"))


def test_an_earlier_dora_adapter_counts(tmp_path: Path, tied: Description) -> None:
    import json

    (tmp_path / "adapter_config.json").write_text(json.dumps({**BASE, "use_dora": True}))
    assert route(profile(adapter__start_from=str(tmp_path)), tied).kind == "merged"
