"""One line of the doctor's answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["pass", "warn", "fail", "skip"]
ONLY_BC250 = "only on a BC-250"


@dataclass(frozen=True)
class Check:
    """``name`` is stable (scripts may look for it), ``why`` a sentence, ``fix`` a command or step, may be empty."""

    name: str
    group: str
    verdict: Verdict
    why: str
    fix: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self)


class Lines:
    """The four verdicts of one group, so that a check reads as what it says."""

    def __init__(self, group: str) -> None:
        self.group = group

    def ok(self, name: str, why: str) -> Check:
        """Fine."""
        return Check(name, self.group, "pass", why)

    def warn(self, name: str, why: str, fix: str = "") -> Check:
        """It works, but."""
        return Check(name, self.group, "warn", why, fix)

    def fail(self, name: str, why: str, fix: str = "") -> Check:
        """It will not work, or will work wrongly."""
        return Check(name, self.group, "fail", why, fix)

    def skip(self, name: str, why: str) -> Check:
        """Does not apply here, or could not be asked."""
        return Check(name, self.group, "skip", why)
