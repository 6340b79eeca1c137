"""Fit: estimates against a written 512 MiB + 14 GiB board, with the right verdict and the knob named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bc250studio import profiles
from bc250studio.board import fit, presets
from bc250studio.board.fit import GIB, MIB, Alternative, Estimate, Facts, judge
from bc250studio.cli.main import main
from bc250studio.cli.models_fit import _describe
from bc250studio.errors import BadInput
from bc250studio.models import memory, memory_training
from bc250studio.models.describe import Description
from tests.trees import Bc250, plain
from tests.trees.plain import put

LAYER = 'train.recompute = "layer"'
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rope_theta": 500000.0, "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
}  # fmt: skip


@pytest.fixture
def llama_8b(tmp_path: Path) -> str:
    folder = tmp_path / "llama-8b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    return str(folder)


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """512 MiB carved out, 14 GiB GTT, 13,000 MiB available: what an idle board has."""
    return Bc250(tmp_path / "board").write().root


def numbers(name: str) -> Description:
    return _describe(name)[0]


def test_what_a_board_has_is_the_nearer_of_two_walls(board: Path, tmp_path: Path) -> None:
    found = fit.facts(board)
    assert found.shared and found.device.startswith("AMD BC-250")
    assert found.device_total == (512 + 14336) * MIB
    assert found.device_free == (512 - 200 + 14336 - 1024) * MIB
    # 13,000 available less 400 in reserve, and 312 of the carve-out, which Linux does not count.
    assert found.budget_bytes == (13000 - 400 + 312) * MIB
    assert "available memory, which GPU and system share" in found.wall
    limited = fit.facts(Bc250(tmp_path / "limited", page_limit_mib=7680).write().root)
    assert limited.budget_bytes == (312 + 7680 - 1024) * MIB and "driver may give" in limited.wall
    bare = fit.facts(plain(tmp_path / "plain"))
    assert (bare.device, bare.device_free, bare.budget_bytes) == ("the CPU", None, (6000 - 400) * MIB)
    with pytest.raises(BadInput, match="meminfo"):
        fit.facts(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("model", "quantisation", "context", "verdict", "knob"),
    [
        ("random:minicpm5-2b", "q4_k_m", 4096, "fits", ""),
        ("random:minicpm5-2b", "f16", 8192, "fits", ""),
        ("random:minicpm5-2b", "f16", 131072, "fits", ""),
        ("random:minicpm5-2b", "f32", 131072, "does not fit", "serve.context = 32768"),
        ("random:qwen3-4b", "q4_k_m", 8192, "fits", ""),
        ("random:qwen3-4b", "f16", 4096, "fits", ""),
        ("random:qwen3-4b", "f16", 40960, "does not fit", 'serve.cache_type_k = serve.cache_type_v = "q8_0"'),
        ("8b", "q4_k_m", 8192, "fits", ""),
        ("8b", "q8_0", 8192, "fits", ""),
        ("8b", "f16", 4096, "does not fit", 'export.quantisation = "q8_0"'),
        ("8b", "q8_0", 65536, "does not fit", "serve.context = 16384"),
    ],
)
def test_serving_three_models_on_a_512_mib_and_14_gib_board(
    board: Path, llama_8b: str, model: str, quantisation: str, context: int, verdict: str, knob: str
) -> None:
    description = numbers(llama_8b if model == "8b" else model)
    found = judge(memory.serving(description, quantisation=quantisation, context=context), fit.facts(board))
    assert (found.verdict, found.knob) == (verdict, knob), found
    assert f"{found.need_bytes / GIB:.1f} GiB" in found.sentence
    assert knob in found.sentence


def estimate(description: Description, settings: str, chip: str = "gfx1013") -> Estimate:
    return memory_training.training(description, profiles.from_text(settings, "test").profile, presets.of(chip))


@pytest.mark.parametrize(
    ("model", "settings", "verdict", "knob"),
    [
        ("random:minicpm5-2b", "", "tight", LAYER),
        ("random:minicpm5-2b", '[train]\nrecompute = "layer"\n', "fits", ""),
        ("random:minicpm5-2b", "[train]\ntokens_per_pass = 8192\ntokens_per_step = 8192\n", "does not fit", LAYER),
        (
            "random:minicpm5-2b",
            '[model]\nprecision = "fp32"\n',
            "does not fit",
            f'model.precision = "fp16" and {LAYER}',
        ),
        ("random:qwen3-4b", "", "does not fit", LAYER),
        ("random:qwen3-4b", '[train]\nrecompute = "layer"\n', "fits", ""),
        ("8b", "", "does not fit", ""),
        ("random:minicpm5-2b", '[adapter]\nkind = "full"\n', "does not fit", 'adapter.kind = "lora"'),
        ("random:smollm2-135m", '[adapter]\nkind = "full"\n', "fits", ""),
    ],
)
def test_training_three_models_on_a_512_mib_and_14_gib_board(
    board: Path, llama_8b: str, model: str, settings: str, verdict: str, knob: str
) -> None:
    found = judge(estimate(numbers(llama_8b if model == "8b" else model), settings), fit.facts(board))
    assert (found.verdict, found.knob) == (verdict, knob), found
    if model == "8b":
        assert "take a smaller model" in found.sentence


@pytest.mark.parametrize(
    ("tokens", "attention", "measured_gib"), [(2048, "auto", 10.384), (8192, "auto", 24.458), (2048, "math16", 10.363)]
)
def test_training_against_peaks_measured_on_an_h200(tokens: int, attention: str, measured_gib: float) -> None:
    """MiniCPM5-2B's shape, fp16, r=16, plan light, no device graph, torch 2.11, 2026-11-29: bench train's records."""
    settings = f'[model]\nprecision = "fp16"\n[train]\ntokens_per_pass = {tokens}\ntokens_per_step = {tokens}\n'
    found = estimate(numbers("random:minicpm5-2b"), settings + f'attention = "{attention}"\n', "nvidia")
    allocated = found.total_bytes - found.parts["allocator"] - found.parts["driver"]
    assert allocated / GIB == pytest.approx(measured_gib, rel=0.05)


def test_training_against_the_demos_peak_on_two_cores() -> None:
    """Resident peak of the shipped demo profile: 1.83 and 1.91 GiB in two runs, 2026-11-29."""
    demo = profiles.load("demo").profile
    found = memory_training.training(numbers("random:smollm2-135m"), demo, presets.of("cpu"))
    assert found.total_bytes / GIB == pytest.approx(1.87, rel=0.1)


def test_each_knob_of_training_takes_less() -> None:
    for model in ("random:minicpm5-2b", "random:qwen3-4b", "random:smollm2-135m"):
        for chip in ("gfx1013", "nvidia", "cpu"):
            found = estimate(numbers(model), "", chip)
            assert all(a.total_bytes < found.total_bytes for a in found.alternatives) and found.alternatives


def test_sizes_known_from_public_files() -> None:
    minicpm = numbers("random:minicpm5-2b")
    assert minicpm.parameters == 2_516_756_480
    assert memory.cache_bytes_per_token(minicpm) == 43_008
    assert memory.cache_bytes_per_token(minicpm) * 131_072 == pytest.approx(5.25 * GIB)
    assert memory.cache_bytes_per_token(minicpm, "q8_0", "q8_0") * 131_072 == pytest.approx(2.79 * GIB, rel=0.01)
    assert memory.adapter_parameters(minicpm, 16) == 25_116_672
    weights = memory.serving(minicpm).parts["weights"]
    assert weights == pytest.approx(1.56e9, rel=0.01)
    assert memory.serving(minicpm, quantisation="q8_0").parts["weights"] == pytest.approx(2.68e9, rel=0.01)


def test_other_programs_are_named_when_it_does_not_fit(tmp_path: Path, llama_8b: str) -> None:
    root = Bc250(tmp_path, available_mib=4000).write().root
    put(root, "/proc/900/cmdline", b"/usr/local/bin/ollama\0serve\0")
    found = judge(memory.serving(numbers(llama_8b)), fit.facts(root))
    assert found.verdict == "does not fit" and "ollama runs here" in found.sentence


def test_what_no_knob_can_save_says_take_a_smaller_model() -> None:
    machine = Facts("a GPU", False, 4 * GIB, 4 * GIB, 16 * GIB, 12 * GIB)
    found = judge(Estimate("serving", {"weights": 20 * GIB}, (Alternative("x = 1", 9 * GIB),)), machine)
    assert found.verdict == "does not fit" and not found.knob and "smaller model" in found.sentence
    busy = replace(machine, device_total=24 * GIB)
    assert "end other programs" in judge(Estimate("serving", {"weights": 20 * GIB}), busy).sentence


def test_a_tight_fit_is_called_tight_and_names_a_knob_with_more_room() -> None:
    machine = Facts("a GPU", False, 10 * GIB, 10 * GIB, 16 * GIB, 12 * GIB)
    ways = (Alternative("a = 1", int(9.5 * GIB)), Alternative("b = 2", 8 * GIB))
    found = judge(Estimate("serving", {"weights": int(9.7 * GIB)}, ways), machine)
    assert (found.verdict, found.knob) == ("tight", "b = 2")


def test_unknown_types_are_refused_with_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"Did you mean 'q4_k_m'"):
        memory.serving(numbers("random:qwen3-0.6b"), quantisation="q4km")


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["random:minicpm5-2b", "random:qwen3-4b", "random:smollm2-135m"]),
    st.sampled_from(sorted(memory.BITS_PER_WEIGHT)),
    st.integers(64, 1 << 17),
    st.sampled_from(sorted(memory.BITS_PER_CACHE_VALUE)),
    st.integers(0, 64 * GIB),
)
def test_a_named_knob_always_makes_it_smaller_and_fit(
    model: str, quantisation: str, context: int, cache: str, available: int
) -> None:
    estimate = memory.serving(
        numbers(model), quantisation=quantisation, context=context, key_type=cache, value_type=cache
    )
    assert all(part >= 0 for part in estimate.parts.values())
    machine = Facts("the CPU", False, None, None, 64 * GIB, available)
    found = judge(estimate, machine)
    if found.knob:
        (total,) = {a.total_bytes for a in estimate.alternatives if a.words == found.knob}
        assert total < estimate.total_bytes and total <= machine.budget_bytes
    assert (found.verdict == "does not fit") == (estimate.total_bytes > machine.budget_bytes)


def test_the_command_on_the_board(board: Path, llama_8b: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "fit", llama_8b, "--quantisation", "f16", "--root", str(board), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    serving = next(entry for entry in found["fits"] if entry["what"].startswith("serving"))
    assert serving["verdict"] == "does not fit" and serving["knob"] == 'export.quantisation = "q8_0"'
    assert main(["models", "fit", "random:minicpm5-2b", "--root", str(board)]) == 0
    text = capsys.readouterr().out
    assert "! tight: LoRA training of 2,048 tokens a pass (recompute light)" in text
    assert 'train.recompute = "layer" makes it' in text
    assert "✓ fits: serving q4_k_m" in text and "AMD BC-250" in text and "keys and values" in text
    assert main(["models", "fit", "random:minicpm6"]) == 2
    assert "these ship" in capsys.readouterr().err
