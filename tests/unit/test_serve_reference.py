"""reference.safetensors: read whole, or refused in words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from bc250studio.errors import BadInput
from bc250studio.serve.reference import read_reference


def arrays() -> dict[str, np.ndarray]:
    logp = -np.arange(64, dtype=np.float32)[None].repeat(3, 0) - 0.5
    ids = np.arange(64, dtype=np.int32)[None].repeat(3, 0) + np.arange(3, dtype=np.int32)[:, None]
    return {
        "ids": np.arange(10, dtype=np.int32),
        "offsets": np.array([0, 4, 10], np.int64),
        "sequence": np.array([1, 0, 1], np.int32),
        "position": np.array([5, 3, 2], np.int32),
        "served_adapter.ids": ids,
        "served_adapter.logp": logp,
    }


def written(folder: Path, **changes: np.ndarray) -> Path:
    path = folder / "reference.safetensors"
    save_file({**arrays(), **changes}, path, metadata={"facts": json.dumps({"tokens": 3})})
    return path


def test_positions_come_in_reading_order_with_their_rows(tmp_path: Path):
    found = read_reference(written(tmp_path))
    assert list(zip(found.sequence, found.position, strict=True)) == [(0, 3), (1, 2), (1, 5)]
    assert [int(row[0]) for row in found.variants["served_adapter"].ids] == [1, 2, 0]
    assert found.prompt(0) == [0, 1, 2]
    assert found.prompt(1) == [4, 5]
    assert found.longest == 5
    assert found.facts == {"tokens": 3}


@pytest.mark.parametrize(
    "changes",
    [
        {"position": np.array([0, 3, 2], np.int32)},
        {"position": np.array([6, 3, 2], np.int32)},
        {"sequence": np.array([2, 0, 1], np.int32)},
        {"offsets": np.array([0, 4, 11], np.int64)},
        {"offsets": np.array([0, 11, 10], np.int64)},
        {"served_adapter.logp": np.full((3, 64), np.nan, np.float32)},
        {"served_adapter.logp": np.ones((3, 64), np.float32)},
        {"served_adapter.ids": np.zeros((2, 64), np.int32)},
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path: Path, changes: dict[str, np.ndarray]):
    with pytest.raises(BadInput, match="does not fit together"):
        read_reference(written(tmp_path, **changes))


def test_a_missing_file_says_which_stage_writes_it(tmp_path: Path):
    with pytest.raises(BadInput, match="reference stage, before the server starts"):
        read_reference(tmp_path / "reference.safetensors")


@given(cut=st.integers(0, 4000), noise=st.binary(max_size=40))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_an_error_in_words(tmp_path: Path, cut: int, noise: bytes):
    path = written(tmp_path)
    whole = path.read_bytes()
    damaged = whole[:cut] + noise + whole[cut + len(noise) : -1]
    assume(damaged != whole)  # a cut behind the end damages nothing
    path.write_bytes(damaged)
    with pytest.raises(BadInput):
        read_reference(path)
