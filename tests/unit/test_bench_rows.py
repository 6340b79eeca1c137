"""Rows of a training bench: lengths files, full rows, and how they are shared out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bc250studio.bench import rows
from bc250studio.bench.recipes_race import equal_groups, slices
from bc250studio.errors import BadInput


def lengths_file(folder: Path, pairs: object) -> Path:
    path = folder / "lengths.json"
    path.write_text(json.dumps(pairs))
    return path


def test_lengths_become_rows_with_everything_after_the_prompt_labelled(tmp_path: Path) -> None:
    path = lengths_file(tmp_path, [[2, 5], [3, 4], [10, 300], [1, 9]])
    found = rows.from_lengths(path, vocabulary=50, count=10, tokens=64, seed=0, held_out=1)
    assert len(found.work) == 3 and len(found.held_out) == 1
    shapes = sorted((len(ids), int(labelled.sum())) for ids, labelled in map(found.rows.row, range(4)))
    assert shapes == [(4, 1), (5, 3), (9, 8), (64, 54)]
    assert all(int(ids.max()) < 50 for ids, _ in map(found.rows.row, range(4)))
    again = rows.from_lengths(path, vocabulary=50, count=10, tokens=64, seed=0, held_out=1)
    assert (again.rows.ids == found.rows.ids).all()


def test_full_rows_fill_a_pass(tmp_path: Path) -> None:
    found = rows.full_rows(vocabulary=50, count=3, tokens=32, seed=1)
    assert found.full and found.facts()["mean_tokens"] == 32
    assert equal_groups(found, 32, 2) == [[0], [1]]


@pytest.mark.parametrize("pairs", [[], {}, [[1]], [[5, 5]], [[0, 4]], [[1, True]], [["1", 2]]])
def test_a_lengths_file_that_cannot_be_rows_says_which(tmp_path: Path, pairs: object) -> None:
    with pytest.raises(BadInput, match=r"lengths\.json"):
        rows.read_lengths(lengths_file(tmp_path, pairs))


@given(st.binary(max_size=80))
def test_any_bytes_are_rows_or_bad_input(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("l") / "lengths.json"
    path.write_bytes(content)
    try:
        assert all(1 <= prompt < total for prompt, total in rows.read_lengths(path))
    except BadInput:
        pass


def test_groups_of_equal_steps_fit_a_pass_and_slices_cover_the_rows(tmp_path: Path) -> None:
    path = lengths_file(tmp_path, [[4, 20]] * 40)
    found = rows.from_lengths(path, vocabulary=50, count=36, tokens=100, seed=0, held_out=4)
    groups = equal_groups(found, 100, 3)
    assert [len(group) for group in groups] == [4, 4, 4]
    parts = slices(found.work, 3)
    assert sorted(index for part in parts for index in part) == sorted(found.work)
    assert slices([1, 2], 3) == [[1, 2]] * 3
