"""How fast a model has trained on this machine: the rate that a time estimate takes from an earlier run."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from bc250studio import profiles
from bc250studio.errors import StudioError
from bc250studio.ui.numbers import finite
from bc250studio.ui.stage_words import table
from bc250studio.ui.watch import JobRow

LOOKED_AT = 60


@dataclass(frozen=True)
class Measured:
    """``remark`` names what that run did otherwise."""

    tokens_per_s: float
    run: str
    age_s: float
    remark: str = ""


def newest(resolved: profiles.Resolved, jobs: Iterable[JobRow], on_gpu: bool) -> Measured | None:
    """The newest trained run with the same model on the same kind of device, one with the same adapter preferred."""
    found: list[tuple[bool, Measured]] = []
    for row in list(jobs)[:LOOKED_AT]:
        rate = finite(table(row.train, "rates").get("real_tokens_per_s"))
        device = str(row.train.get("device") or "cpu")
        if not rate or rate <= 0 or device.startswith("cpu") == on_gpu or row.standing.state.get("recording"):
            continue
        try:
            theirs = row.standing.job.profile().profile
        except StudioError:
            continue
        if theirs.model.base != resolved.profile.model.base:
            continue
        remark = _remark(row, theirs, resolved.profile)
        created = finite(row.standing.state.get("created")) or time.time()
        found.append((bool(remark), Measured(rate, row.name, max(0.0, time.time() - created), remark)))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _remark(row: JobRow, theirs: profiles.Profile, ours: profiles.Profile) -> str:
    if theirs.adapter.kind != ours.adapter.kind:
        return f"that run trained {'all weights' if theirs.adapter.kind == 'full' else 'an adapter'}"
    if theirs.adapter.kind == "lora" and theirs.adapter.rank != ours.adapter.rank:
        return f"that run had rank {theirs.adapter.rank}"
    if row.standing.state.get("kind") == "rehearsal":
        return "a rehearsal's two steps, so roughly"
    return ""
