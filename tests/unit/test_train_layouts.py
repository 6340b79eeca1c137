"""Sizes stand still: few rungs, few layouts, full passes, every row once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bc250studio.errors import BadInput
from bc250studio.train import layouts


def chat_like(count: int = 999) -> np.ndarray:
    """Lengths with the shape of instruction data: many short rows, a long tail."""
    random = np.random.default_rng(5)
    return np.clip(np.exp(random.normal(5.0, 0.7, count)).astype(np.int64) + 20, 21, 1024)


@pytest.mark.parametrize("tokens", [256, 512, 1024, 2048, 4096, 8192])
def test_ladder_is_short_and_ends_at_the_pass(tokens: int) -> None:
    rungs = layouts.ladder(tokens)
    assert len(rungs) <= layouts.MOST_RUNGS
    assert rungs[-1] == tokens
    assert list(rungs) == sorted(set(rungs))


@pytest.mark.parametrize("tokens", [1024, 2048, 8192])
def test_passes_are_full_with_few_layouts(tokens: int) -> None:
    lengths = chat_like()
    sizes = layouts.choose(lengths, tokens, "fixed")
    passes = layouts.epoch(lengths, sizes, seed=0, number=0)
    assert len(sizes.layouts) <= layouts.MOST_LAYOUTS
    assert layouts.fill(passes, lengths, sizes) >= 0.85
    assert attention_sizes(passes, sizes) <= 16


@pytest.mark.parametrize("tokens", [1024, 2048, 4096, 8192])
def test_passes_are_full_on_the_public_lengths(shared_data: Path, tokens: int) -> None:
    rows = json.loads((shared_data / "alpaca_lengths.json").read_text())
    lengths = np.array([total for _, total in rows])
    sizes = layouts.choose(lengths, tokens, "fixed")
    passes = layouts.epoch(lengths, sizes, seed=1, number=0)
    assert len(sizes.layouts) <= layouts.MOST_LAYOUTS
    assert layouts.fill(passes, lengths, sizes) >= 0.85


def attention_sizes(passes: list[layouts.Pass], sizes: layouts.Sizes) -> int:
    """Different (slots, rung) pairs: sizes of one attention product."""
    return len({group for p in passes for group in sizes.layouts[p.layout].groups})


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(9, 300), min_size=1, max_size=80),
    st.sampled_from(["fixed", "free", "padded"]),
    st.integers(0, 8),
)
def test_every_row_is_in_exactly_one_pass(lengths: list[int], kind: str, prefix: int) -> None:
    array = np.array(lengths)
    prefix = 0 if kind == "padded" else prefix
    sizes = layouts.choose(array, 304, kind, prefix)
    passes = layouts.epoch(array, sizes, seed=3, number=0)
    assert Counter(r for p in passes for r in p.rows) == Counter(range(len(lengths)))
    for p in passes:
        if kind == "padded":
            assert max(array[list(p.rows)]) * len(p.rows) <= 304 or len(p.rows) == 1
            continue
        assert prefix + sum(int(array[r]) - prefix for r in p.rows) <= 304
        if kind == "fixed":
            slots = layouts.assign(p.rows, array, sizes.layouts[p.layout])
            assert len(set(slots)) == len(slots)
            flat = [rung for count, rung in sizes.layouts[p.layout].groups for _ in range(count)]
            assert all(flat[slot] >= array[row] for slot, row in zip(slots, p.rows, strict=True))


def test_rows_that_fill_a_pass_alone_need_no_spare_slot() -> None:
    sizes = layouts.choose(np.full(5, 128), 128, "fixed")
    passes = layouts.epoch(np.full(5, 128), sizes, 0, 0)
    assert sizes.layouts == (layouts.Layout(((1, 128),)),)
    assert layouts.fill(passes, np.full(5, 128), sizes) == 1.0
    mixed = np.array([128, 128, 40, 30])
    both = layouts.choose(mixed, 128, "fixed")
    assert sorted(len(p.rows) for p in layouts.epoch(mixed, both, 0, 0)) == [1, 1, 2]


def test_a_row_longer_than_a_pass_is_refused_with_what_to_do() -> None:
    with pytest.raises(BadInput, match=r"raise train\.tokens_per_pass or lower data\.max_length"):
        layouts.choose(np.array([40, 600]), 512, "fixed")


def test_the_plan_is_known_before_the_first_step_and_counts_the_last_window() -> None:
    lengths = chat_like(50)
    sizes = layouts.choose(lengths, 2048, "free")
    plan = layouts.steps(lengths, sizes, passes_per_step=2, seed=4, epochs=2.0, wanted=None)
    seen = Counter(row for step in plan for p in step for row in p.rows)
    assert seen == Counter(dict.fromkeys(range(50), 2))
    assert plan == layouts.steps(lengths, sizes, 2, 4, 2.0, None)
    assert plan != layouts.steps(lengths, sizes, 2, 5, 2.0, None)
    assert len(layouts.steps(lengths, sizes, 2, 4, 2.0, wanted=33)) == 33


def test_half_an_epoch_takes_half_of_the_rows() -> None:
    lengths = chat_like(60)
    plan = layouts.steps(lengths, layouts.choose(lengths, 2048, "free"), 1, 0, 1.5, None)
    assert sum(len(p.rows) for step in plan for p in step) == 90
