"""Answers that a reader kept: rows of a dataset for a second round of training, one file a profile."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bc250studio import paths


def file_of(profile: str) -> Path:
    """Where the rows of a profile are kept, in the data folder."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", profile).strip("-.") or "chat"
    return paths.data_dir() / "collected" / f"{name}.jsonl"


def count(profile: str) -> int:
    """How many rows are kept."""
    try:
        with file_of(profile).open("rb") as file:
            return sum(1 for line in file if line.strip())
    except OSError:
        return 0


def save(profile: str, row: Mapping[str, Any]) -> Path:
    """Append a row; one line, one write, mode 0600.

    Raises:
        OSError: it cannot be written.
    """
    file = file_of(profile)
    paths.private_dir(file.parent)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
    finally:
        os.close(descriptor)
    return file
