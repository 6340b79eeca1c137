"""The protocol every bench follows: cool, alternate, repeat, compare by medians.

Two sides do the same work in turns. Before each turn the device cools to the limit when it has a
sensor; the order of the sides flips every round (A B, B A, ...), so that a machine that warms up or
slows down cannot favour one of them; a rate is the median over the turns. No torch here.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeVar

from bc250studio.errors import JobFailed
from bc250studio.jobs.progress import Progress, silent

WATCHED = {
    "gpu_temp_c": "temp_c",
    "cpu_temp_c": "cpu_temp_c",
    "gpu_power_w": "power_w",
    "gpu_clock_mhz": "clock_mhz",
}
"""Readings of ``board.sensors`` a bench records -> how a record calls them."""


class SensorLike(Protocol):
    """What the bench asks of ``board.sensors.Sensors``: name -> reading with ``value`` and ``trust``."""

    def read(self) -> Mapping[str, Any]: ...


def readings(sensors: SensorLike | None) -> dict[str, float]:
    """The watched readings the board trusts, by the names of a record; empty without sensors."""
    if sensors is None:
        return {}
    found: dict[str, float] = {}
    for name, reading in sensors.read().items():
        if name in WATCHED and getattr(reading, "trust", "good") == "good" and reading.value is not None:
            found[WATCHED[name]] = float(reading.value)
    return found


class Watch:
    """Samples the sensors once a second while a turn runs; ``summary`` has start, mean and peak."""

    def __init__(self, sensors: SensorLike | None, interval_s: float = 1.0) -> None:
        self._sensors = sensors
        self._interval_s = interval_s
        self._done = threading.Event()
        self._samples: list[dict[str, float]] = []
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Watch:
        self._samples = [readings(self._sensors)]
        if self._samples[0]:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        return self

    def _run(self) -> None:
        while not self._done.wait(self._interval_s):
            self._samples.append(readings(self._sensors))

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
            self._samples.append(readings(self._sensors))

    def summary(self) -> dict[str, dict[str, float]]:
        """Reading -> {start, mean, peak}; only what the board could read and trusts."""
        table: dict[str, dict[str, float]] = {}
        for name in sorted({name for sample in self._samples for name in sample}):
            values = [sample[name] for sample in self._samples if name in sample]
            table[name] = {"start": values[0], "mean": round(statistics.fmean(values), 2), "peak": max(values)}
        return table


def cool(
    sensors: SensorLike | None,
    below_c: float | None,
    progress: Progress = silent,
    timeout_s: float = 1800.0,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Wait until the chip is below ``below_c``; returns one sentence for the record.

    Without a limit or a trusted temperature nothing waits, and the sentence says so.

    Raises:
        JobFailed: still too hot after ``timeout_s``; a hot start would measure the throttle.
    """
    if below_c is None:
        return "not cooled: no limit was given"
    waited_s = 0.0
    while True:
        now = readings(sensors)
        temp_c = now.get("temp_c", now.get("cpu_temp_c"))
        if temp_c is None:
            return "not cooled: this machine shows no temperature"
        if temp_c < below_c:
            return f"started at {temp_c:.0f} °C, below the limit of {below_c:.0f} °C"
        if waited_s >= timeout_s:
            raise JobFailed(
                f"The chip stayed at {temp_c:.0f} °C for {timeout_s / 60:.0f} minutes, above the "
                f"start limit of {below_c:.0f} °C; turn the fans up or give a higher --cool-below."
            )
        progress(f"cooling: {temp_c:.0f} °C, start below {below_c:.0f} °C", None, None)
        sleep(2.0)
        waited_s += 2.0


@dataclass
class Turn:
    """What one side did in one turn: counts of positions, and the seconds they took."""

    seconds: float
    steps: int
    all_positions: int
    real_tokens: int
    labelled_tokens: int
    peak_gib: float | None = None
    reserved_gib: float | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    step_s: list[float] = field(default_factory=list)
    note: str | None = None
    board: dict[str, dict[str, float]] = field(default_factory=dict)
    cpu_seconds: float = 0.0
    """Processor time of this process in the turn, all threads; far less than wall time x threads on a CPU bench
    means that other programs were in the way."""
    load: float = 0.0
    """The machine's load average when the turn began."""
    cooling: str = ""

    def rate(self, what: str = "real_tokens") -> float:
        """Positions of one kind a second."""
        return float(getattr(self, what)) / self.seconds if self.seconds > 0 else 0.0


def median_rates(turns: Sequence[Turn]) -> dict[str, float]:
    """The three named rates, each the median over the turns, and the spread of the middle one."""
    kinds = ("all_positions", "real_tokens", "labelled_tokens")
    table = {f"{kind}_per_s": round(statistics.median(turn.rate(kind) for turn in turns), 2) for kind in kinds}
    real = [turn.rate() for turn in turns]
    table["spread"] = round((max(real) - min(real)) / statistics.median(real), 4) if max(real) > 0 else 0.0
    return table


S = TypeVar("S")


def alternate(
    sides: Sequence[S],
    rounds: int,
    do: Callable[[S, int], Turn],
    sensors: SensorLike | None = None,
    cool_below_c: float | None = None,
    progress: Progress = silent,
) -> list[list[Turn]]:
    """Every side once a round, the order flipped each round; returns the turns of each side.

    ``do(side, round)`` does the work of that round and returns its turn; cooling and watching are
    done here, outside its clock.
    """
    turns: list[list[Turn]] = [[] for _ in sides]
    for number in range(rounds):
        order = range(len(sides)) if number % 2 == 0 else range(len(sides) - 1, -1, -1)
        for index in order:
            cooling = cool(sensors, cool_below_c, progress)
            load = os.getloadavg()[0]
            with Watch(sensors) as watch:
                turn = do(sides[index], number)
            turn.load = round(load, 2)
            turn.board, turn.cooling = watch.summary(), cooling
            turns[index].append(turn)
    return turns


def worst_difference(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest absolute difference of two loss curves of the same steps.

    Raises:
        ValueError: the curves have different lengths or are empty, so they compare nothing.
    """
    if len(one) != len(other) or not one:
        raise ValueError(f"curves of {len(one)} and {len(other)} steps cannot be compared")
    differences = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return float("inf") if any(d != d for d in differences) else max(differences)


def compare_turns(
    base: Sequence[Turn], other: Sequence[Turn], losses: Mapping[str, float], limit: float
) -> dict[str, Any]:
    """How much faster ``other`` is than ``base``, and whether that may be claimed.

    ``losses`` names the checks made and their largest differences; the speed-up is claimed only when
    there is at least one and all are within ``limit`` (nat).
    """
    before, after = median_rates(base), median_rates(other)
    ratio = after["real_tokens_per_s"] / before["real_tokens_per_s"] if before["real_tokens_per_s"] else 0.0
    difference = max(losses.values(), default=float("inf"))
    equal = difference <= limit
    return {
        "ratio": round(ratio, 3),
        "loss_difference": difference,
        "loss_limit": limit,
        "losses_equal": equal,
        "claimed": equal,
        "checks": dict(losses),
        "why_not": None if equal else f"the losses differ by {difference:.2g}, more than {limit:g}",
    }


def turn_dict(turn: Turn) -> dict[str, Any]:
    """A turn as JSON, with its rate beside it."""
    return {**asdict(turn), "real_tokens_per_s": round(turn.rate(), 2)}
