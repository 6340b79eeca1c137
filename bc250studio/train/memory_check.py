"""The estimate of a run's memory against its first steps: said when it was off, kept for the next estimate."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bc250studio.board import presets
from bc250studio.errors import StudioError
from bc250studio.models import memory_measured, memory_training
from bc250studio.models.describe import describe
from bc250studio.train.engine import Step, Trainer

OFF = 0.10
"""Share of the measured peak from which on an estimate is called wrong."""
_GIB = 1 << 30


def reset_peak(device: torch.device) -> None:
    """Begin a new high-water mark (``clear_refs`` 5 resets a process's own, see proc(5)); loading is not training."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with contextlib.suppress(OSError):  # a container may forbid it; then the peak holds the loading too
            Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: torch.device) -> int:
    """Reserved bytes on a GPU, the process's resident set on a CPU, at their highest since ``reset_peak``."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device))
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


class MemoryCheck:
    """Looks once, after the second step of this process: the first one makes the optimiser's states."""

    def __init__(self, profile: Any, source: Any, trainer: Trainer, say: Callable[..., Any]) -> None:
        self.profile, self.source, self.trainer, self.say = profile, source, trainer, say
        self._left = 2

    def after(self, step: Step) -> None:
        """Compare, say, keep."""
        if not self._left:
            return
        self._left = self._left - 1 if step.number < step.of else 0
        if self._left:
            return
        with contextlib.suppress(StudioError, OSError):  # a run never ends because its memory could not be judged
            self._compare()

    def _compare(self) -> None:
        device = self.trainer.device
        chip = presets.of("cpu") if device.type == "cpu" else presets.detect()
        if set(self.trainer.recompute) != {memory_training.plan_of(self.profile, chip)}:
            return  # a budget or a failed allocation chose another plan than the one that was estimated
        estimate = memory_training.training(describe(self.source), self.profile, chip)
        expected, measured = memory_training.in_allocator(estimate), peak_bytes(device)
        facts = {"memory_estimated_gib": round(expected / _GIB, 3), "memory_measured_gib": round(measured / _GIB, 3)}
        memory_measured.remember(self.profile, chip, estimate, measured)
        if abs(expected / measured - 1) > OFF:
            self.say(
                "note",
                f"Memory: the first steps took {measured / _GIB:.2f} GiB, {expected / _GIB:.2f} were estimated; "
                "the next estimate for such a run is corrected by that.",
                **facts,
            )
        else:
            self.say("note", f"Memory: {measured / _GIB:.2f} GiB, as estimated ({expected / _GIB:.2f}).", **facts)
