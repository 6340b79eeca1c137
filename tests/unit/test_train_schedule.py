"""Learning rates: rise, fall, nothing wasted."""

from __future__ import annotations

import math

import pytest

from bc250studio.train.schedule import learning_rate


def rates(kind: str, steps: int = 100, warmup: float = 0.1) -> list[float]:
    return [learning_rate(step, steps, 2.0, kind, warmup) for step in range(steps)]


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
def test_the_rise_takes_its_share_and_ends_at_the_peak(kind: str) -> None:
    found = rates(kind)
    assert 0 < found[0] < found[9] < 2.0
    assert found[10] == pytest.approx(2.0)
    assert max(found) == pytest.approx(2.0)


def test_the_fall() -> None:
    assert rates("linear")[55] == pytest.approx(1.0)
    assert rates("cosine")[55] == pytest.approx(1.0)
    assert rates("cosine")[32] == pytest.approx(2.0 * 0.5 * (1 + math.cos(math.pi * 22 / 90)))
    assert all(r == 2.0 for r in rates("constant")[10:])


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_no_step_is_wasted_on_a_rate_of_zero(kind: str, steps: int) -> None:
    assert all(rate > 0 for rate in rates(kind, steps, warmup=0.9))
