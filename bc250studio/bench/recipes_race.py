"""The race of ``bench train``: equal steps first, then timed rounds, one side in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from bc250studio.bench import protocol
from bc250studio.errors import BadInput, clean
from bc250studio.jobs.progress import Progress

if TYPE_CHECKING:
    from bc250studio.bench.recipes_train import Bases, Variant
    from bc250studio.bench.rows import BenchRows

LIMIT_16_BIT, LIMIT_FP32 = 1e-3, 1e-4
"""Largest difference (nat) of the losses before the first step; curves get ``LIMIT_16_BIT`` in any type."""


class Race:
    """Baselines and variants of ours over the same rows; ratios are against the first baseline."""

    def __init__(
        self,
        recipes: Sequence[Any],
        bases: Bases,
        rows: BenchRows,
        group: list[Variant],
        dtype: str,
        options: dict[str, Any],
        progress: Progress,
        sensors: Any,
        cool_below_c: float | None,
    ) -> None:
        self.rows, self.dtype, self.progress, self.options = rows, dtype, progress, options
        self.sensors, self.cool_below_c, self.bases = sensors, cool_below_c, bases
        smallest = min(variant.tokens for variant in group)
        self.groups = equal_groups(rows, smallest, options["check_steps"])
        self.slices = slices(rows.work, options["rounds"])
        self.sides = [Entry(recipe.name, dtype, partial(self._baseline, recipe)) for recipe in recipes]
        self.baselines = len(self.sides)
        self.sides += [Entry(v.name, v.dtype, partial(self._ours, v), v) for v in group]

    def _baseline(self, recipe: Any) -> Any:
        from bc250studio.bench.recipes_baseline import PeftSide

        return PeftSide(
            recipe,
            self.bases.get(self.dtype),
            self.rows.rows,
            self.rows.full,
            self.options["seed"],
            math_only=self.options["math_only"],
            kind=self.options["kind"],
        )

    def _ours(self, variant: Variant) -> Any:
        from bc250studio.bench.recipes_ours import EngineSide

        base, seed = self.bases.get(variant.dtype), self.options["seed"]
        return EngineSide(variant, base, self.rows, seed, kind=self.options["kind"])

    def run(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Check and race; one entry a baseline and one a variant."""
        turns = protocol.alternate(
            self.sides, self.options["rounds"], self._turn, self.sensors, self.cool_below_c, self.progress
        )
        against = list(zip(self.sides, turns, strict=True))[: self.baselines]
        entries = []
        for entry, own in list(zip(self.sides, turns, strict=True))[self.baselines :]:
            verdicts = {baseline.name: _verdict(baseline, base_turns, entry, own) for baseline, base_turns in against}
            ratios = {name: verdict["ratio"] if verdict["claimed"] else None for name, verdict in verdicts.items()}
            changed = entry.variant.changed if entry.variant else {}
            first = verdicts[against[0][0].name]
            entries.append({**first, "ratios": ratios, **_side(entry, own), "changed": changed})
        return [_side(baseline, base_turns) for baseline, base_turns in against], entries

    def _turn(self, entry: Entry, number: int) -> protocol.Turn:
        """Open, check (the first time), warm up, race once, close: nobody's memory is in another's peak."""
        if entry.failed is not None:
            return protocol.Turn(0.0, 0, 0, 0, 0, note=entry.failed)
        work = self.slices[number]
        try:
            self.progress(f"{entry.name}: opening", None, None)
            side = entry.make()
            side.open()
            try:
                if entry.check is None:
                    self.progress(f"{entry.name}: equal steps", None, None)
                    before = side.evaluate(self.rows.held_out)
                    curve = side.equal_steps(self.groups)
                    entry.check = Check(before, curve, side.evaluate(self.rows.held_out))
                side.warm_up(work)
                self.progress(f"{entry.name}: round {number + 1} of {len(self.slices)}", None, None)
                turn: protocol.Turn = side.turn(work)
                entry.words, entry.facts = side.words(), getattr(side, "facts", {})
            finally:
                side.close()
        except (RuntimeError, MemoryError, BadInput, NotImplementedError) as error:
            # A variant that this device cannot do (memory, a kernel) is a result, not the end of the bench.
            entry.failed = clean(error, 300)
            self.progress(f"{entry.name}: {entry.failed}", None, None)
            return protocol.Turn(0.0, 0, 0, 0, 0, note=entry.failed)
        self.progress(f"{entry.name}: {turn.rate():.1f} real tokens/s", None, None)
        return turn


