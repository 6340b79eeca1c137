"""What a run tells the world: state, metrics and events, one writer each, at a rate a small board can bear."""

from __future__ import annotations

import resource
import time
from collections import deque
from typing import Any

import torch

from bc250studio import telemetry
from bc250studio.jobs import JobFolder, mine
from bc250studio.train.engine import Step

_STATE_EVERY_S = 0.5


class Journal:
    """Writes for one training process. Rates in the state are over the last ~30 steps, so heat shows in the ETA."""

    def __init__(self, job: JobFolder, device: torch.device) -> None:
        self.job, self.device = job, device
        self._metrics = telemetry.Writer(job.path / "metrics.jsonl")
        self._recent: deque[Step] = deque(maxlen=30)
        self._written = 0.0
        self.loss_ema: float | None = None
        self.skipped = 0
        self.seconds = 0.0
        self.positions = self.real = self.labelled = 0

    def phase(self, phase: str, text: str, **facts: Any) -> None:
        """Enter a phase; said in the state and as an event."""
        self.job.write_state(phase=phase, worker=mine().as_dict(), **facts)
        self.job.event("phase", text, phase=phase)

    def note(self, text: str) -> None:
        """A decision and its reason."""
        self.job.event("note", text)

    def step(self, step: Step, **facts: Any) -> None:
        """One optimiser step: a line of metrics always, the state twice a second at most."""
        if step.skipped:
            self.skipped += 1
        elif step.loss == step.loss:
            self.loss_ema = step.loss if self.loss_ema is None else 0.95 * self.loss_ema + 0.05 * step.loss
        self._recent.append(step)
        self.seconds += step.seconds
        self.positions += step.all_positions
        self.real += step.real_tokens
        self.labelled += step.labelled_tokens
        self._metrics.write(
            {
                "step": step.number,
                "loss": step.loss,
                "loss_ema": self.loss_ema,
                "lr": step.learning_rate,
                "grad_norm": step.gradient_norm,
                "all_positions_per_s": round(step.all_positions / step.seconds, 1),
                "real_tokens_per_s": round(step.real_tokens / step.seconds, 1),
                "labelled_tokens_per_s": round(step.labelled_tokens / step.seconds, 1),
                "step_s": round(step.seconds, 4),
                "memory_gib": round(memory_gib(self.device), 3),
                "skipped": step.skipped,
            }
        )
        if time.monotonic() - self._written < _STATE_EVERY_S and step.number < step.of:
            return
        self._written = time.monotonic()
        busy = sum(s.seconds for s in self._recent)
        self.job.write_state(
            phase="training",
            step=step.number,
            steps=step.of,
            epoch=round(step.epoch, 3),
            loss=_finite(step.loss),
            loss_ema=_finite(self.loss_ema),
            eta_s=round(busy / len(self._recent) * (step.of - step.number), 1),
            real_tokens_per_s=round(sum(s.real_tokens for s in self._recent) / busy, 1),
            skipped=self.skipped,
            **facts,
        )

    def rates(self) -> dict[str, float]:
        """The three rates over all steps of this process."""
        seconds = max(self.seconds, 1e-9)
        return {
            "all_positions_per_s": round(self.positions / seconds, 1),
            "real_tokens_per_s": round(self.real / seconds, 1),
            "labelled_tokens_per_s": round(self.labelled / seconds, 1),
        }


def _finite(value: float | None) -> float | None:
    return value if value is not None and abs(value) != float("inf") and value == value else None


def memory_gib(device: torch.device) -> float:
    """Peak memory: reserved by torch's allocator on a GPU, resident set of the process on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
