"""A measured run corrects the next estimate of its kind, and nothing else does."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bc250studio import paths, profiles
from bc250studio.bench.shapes import describe_shape
from bc250studio.board import presets
from bc250studio.board.fit import Facts, judge
from bc250studio.models import memory_measured, memory_training

CPU = presets.of("cpu")
SHAPE = "random:smollm2-135m"


def profile(text: str = ""):
    return profiles.from_text(f'[model]\nbase = "{SHAPE}"\ndevice = "cpu"\n{text}', "test").profile


@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_the_next_estimate_is_what_was_measured(factor: float) -> None:
    numbers = describe_shape(SHAPE)
    first = memory_measured.training(numbers, profile(), CPU)
    assert first == memory_training.training(numbers, profile(), CPU)
    measured = first.parts["weights"] + int(factor * (first.total_bytes - first.parts["weights"]))
    memory_measured.remember(profile(), CPU, first, measured)
    second = memory_measured.training(numbers, profile(), CPU)
    assert second.total_bytes == pytest.approx(measured, rel=1e-3)
    assert second.parts["weights"] == first.parts["weights"]
    assert "corrected" in judge(second, Facts("the CPU", False, None, None, 1 << 36, 1 << 36)).sentence
    # A smaller pass of the same kind is corrected by the same share; another plan is another kind.
    smaller = "[train]\ntokens_per_pass = 256\ntokens_per_step = 256\n"
    plain = memory_training.training(numbers, profile(smaller), CPU)
    corrected = memory_measured.training(numbers, profile(smaller), CPU)
    assert (corrected.total_bytes > plain.total_bytes) == (factor > 1)
    other = profile('[train]\nrecompute = "layer"\n')
    assert memory_measured.training(numbers, other, CPU) == memory_training.training(numbers, other, CPU)
    # What other settings would take is corrected too, and stays in its order of size.
    assert [a.words for a in second.alternatives] == [a.words for a in first.alternatives]
    pairs = zip(first.alternatives, second.alternatives, strict=True)
    assert all((b.total_bytes > a.total_bytes) == (factor > 1) for a, b in pairs)


@pytest.mark.parametrize("share", [0.1, 9.0])
def test_a_measurement_that_cannot_be_the_estimates_error_is_not_kept(share: float) -> None:
    estimate = memory_training.training(describe_shape(SHAPE), profile(), CPU)
    memory_measured.remember(profile(), CPU, estimate, int(share * estimate.total_bytes))
    assert not (paths.data_dir() / "memory-measured.json").exists()


@given(st.binary(max_size=200) | st.sampled_from([b"[]", b'{"x": 1}', b"[" * 5000]))
def test_a_broken_file_corrects_nothing(junk: bytes) -> None:
    paths.private_dir(paths.data_dir())
    paths.write_atomic(paths.data_dir() / "memory-measured.json", junk)
    numbers = describe_shape(SHAPE)
    assert memory_measured.training(numbers, profile(), CPU) == memory_training.training(numbers, profile(), CPU)
    for entry in (1, {"ratio": "a"}, {"ratio": 1e9}, {"ratio": None}):
        text = json.dumps({memory_measured.key(profile(), CPU): entry})
        paths.write_atomic(paths.data_dir() / "memory-measured.json", text)
        assert memory_measured.training(numbers, profile(), CPU) == memory_training.training(numbers, profile(), CPU)


def test_a_run_on_the_cpu_is_of_one_kind_whatever_chip_is_there() -> None:
    """The runner asks for the CPU's preset, ``models fit`` for the machine's: both must find the same entry."""
    assert memory_measured.key(profile(), presets.of("gfx1013")) == memory_measured.key(profile(), CPU)
