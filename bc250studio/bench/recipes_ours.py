"""The engine as a side of the protocol: ``train.engine.Trainer`` over the same rows, no job folder.

The plan of passes is made for exactly the rows a turn or an equal step is about; everything else
(layouts, feeding, passes, update) is what a run does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from bc250studio.bench.protocol import Turn
from bc250studio.bench.recipes_baseline import ALPHA, CLIP, LEARNING_RATE, RANK, synchronise
from bc250studio.bench.recipes_model import Base, MemoryPeak, free
from bc250studio.bench.rows import BenchRows, take
from bc250studio.profiles.adapter import Adapter
from bc250studio.profiles.train import Train
from bc250studio.train import layouts, recompute
from bc250studio.train.engine import Trainer

if TYPE_CHECKING:
    from bc250studio.bench.recipes_train import Variant


class EngineSide:
    """One variant of ours; open, use, close."""

    def __init__(
        self, variant: Variant, base: Base, rows: BenchRows, seed: int = 0, warmup_steps: int = 3, kind: str = "lora"
    ) -> None:
        self.variant, self.base, self.seed, self.warmup_steps = variant, base, seed, warmup_steps
        self.bench_rows, self.kind = rows, kind
        self.name = f"ours {variant.name}"
        # The engine sees the rows it trains on and no others: layouts follow their lengths.
        self._place = {index: number for number, index in enumerate(rows.work)}
        self._work = take(rows.rows, rows.work)
        self._memory = MemoryPeak(base.device)
        self._choices = dict(variant.choices)
        self.trainer: Trainer | None = None
        self.notes: list[str] = []
        self.facts: dict[str, Any] = {}

    def words(self) -> str:
        """What the engine decided, in its own sentences."""
        return " ".join(dict.fromkeys(self.notes))

    def open(self) -> None:
        """Build model, plan and optimiser."""
        free(self.base.device)
        self._memory.start()
        tokens, full = self.variant.tokens, self.kind == "full"
        train = Train(
            steps=1,
            tokens_per_step=tokens,
            tokens_per_pass=tokens,
            learning_rate=LEARNING_RATE[self.kind],
            schedule="constant",
            warmup=0.0,
            clip=CLIP,
            seed=self.seed,
            allow_bf16_full=full,
            **self._choices,
        )
        adapter = Adapter(kind="full") if full else Adapter(rank=RANK, alpha=ALPHA, dropout=0.0)
        recompute.cap(train, self.base.device)
        self.trainer = Trainer(self.base.copy(own_weights=full), self._work, train, adapter, note=self.notes.append)
        self.facts = {
            "sizes": self.trainer.sizes.kind,
            "attention": self.trainer.way,
            "shared_prefix_tokens": self.trainer.sizes.prefix,
            "layouts": [list(map(list, layout.groups)) for layout in self.trainer.sizes.layouts],
        }

    def close(self) -> None:
        self.trainer = None
        free(self.base.device)
        recompute.uncap(self.base.device)

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Launch operation by operation inside this block, where a device graph would hide them."""
        if self._choices.get("graph") == "off" or self.base.device.type == "cpu":
            yield
            return
        before = dict(self._choices)
        self.close()
        self._choices["graph"] = "off"
        self.open()
        try:
            yield
        finally:
            self._choices = before

    def _passes(self, indices: Sequence[int]) -> list[layouts.Pass]:
        trainer = self._opened()
        order = np.array([self._place[index] for index in indices], dtype=np.int64)
        return layouts.pack(order, trainer.feed.lengths, trainer.sizes)

    def _opened(self) -> Trainer:
        assert self.trainer is not None
        return self.trainer

    def equal_steps(self, groups: Sequence[Sequence[int]]) -> list[float]:
        """One optimiser step a group of rows, packed; the loss of each group before its step."""
        trainer = self._opened()
        trainer.plan, trainer.done = [tuple(self._passes(group)) for group in groups], 0
        return [step.loss for step in trainer.steps()]

    def evaluate(self, indices: Sequence[int]) -> float:
        """Mean loss over the labelled positions of these rows, without a step."""
        loss, _ = self._opened().evaluate(take(self.bench_rows.rows, indices))
        return loss

    def warm_up(self, indices: Sequence[int]) -> None:
        """A few steps outside the clock: every layout of the turn once, so that graphs are recorded before it."""
        trainer = self._opened()
        passes = self._passes(self._shuffled(indices))
        first = {planned.layout: planned for planned in reversed(passes)}
        chosen = list(first.values()) + passes[: max(self.warmup_steps - len(first), 0)]
        if self.base.device.type == "cpu":
            chosen = chosen[:1]
        trainer.plan, trainer.done = [(planned,) for planned in chosen], 0
        for _ in trainer.steps():
            pass

    def _shuffled(self, indices: Sequence[int]) -> list[int]:
        order = np.random.default_rng([self.seed, 7]).permutation(len(indices))
        return [indices[place] for place in order]

    def turn(self, indices: Sequence[int]) -> Turn:
        """Train once over these rows: shuffled, packed, fed and stepped inside the clock."""
        trainer = self._opened()
        synchronise(self.base.device)
        start, cpu = time.perf_counter(), time.process_time()
        trainer.plan, trainer.done = [(planned,) for planned in self._passes(self._shuffled(indices))], 0
        steps = list(trainer.steps())
        synchronise(self.base.device)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        peak, reserved = self._memory.take()
        self._memory.start()
        positions, real = sum(step.all_positions for step in steps), sum(step.real_tokens for step in steps)
        # Over 1 where rows share a beginning that a pass computes once.
        self.facts["real_tokens_per_position"] = round(real / positions, 4)
        self.facts["skipped_steps"] = sum(step.skipped for step in steps)
        return Turn(
            seconds=seconds,
            cpu_seconds=cpu,
            steps=len(steps),
            all_positions=positions,
            real_tokens=real,
            labelled_tokens=sum(step.labelled_tokens for step in steps),
            peak_gib=peak,
            reserved_gib=reserved,
            first_loss=steps[0].loss,
            last_loss=steps[-1].loss,
        )