@dataclass
class Check:
    """What a side's losses were: held-out before, each equal step, held-out after."""

    before: float
    curve: list[float]
    after: float


@dataclass
class Entry:
    """One side of a race and what became of it."""

    name: str
    dtype: str
    make: Callable[[], Any]
    variant: Variant | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    check: Check | None = None
    words: str = ""
    failed: str | None = None


def equal_groups(rows: BenchRows, tokens: int, count: int) -> list[list[int]]:
    """The rows of each equal step: in order, as many as fit nine tenths of a pass (one full row each)."""
    if rows.full:
        return [[index] for index in rows.work[:count]]
    groups: list[list[int]] = [[]]
    used = 0
    for index in rows.work:
        length = len(rows.rows.row(index)[0])
        if used + length > 0.9 * tokens and groups[-1]:
            if len(groups) == count:
                break
            groups.append([])
            used = 0
        groups[-1].append(index)
        used += length
    return groups


def slices(work: Sequence[int], rounds: int) -> list[list[int]]:
    """The rows of each round: equal shares in order; too few rows serve every round again."""
    if len(work) < rounds:
        return [list(work)] * rounds
    share = len(work) // rounds
    return [list(work[number * share : (number + 1) * share]) for number in range(rounds)]


def compare_checks(one: Check | None, other: Check | None) -> dict[str, float]:
    """Largest difference of each check both sides passed through."""
    if one is None or other is None:
        return {}
    return {
        "held_out_before": protocol.worst_difference([one.before], [other.before]),
        "first_step": protocol.worst_difference(one.curve[:1], other.curve[:1]),
        "equal_steps": protocol.worst_difference(one.curve, other.curve),
        "held_out_after": protocol.worst_difference([one.after], [other.after]),
    }


def judge(
    base: Sequence[protocol.Turn], own: Sequence[protocol.Turn], checks: dict[str, float], dtype: str
) -> dict[str, Any]:
    """The verdict; before the first step fp32 sides must agree to 1e-4, everything else to 1e-3."""
    verdict = protocol.compare_turns(base, own, checks, LIMIT_16_BIT)
    start = max(checks.get("held_out_before", 0.0), checks.get("first_step", 0.0))
    if dtype == "fp32" and start > LIMIT_FP32:
        verdict["losses_equal"] = verdict["claimed"] = False
        verdict["why_not"] = f"before the first step the fp32 losses differ by {start:.2g}, more than {LIMIT_FP32:g}"
    return verdict


def _side(entry: Entry, turns: Sequence[protocol.Turn]) -> dict[str, Any]:
    done = [turn for turn in turns if turn.seconds > 0]
    found: dict[str, Any] = {"name": entry.name, "words": entry.words, "dtype": entry.dtype, "failed": entry.failed}
    if done:
        found["rates"] = protocol.median_rates(done)
        found["peak_gib"] = max((turn.peak_gib for turn in done if turn.peak_gib is not None), default=None)
        found["reserved_gib"] = max((turn.reserved_gib for turn in done if turn.reserved_gib is not None), default=None)
    if entry.check is not None:
        found["losses"] = {
            "held_out_before": entry.check.before,
            "equal_steps": entry.check.curve,
            "held_out_after": entry.check.after,
        }
    found["facts"] = entry.facts
    found["turns"] = [protocol.turn_dict(turn) for turn in turns]
    return found


def _verdict(
    baseline: Entry, base_turns: Sequence[protocol.Turn], entry: Entry, turns: Sequence[protocol.Turn]
) -> dict[str, Any]:
    """``judge`` for two sides, or the reason why one of them cannot be judged."""
    why = entry.failed or (f"{baseline.name} failed: {baseline.failed}" if baseline.failed else None)
    if why is not None:
        return {
            "ratio": 0.0,
            "loss_difference": float("inf"),
            "losses_equal": False,
            "claimed": False,
            "why_not": why,
        }
    dtype = baseline.dtype if entry.dtype == baseline.dtype else "mixed"
    return judge(base_turns, turns, compare_checks(baseline.check, entry.check), dtype)
