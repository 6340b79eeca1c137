"""A curve that never grows: min/max buckets, halved in number whenever they are full.

Attaching to a run of 100,000 steps costs one pass over its file; drawing costs the buckets only.
Spikes survive, because a bucket keeps the lowest and the highest value it ever saw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Bucket(NamedTuple):
    """Neighbouring points as one: ``x0``..``x1``, lowest, highest and mean value, how many."""

    x0: float
    x1: float
    low: float
    high: float
    mean: float
    points: int


Curve = tuple[Bucket, ...]


@dataclass
class _Open:
    """A bucket still being filled; a list would do, names read better."""

    x0: float
    x1: float
    low: float
    high: float
    total: float
    count: int

    def closed(self) -> Bucket:
        return Bucket(self.x0, self.x1, self.low, self.high, self.total / self.count, self.count)

    def swallow(self, other: _Open) -> None:
        self.x1 = other.x1
        self.low = min(self.low, other.low)
        self.high = max(self.high, other.high)
        self.total += other.total
        self.count += other.count


class Series:
    """Points in, at most ``capacity`` buckets out. What is not a finite number is passed over."""

    def __init__(self, capacity: int = 360) -> None:
        self.capacity = capacity
        self._buckets: list[_Open] = []
        self._per_bucket = 1
        self._frozen: Curve | None = ()

    def add(self, x: object, y: object) -> None:
        """Append one point; ``x`` must not fall (a clock that jumps back is taken as the last x)."""
        if not (_number(x) and _number(y)):
            return
        self._frozen = None
        fx, fy = float(x), float(y)  # type: ignore[arg-type]
        if self._buckets:
            last = self._buckets[-1]
            fx = max(fx, last.x1)
            if last.count < self._per_bucket:
                last.swallow(_Open(fx, fx, fy, fy, fy, 1))
                return
            if len(self._buckets) >= self.capacity:
                self._halve()
                self.add(fx, fy)
                return
        self._buckets.append(_Open(fx, fx, fy, fy, fy, 1))

    def _halve(self) -> None:
        for left, right in zip(self._buckets[0::2], self._buckets[1::2], strict=False):
            left.swallow(right)
        self._buckets = self._buckets[0::2]
        self._per_bucket *= 2

    def curve(self) -> Curve:
        """An immutable copy, the same object as long as nothing was added."""
        if self._frozen is None:
            self._frozen = tuple(bucket.closed() for bucket in self._buckets)
        return self._frozen


def _number(value: object) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and value == value
        and value not in (float("inf"), float("-inf"))
    )


def at(curve: Curve, x: float) -> Bucket | None:
    """The bucket nearest to ``x``."""
    return min(curve, key=lambda b: 0.0 if b.x0 <= x <= b.x1 else min(abs(b.x0 - x), abs(b.x1 - x)), default=None)
