"""``bench memory``: real rates on this machine, counted as it says, and no rate above the paper figure sold as one."""

from __future__ import annotations

from typing import Any

import pytest

from bc250studio.bench import recipes_memory
from bc250studio.cli.main import main
from bc250studio.jobs.progress import silent

OPTIONS: dict[str, Any] = {
    "mib": 4, "rounds": 2, "seconds": 0.01, "device": "cpu", "dtype": "fp32", "cool_below": None, "gfx": "",
}  # fmt: skip


def test_three_tests_measured_and_counted_as_they_say() -> None:
    found = recipes_memory.measure(OPTIONS, silent)
    tests = {test["name"]: test for test in found["results"]["tests"]}
    assert {name: test["arrays_counted"] for name, test in tests.items()} == {"copy": 2, "scale": 2, "add": 3}
    for test in tests.values():
        assert 0.05 < test["lowest"] <= test["gb_per_s"] <= test["highest"] < 5000
    text = recipes_memory.text(found)
    assert "CPU" in text and "every array read or written once" in text and "add" in text


def test_the_count_is_arrays_times_bytes_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 2.0])
    monkeypatch.setattr(recipes_memory.time, "perf_counter", lambda: next(clock))
    assert recipes_memory._rate(lambda: None, lambda: None, 3_000_000_000, 1.0) == 1.5


def test_a_rate_above_the_paper_figure_is_marked() -> None:
    found = recipes_memory._test("add", [480.0, 481.0, 479.0], 448.0)
    assert "448 GB/s" in found["remark"] and found["share_of_paper"] == pytest.approx(1.071)
    assert recipes_memory._test("add", [430.0], 448.0)["remark"] is None


def test_bad_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "memory", "--mib", "0"]) == 2
    assert "at least 1" in capsys.readouterr().err
