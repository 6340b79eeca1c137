"""The protocol: alternating turns, cooling, medians, and no claim without equal losses."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from bc250studio.bench import protocol
from bc250studio.board.reading import Reading, missing
from bc250studio.errors import JobFailed


@dataclass
class Chip:
    """Sensors whose temperature falls by ``step_c`` a read."""

    temp_c: float
    step_c: float = 0.0
    trust: str = "good"

    def read(self) -> dict[str, Reading]:
        reading = Reading(self.temp_c, "°C", "test", trust=self.trust)  # type: ignore[arg-type]
        self.temp_c -= self.step_c
        return {
            "gpu_temp_c": reading,
            "gpu_power_w": Reading(140.0, "W", "test"),
            "fan_rpm": Reading(900, "rpm", "test"),
        }


def turn(real: int, seconds: float) -> protocol.Turn:
    return protocol.Turn(seconds=seconds, steps=1, all_positions=2 * real, real_tokens=real, labelled_tokens=real // 2)


def test_the_order_of_the_sides_flips_every_round() -> None:
    order: list[tuple[str, int]] = []

    def do(side: str, number: int) -> protocol.Turn:
        order.append((side, number))
        return turn(100, 1.0)

    turns = protocol.alternate(["a", "b"], 3, do)
    assert order == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    assert [len(one) for one in turns] == [3, 3]


def test_a_turn_waits_until_the_chip_is_cool_and_watches_it() -> None:
    waits: list[float] = []
    words = protocol.cool(Chip(61.0, 2.0), 55.0, sleep=waits.append)
    assert words == "started at 53 °C, below the limit of 55 °C"
    assert len(waits) == 4
    turns = protocol.alternate(["a"], 1, lambda side, number: turn(1, 1.0), Chip(50.0), 55.0)
    assert turns[0][0].board["temp_c"] == {"start": 50.0, "mean": 50.0, "peak": 50.0}
    assert turns[0][0].board["power_w"]["peak"] == 140.0
    assert "fan_rpm" not in turns[0][0].board


def test_a_chip_that_stays_hot_is_an_error_and_a_blind_one_is_said() -> None:
    with pytest.raises(JobFailed, match="stayed at 70 °C"):
        protocol.cool(Chip(70.0), 55.0, timeout_s=10, sleep=lambda _: None)
    assert "no temperature" in protocol.cool(Chip(70.0, trust="implausible"), 55.0)
    assert "no limit" in protocol.cool(Chip(70.0), None)


def test_missing_readings_are_left_out() -> None:
    class Blind:
        def read(self) -> dict[str, Reading]:
            return {"gpu_temp_c": missing("°C", "no GPU")}

    assert protocol.readings(Blind()) == {}
    with protocol.Watch(Blind()) as watch:
        pass
    assert watch.summary() == {}


def test_rates_are_medians_of_the_turns() -> None:
    rates = protocol.median_rates([turn(100, 1.0), turn(100, 2.0), turn(100, 10.0)])
    assert rates["real_tokens_per_s"] == 50.0
    assert rates["all_positions_per_s"] == 100.0
    assert rates["labelled_tokens_per_s"] == 25.0
    assert rates["spread"] == pytest.approx(1.8)


def test_a_speed_up_is_claimed_only_with_equal_losses() -> None:
    slow, fast = [turn(100, 2.0)], [turn(100, 1.0)]
    good = protocol.compare_turns(slow, fast, {"steps": 9e-4}, 1e-3)
    assert good["ratio"] == 2.0 and good["claimed"] and good["why_not"] is None
    bad = protocol.compare_turns(slow, fast, {"steps": 9e-4, "held_out": 2e-3}, 1e-3)
    assert not bad["claimed"] and bad["loss_difference"] == 2e-3
    unchecked = protocol.compare_turns(slow, fast, {}, 1e-3)
    assert not unchecked["claimed"]


def test_curves_of_other_lengths_or_with_nan_never_agree() -> None:
    assert protocol.worst_difference([1.0, 2.0], [1.0, 2.5]) == 0.5
    assert protocol.worst_difference([1.0, float("nan")], [1.0, 2.0]) == float("inf")
    with pytest.raises(ValueError):
        protocol.worst_difference([1.0], [1.0, 2.0])
    with pytest.raises(ValueError):
        protocol.worst_difference([], [])
