"""A curve that never grows: min/max buckets, halved in number whenever they are full.

Attaching to a run of 100,000 steps costs one pass over its file; drawing costs the buckets only.
Spikes survive, because a bucket keeps the lowest and the highest value it ever saw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


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
        self._closed: list[Bucket] = []

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

    def extend(self, xs: Sequence[Any], ys: Sequence[Any]) -> None:
        """Append many points at the cost of few: whole buckets are made by C code, not point by point."""
        if not (_plain(xs) and _plain(ys)):
            pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if _number(x) and _number(y)]
            xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
        start = 0
        if len(xs) > self.capacity:
            self._frozen = None
            while (len(xs) + self._points()) / self._per_bucket > self.capacity:
                self._halve()
            start = self._fill_whole(xs, ys)
        for x, y in zip(xs[start:], ys[start:], strict=True):
            self.add(x, y)

    def _points(self) -> int:
        return sum(bucket.count for bucket in self._buckets)

    def _fill_whole(self, xs: Sequence[float], ys: Sequence[float]) -> int:
        """Top up the open bucket, then cut whole ones; how many points were taken."""
        start = 0
        if self._buckets and self._buckets[-1].count < self._per_bucket:
            start = min(len(xs), self._per_bucket - self._buckets[-1].count)
            for x, y in zip(xs[:start], ys[:start], strict=True):
                self.add(x, y)
        size, floor = self._per_bucket, self._buckets[-1].x1 if self._buckets else float("-inf")
        while start + size <= len(xs) and len(self._buckets) < self.capacity:
            some_x, some_y = xs[start : start + size], ys[start : start + size]
            first, floor = max(floor, float(some_x[0])), max(floor, float(max(some_x)))
            self._buckets.append(_Open(first, floor, float(min(some_y)), float(max(some_y)), float(sum(some_y)), size))
            start += size
        return start

    def _halve(self) -> None:
        for left, right in zip(self._buckets[0::2], self._buckets[1::2], strict=False):
            left.swallow(right)
        self._buckets = self._buckets[0::2]
        self._per_bucket *= 2
        self._closed.clear()

    def curve(self) -> Curve:
        """An immutable copy, the same object as long as nothing was added; only the last bucket can still change."""
        if self._frozen is None:
            self._closed += [bucket.closed() for bucket in self._buckets[len(self._closed) : -1]]
            self._frozen = (*self._closed, *(bucket.closed() for bucket in self._buckets[-1:]))
        return self._frozen


def _plain(values: Sequence[Any]) -> bool:
    """Whether all are finite ints and floats; the usual case, checked without a look at each."""
    return set(map(type, values)) <= {int, float} and math.isfinite(sum(values))


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
