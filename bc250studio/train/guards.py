"""Guards over the steps: what goes wrong is counted, named, and ends the run when it does not pass.

A step is bad when its loss or gradient is not finite (the optimiser skipped it), or when loss or gradient is
exactly zero, which no learning gives: a kernel that wrote nothing, or a mask that labels nothing. ``MOST_BAD`` bad
steps in a row end the run with the rows named. One overflow of fp16 is no fault: the loss scale halves and the run
goes on, so overflows with a finite loss count only when the scale has nothing left to give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bc250studio.errors import JobFailed, StudioError, clean
from bc250studio.train.engine import Step, Trainer

MOST_BAD = 8
"""Bad steps in a row that end a run."""
FLAT_SHARE = 0.002
"""A loss that fell by less than this share of itself has not fallen."""
FLAT_WINDOW = 50
"""Steps of the two means that are compared; fewer in short runs."""
LEAST_FLAT_WINDOW = 10
MOST_NAMED = 4


class Guards:
    """Looks at every step of one training process.

    ``say(kind, text, **facts)`` writes an event. ``words(row)`` describes a row for a person. ``single(row)`` is
    the loss of one row alone; None turns looking for the culprit off.
    """

    def __init__(
        self,
        trainer: Trainer,
        say: Callable[..., None],
        words: Callable[[int], str] = lambda row: f"row {row + 1}",
        single: Callable[[int], float] | None = None,
    ) -> None:
        self.trainer, self.say, self.words, self.single = trainer, say, words, single
        self.in_a_row = 0
        self._rows: list[tuple[int, ...]] = []
        self._adapted = False
        self._losses: list[float] = []
        self._said_flat = False

    def after(self, step: Step) -> None:
        """Judge one step.

        Raises:
            JobFailed: too many bad steps in a row, or a matrix of the adapter that learns nothing.
        """
        fault = self._fault(step)
        if fault is None:
            self.in_a_row, self._rows = 0, []
            self._every_matrix_learns(step)
            self._flat(step)
            return
        self.in_a_row += 1
        self._rows.append(step.rows)
        skipped = " and was skipped" if step.skipped else ""
        self.say("warning", f"Step {step.number}: {fault}{skipped}.", step=step.number, skipped=step.skipped)
        if self._scale_can_answer(step):
            self.in_a_row = 0  # the halved scale is tried first; _rows keeps what was seen
            return
        if self.in_a_row >= MOST_BAD:
            raise JobFailed(
                f"{self.in_a_row} bad steps in a row, the last one step {step.number}: {fault}. {self._culprits()} "
                "Look at these rows (bc250studio data preview), lower train.learning_rate, or check the kernels "
                "(bc250studio kernels prove); then: bc250studio resume"
            )

    def _fault(self, step: Step) -> str | None:
        if not math.isfinite(step.loss):
            return f"the loss is {'NaN' if math.isnan(step.loss) else 'infinite'}"
        if step.skipped or not math.isfinite(step.gradient_norm):
            return f"the gradient overflowed (loss {step.loss:.4f})"
        if step.labelled_tokens == 0:
            return None  # a step of rows that label nothing moves nothing, and may
        if step.loss == 0.0:
            return "the loss is exactly zero, which no model reaches"
        if step.gradient_norm == 0.0:
            return f"the gradient is exactly zero (loss {step.loss:.4f})"
        return None

    def _scale_can_answer(self, step: Step) -> bool:
        scale = self.trainer.optimiser.scale
        return step.skipped and math.isfinite(step.loss) and scale.dynamic and scale.value > 1.0

    def _culprits(self) -> str:
        """The rows that are bad alone, else those the bad steps have in common, else the last step's."""
        last = list(dict.fromkeys(self._rows[-1]))
        if self.single is not None:
            alone = []
            for row in last:
                try:
                    loss = self.single(row)
                except (StudioError, RuntimeError):
                    continue
                if not math.isfinite(loss) or loss == 0.0:
                    alone.append(row)
            if alone and len(alone) < len(last):
                return f"Bad when alone: {self._named(alone)}."
            if alone:
                return f"Every row of that step is bad also alone, so it is not one row: {self._named(last)}."
            return f"No row of that step is bad alone: {self._named(last)}."
        common = [row for row in last if all(row in rows for rows in self._rows)]
        return f"Rows: {self._named(common or last)}."

    def _named(self, rows: Sequence[int]) -> str:
        named = "; ".join(clean(self.words(row), 160) for row in rows[:MOST_NAMED])
        return named + (f"; and {len(rows) - MOST_NAMED} more" if len(rows) > MOST_NAMED else "")

    def _every_matrix_learns(self, step: Step) -> None:
        """After the first good step B has left zero everywhere, or that product's gradient never arrives."""
        if self._adapted or step.learning_rate == 0.0 or step.labelled_tokens == 0:
            return
        self._adapted = True
        dead = dead_matrices(self.trainer)
        if dead:
            more = f" and {len(dead) - 1} more" if len(dead) > 1 else ""
            raise JobFailed(
                f"After step {step.number} {dead[0]}{more} is still exactly zero: no gradient reaches it. "
                "Leave that layer out of adapter.targets if the model does not use it; else its kernel is wrong "
                "(bc250studio kernels prove)."
            )

    def _flat(self, step: Step) -> None:
        self._losses.append(step.loss)
        window = max(LEAST_FLAT_WINDOW, min(FLAT_WINDOW, step.of // 4))
        if self._said_flat or len(self._losses) < 2 * window or len(self._losses) % window:
            return
        first = sum(self._losses[:window]) / window
        latest = sum(self._losses[-window:]) / window
        if latest > first * (1.0 - FLAT_SHARE):
            self._said_flat = True
            self.say(
                "warning",
                f"The loss does not fall: {first:.4f} over the first {window} steps, {latest:.4f} over the last "
                f"{window}, at step {step.number}. The learning rate may be too low or too high.",
                step=step.number,
                flat=True,
            )


@torch.no_grad()
def dead_matrices(trainer: Trainer) -> list[str]:
    """Names of LoRA B matrices whose norm is exactly zero, in the model's order; one wait for the device."""
    named = [(name, value) for name, value in trainer.flat.state().items() if ".lora_B." in name]
    if not named:
        return []
    norms: Any = torch.stack([torch.linalg.vector_norm(value) for _, value in named]).tolist()
    return [name for (name, _), norm in zip(named, norms, strict=True) if norm == 0.0]
