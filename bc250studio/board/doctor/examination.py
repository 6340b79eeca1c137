"""All checks in order. A check that breaks is a line that says so, never a traceback."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from bc250studio.board.doctor import device, heat, memory, runtime, serving, session
from bc250studio.board.doctor.check import Check
from bc250studio.board.doctor.machine import Machine
from bc250studio.errors import clean
from bc250studio.jobs.progress import Progress, silent

GROUPS: tuple[tuple[str, Callable[[Machine], Iterator[Check]]], ...] = (
    (device.GROUP, device.checks),
    (runtime.GROUP, runtime.checks),
    (memory.GROUP, memory.checks),
    (heat.GROUP, heat.checks),
    (serving.GROUP, serving.checks),
    (session.GROUP, session.checks),
)


def examine(machine: Machine, progress: Progress = silent) -> list[Check]:
    """Every check of every group."""
    found: list[Check] = []
    for group, checks in GROUPS:
        progress(f"looking at {group.lower()} ...", None, None)
        try:
            for check in checks(machine):
                found.append(Check(check.name, group, check.verdict, clean(check.why).rstrip("."), clean(check.fix)))
        except Exception as error:  # whatever a machine does to a check, the others still answer
            found.append(
                Check(group.lower(), group, "warn", f"a check broke with {type(error).__name__}: {clean(error, 200)}")
            )
    return found


def count(checks: Iterable[Check]) -> dict[str, int]:
    """Verdict -> how many."""
    counted = Counter(check.verdict for check in checks)
    return {verdict: counted[verdict] for verdict in ("pass", "warn", "fail", "skip")}
