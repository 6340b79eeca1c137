"""A reading: what a sensor said, where it came from, how old it is, and whether it can be believed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Trust = Literal["good", "implausible", "missing"]


@dataclass(frozen=True)
class Reading:
    """One value with its unit (``°C``, ``W``, ``MHz``, ``MiB``, ``rpm``, ``%``) and its trust.

    ``implausible`` values are kept for display, never used for a decision; ``why`` says the reason, and
    for a good value that came from a substitute, which one and why. ``age_s`` counts from the read.
    """

    value: float | None
    unit: str
    source: str
    age_s: float = 0.0
    trust: Trust = "good"
    why: str = ""

    @property
    def good(self) -> bool:
        """Whether a decision may rest on it."""
        return self.trust == "good" and self.value is not None

    def as_dict(self) -> dict[str, Any]:
        """For a JSON line."""
        return asdict(self)

    def doubted(self, why: str) -> Reading:
        """The same value, marked implausible."""
        return Reading(self.value, self.unit, self.source, self.age_s, "implausible", why)

    def explained(self, why: str) -> Reading:
        """The same reading with a reason beside it."""
        return Reading(self.value, self.unit, self.source, self.age_s, self.trust, why)


def missing(unit: str, why: str, source: str = "") -> Reading:
    """No value, and why."""
    return Reading(None, unit, source, 0.0, "missing", why)


def from_dict(record: object) -> Reading | None:
    """The reverse of :meth:`Reading.as_dict`; None when the record is not a reading."""
    if not isinstance(record, dict):
        return None
    value, age, trust = record.get("value"), record.get("age_s"), record.get("trust")
    if isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
        return None
    if trust not in ("good", "implausible", "missing"):
        return None
    return Reading(
        None if value is None else float(value),
        str(record.get("unit", "")),
        str(record.get("source", "")),
        float(age) if isinstance(age, (int, float)) else 0.0,
        trust,
        str(record.get("why", "")),
    )
