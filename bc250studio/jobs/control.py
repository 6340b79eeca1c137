"""Requests to a running job: a file each in ``control/``, answered by an event, gone when taken.

Anyone who may write the folder may ask; the job looks between two steps.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from bc250studio import paths
from bc250studio.errors import BadInput, nearest
from bc250studio.jobs.folder import JobFolder, read_json

VERBS = ("pause", "resume", "stop", "checkpoint", "note")


def ask(job: JobFolder, verb: str, **details: Any) -> None:
    """Leave a request.

    Raises:
        BadInput: an unknown verb.
    """
    if verb not in VERBS:
        raise BadInput(f"A run cannot be asked to {verb!r}." + nearest(verb, VERBS))
    name = f"{time.time_ns():020d}-{os.getpid()}-{verb}.json"
    paths.write_atomic(job.path / "control" / name, json.dumps({"verb": verb, "t": time.time(), **details}))


def take(job: JobFolder) -> list[dict[str, Any]]:
    """All waiting requests, oldest first, removed from the folder. Foreign files are removed unheard."""
    requests = []
    try:
        names = sorted(file.name for file in (job.path / "control").iterdir())
    except OSError:
        return []
    for name in names:
        if name.startswith(".") or not name.endswith(".json"):
            continue
        file = job.path / "control" / name
        request = read_json(file)
        file.unlink(missing_ok=True)
        if request.get("verb") in VERBS:
            requests.append(request)
    return requests
