"""How a stage says where it is: one callable that takes a sentence and, when known, done and total."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float | None, float | None], None]


def silent(text: str, done: float | None = None, total: float | None = None) -> None:
    """For callers that show nothing."""
