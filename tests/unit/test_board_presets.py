"""Presets as data, and the one place that makes a runner's environment."""

from __future__ import annotations

import re

import pytest

from bc250studio import profiles
from bc250studio.board import presets
from bc250studio.board.preset_table import PRESETS
from bc250studio.errors import BadInput
from bc250studio.profiles import Profile

BC250 = presets.of("gfx1013")


def test_every_row_has_its_address_and_nothing_on_gfx1013_is_called_measured() -> None:
    assert [row.name for row in PRESETS] == [
        "gfx1013", "rdna1", "rdna2", "rdna3", "rdna3.5", "rdna4", "gfx906", "cdna", "nvidia", "cpu",
    ]  # fmt: skip
    covered = [gfx for row in PRESETS for gfx in row.gfx]
    assert len(covered) == len(set(covered))
    for row in PRESETS:
        assert row.source.startswith("https://")
        assert not (row.gfx and row.measured), "no AMD chip was at hand"
        assert 70 <= row.throttle_c <= 110
        assert all(re.fullmatch(r"[A-Z][A-Z0-9_]+", variable.name) and variable.why for variable in row.environment)


def test_no_preset_ever_sets_an_override() -> None:
    for row in PRESETS:
        environment, _ = presets.runner_environment(Profile(), presets.of(row.name), {})
        assert not any("OVERRIDE" in name for name in environment)


def test_the_boards_environment() -> None:
    assert presets.environment_for(Profile(), BC250) == {"HSA_ENABLE_SDMA": "0", "TORCH_BLAS_PREFER_HIPBLASLT": "0"}
    tuned = presets.environment_for(Profile(), BC250, "/home/me/tuned")
    assert tuned["ROCBLAS_TENSILE_LIBPATH"] == "/home/me/tuned"
    cpu = profiles.from_text('[model]\ndevice = "cpu"\n', "test").profile
    assert presets.environment_for(cpu, BC250, "/x") == {}


def test_what_the_user_had_set_is_replaced_or_removed_only_with_a_word() -> None:
    before = {"HSA_OVERRIDE_GFX_VERSION": "10.3.0", "HSA_ENABLE_SDMA": "1", "HOME": "/home/me"}
    environment, notes = presets.runner_environment(Profile(), BC250, before)
    assert environment == {"HOME": "/home/me", "HSA_ENABLE_SDMA": "0", "TORCH_BLAS_PREFER_HIPBLASLT": "0"}
    assert len(notes) == 2
    assert "HSA_OVERRIDE_GFX_VERSION=10.3.0 is taken out" in notes[0] and "HSA_ENABLE_SDMA=0 replaces 1" in notes[1]
    assert before["HSA_ENABLE_SDMA"] == "1", "pure"
    again, quiet = presets.runner_environment(Profile(), BC250, environment)
    assert (again, quiet) == (environment, [])


def test_what_a_preset_only_recommends_stays_as_the_user_set_it() -> None:
    chip = presets.of("rdna2")
    environment, notes = presets.runner_environment(Profile(), chip, {"TORCH_BLAS_PREFER_HIPBLASLT": "1"})
    assert environment["TORCH_BLAS_PREFER_HIPBLASLT"] == "1" and "kept as you set it" in notes[0]
    override = {"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}
    assert presets.runner_environment(Profile(), chip, override)[0]["HSA_OVERRIDE_GFX_VERSION"] == "10.3.0"


def test_a_run_on_the_cpu_gets_nothing_of_the_chip() -> None:
    cpu = profiles.from_text('[model]\ndevice = "cpu"\n', "test").profile
    before = {"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}
    assert presets.runner_environment(cpu, BC250, before) == (before, [])


def test_unknown_names_and_pages_without_marks_are_sentences() -> None:
    with pytest.raises(BadInput, match="No chip preset is called 'gfx9999'"):
        presets.of("gfx9999")
    with pytest.raises(BadInput, match="presets: begin"):
        presets.with_table("# A page\n")
