"""The learning rate of every step: a rise, then a fall by cosine, by a straight line, or none."""

from __future__ import annotations

import math


def learning_rate(step: int, steps: int, peak: float, kind: str, warmup: float) -> float:
    """Rate of optimiser step ``step`` (0-based) of ``steps``.

    The first ``round(warmup * steps)`` steps rise in equal parts to ``peak``, beginning above zero; the
    fall ends at zero one step after the last, so that no step is wasted on a rate of zero.
    """
    rise = min(round(warmup * steps), steps - 1)
    if step < rise:
        return peak * (step + 1) / (rise + 1)
    done = (step - rise) / max(steps - rise, 1)
    if kind == "cosine":
        return peak * 0.5 * (1.0 + math.cos(math.pi * done))
    if kind == "linear":
        return peak * (1.0 - done)
    return peak
