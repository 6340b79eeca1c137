"""Board readings as they stand in files: whether one may be believed, and how it is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bc250studio.errors import clean


def trusted(reading: object) -> float | None:
    """The value of a board reading when it may be believed."""
    if isinstance(reading, dict) and reading.get("trust") == "good":
        value = reading.get("value")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    return None


def reading_text(readings: Mapping[str, Any], name: str) -> str:
    """A board reading in words: the value, or ``n/a`` and why."""
    reading = readings.get(name)
    if not isinstance(reading, dict):
        return "n/a (not read)"
    value = trusted(reading)
    unit = clean(reading.get("unit") or "", 8)
    if value is not None:
        return f"{value:,.0f} {unit}".strip()
    return f"n/a ({clean(reading.get('why') or reading.get('trust') or 'no reading', 80)})"
