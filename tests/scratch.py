"""Folders for what is made once per test session; they go with the process."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path


@cache
def _root() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="bc250studio-tests-", ignore_cleanup_errors=True)


def scratch(name: str) -> Path:
    """A new empty folder."""
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_root().name))
