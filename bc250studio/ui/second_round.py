"""A second round: the rows that a reader kept in the chat, learnt on top of the adapter that gave the answers."""

from __future__ import annotations

import re

from bc250studio.errors import BadInput
from bc250studio.jobs import JobFolder
from bc250studio.serve import collected
from bc250studio.ui.draft import Draft

FEWEST_ROWS = 2
"""One is learnt from, one is kept away from training."""


def draft_of(job: JobFolder) -> Draft:
    """The run's own recipe with its last adapter to start from and the kept rows to learn.

    Only the last answer of a kept conversation is learnt: it is the one the reader approved of or wrote.

    Raises:
        BadInput: there are too few rows, or the run has no adapter to start from.
    """
    name = str(job.state().get("profile") or job.name)
    rows, file = collected.count(name), collected.file_of(name)
    if rows < FEWEST_ROWS:
        raise BadInput(f"A second round needs at least {FEWEST_ROWS} kept answers and there are {rows}; F8 keeps one.")
    adapter = job.path / str((job.stage("train").get("outputs") or {}).get("adapter") or "checkpoints/final")
    if not (adapter / "adapter_config.json").is_file():
        raise BadInput(f"{job.name} has no trained adapter in {adapter} to start a second round from.")
    draft = Draft.from_run(job)
    draft.name = name_after(draft.name)
    changes = {
        "adapter.start_from": str(adapter),
        "data.path": str(file),
        "data.format": "messages",
        "data.columns": {},
        "data.fill": {},
        "data.use_chosen": False,
        "data.train_on": "last",
        "train.steps": None,
    }
    for key, value in changes.items():
        if draft.value(key) != value:
            draft.put(key, value)
    return draft


def name_after(name: str) -> str:
    """``demo`` -> ``demo-round2`` -> ``demo-round3``."""
    found = re.fullmatch(r"(.*)-round(\d+)", name)
    return f"{found[1]}-round{int(found[2]) + 1}" if found else f"{name}-round2"
