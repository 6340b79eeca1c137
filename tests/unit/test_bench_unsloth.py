"""The optional Unsloth side: what it is asked, how it is judged, and the sentence when it is not there."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from bc250studio.bench import recipes_unsloth
from bc250studio.bench.rows import BenchRows, build, full_rows
from bc250studio.jobs.progress import silent

OURS = [{"name": "64 graph=off", "rates": {"real_tokens_per_s": 300.0}, "losses": {"held_out_before": 2.0}}]
CASE = {"tokens": 64, "packing": True, "batch": 1, "real_tokens_per_s": 100.0, "reserved_gib": 1.0}


def test_real_rows_are_tried_packed_and_without_padding_full_rows_as_they_are() -> None:
    rows = build([(2, 16)] * 8, 50, 0)
    found = recipes_unsloth.cases(BenchRows(rows, list(range(8)), [], "rows"), [64, 128])
    assert [(case["tokens"], case["batch"], case["packing"]) for case in found] == [
        (64, 1, True), (64, 4, False), (128, 1, True), (128, 8, False),
    ]  # fmt: skip
    full = recipes_unsloth.cases(full_rows(50, 2, 64, 0), [64])
    assert [(case["batch"], case["packing"]) for case in full] == [(1, False)]


@pytest.mark.parametrize(("loss", "claimed"), [(2.0005, True), (2.1, False)])
def test_the_better_case_counts_and_losses_must_agree(loss: float, claimed: bool) -> None:
    cases = [dict(CASE), {**CASE, "packing": False, "batch": 4, "real_tokens_per_s": 150.0}]
    found = recipes_unsloth.judge({"cases": cases, "held_out_before": loss, "version": "1"}, OURS)
    assert found["ratios"]["64 graph=off"]["ratio"] == 2.0
    assert found["ratios"]["64 graph=off"]["claimed"] is claimed


def test_a_case_that_failed_gives_no_ratio() -> None:
    cases = [{"tokens": 64, "packing": True, "batch": 1, "failed": "OutOfMemoryError: x"}]
    found = recipes_unsloth.judge({"cases": cases, "held_out_before": 2.0, "version": "1"}, OURS)
    assert found["ratios"] == {}


def test_a_python_without_unsloth_is_a_sentence(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    np.savez(tmp_path / "rows.npz", ids=np.zeros(1), labelled=np.zeros(1), offsets=np.zeros(2))
    found = recipes_unsloth._run(sys.executable, tmp_path, {"rows": str(tmp_path / "rows.npz")}, silent)
    assert "Unsloth cannot be imported" in recipes_unsloth.judge(found, [])["skipped"]
    gone = recipes_unsloth._run(str(tmp_path / "nopython"), tmp_path, {}, silent)
    assert "did not finish" in gone["skipped"]
