"""A job's folder: the only interface between who runs a job and who looks at it.

See DESIGN: ``profile.toml``, ``state.json``, ``stages/``, ``metrics.jsonl``, ``board.jsonl``,
``events.jsonl``, ``server.json``, ``control/``, ``checkpoints/``, ``export/``, ``logs/``, ``lock``.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bc250studio import paths, profiles, telemetry
from bc250studio.errors import BadInput, clean, nearest
from bc250studio.jobs.identity import Identity, mine

SCHEMA = 1
FINISHED = frozenset({"done", "failed", "stopped"})


class JobFolder:
    """One job on disk. Reading never fails: what is missing or torn reads as empty."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """The name a user types."""
        return self.path.name

    @classmethod
    def create(cls, kind: str, resolved: profiles.Resolved | None, title: str = "") -> JobFolder:
        """A new folder, mode 0700, with the frozen profile and a first state."""
        runs = paths.private_dir(paths.runs_dir())
        stem = re.sub(r"[^a-z0-9-]+", "-", (title or (resolved.name if resolved else kind)).lower()).strip("-") or kind
        while True:
            path = runs / f"{stem[:40]}-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}"
            try:
                path.mkdir(mode=0o700)
                break
            except FileExistsError:
                continue
        folder = cls(path)
        for part in ("stages", "control", "checkpoints", "export", "logs"):
            (path / part).mkdir(mode=0o700)
        if resolved is not None:
            paths.write_atomic(path / "profile.toml", profiles.dump(resolved))
        folder.write_state(
            phase="created", kind=kind, created=time.time(), profile=resolved.name if resolved else "", owner=None
        )
        return folder

    def profile(self) -> profiles.Resolved:
        """The frozen profile.

        Raises:
            BadInput: it is missing or not readable.
        """
        file = self.path / "profile.toml"
        try:
            text = file.read_text("utf-8")
        except OSError as error:
            raise BadInput(f"{self.name} has no readable profile.toml: {error}.") from error
        return profiles.from_text(text, str(file), str(self.state().get("profile") or "profile"))

    def state(self) -> dict[str, Any]:
        """The last state its owner wrote; empty when unreadable."""
        return read_json(self.path / "state.json")

    def write_state(self, **changes: Any) -> dict[str, Any]:
        """Merge ``changes`` into the state with a fresh heartbeat. Only the job's owner calls this."""
        state = {**self.state(), "schema": SCHEMA, **changes, "heartbeat": time.time()}
        paths.write_atomic(self.path / "state.json", json.dumps(state, indent=1))
        return state

    def own(self, phase: str) -> None:
        """Say that this process works on the job now."""
        self.write_state(phase=phase, owner=mine().as_dict(), error=None)

    def owner(self) -> Identity | None:
        """The process that last worked on the job."""
        return Identity.from_dict(self.state().get("owner"))

    def event(self, kind: str, text: str, **facts: Any) -> None:
        """Append a past-tense fact to ``events.jsonl``; ``text`` is the sentence a person reads."""
        writer = telemetry.Writer(self.path / "events.jsonl")
        try:
            writer.write({"event": kind, "text": clean(text), **facts})
        finally:
            writer.close()

    def events(self) -> list[dict[str, Any]]:
        """All events, oldest first."""
        return telemetry.read_all(self.path / "events.jsonl")

    def stage(self, name: str) -> dict[str, Any]:
        """The record of a stage; empty when it has not run."""
        return read_json(self.path / "stages" / f"{name}.json")

    def stages(self) -> dict[str, dict[str, Any]]:
        """Every stage record by name."""
        return {file.stem: read_json(file) for file in sorted((self.path / "stages").glob("*.json"))}

    def write_stage(self, name: str, **record: Any) -> None:
        """Write a stage's record whole: ``verdict``, ``inputs`` (hashes), ``outputs``, times, results."""
        paths.write_atomic(
            self.path / "stages" / f"{name}.json", json.dumps({"schema": SCHEMA, **record}, indent=1, default=str)
        )


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object, or an empty one when the file is missing, torn or something else."""
    try:
        if not file.is_file():  # opening somebody's FIFO would wait for ever
            return {}
        record = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def all_jobs() -> list[JobFolder]:
    """Every job folder, newest first. Foreign files in the runs folder are passed over."""
    try:
        found = [JobFolder(p) for p in paths.runs_dir().iterdir() if p.is_dir() and (p / "state.json").is_file()]
    except OSError:
        return []
    return sorted(found, key=lambda job: (_created(job), job.name), reverse=True)


def _created(job: JobFolder) -> float:
    created = job.state().get("created")
    return float(created) if isinstance(created, (int, float)) else 0.0


def find(reference: str, among: Iterable[JobFolder] | None = None) -> JobFolder:
    """A job by its name, a unique beginning of it, ``last``, or its folder's path.

    Raises:
        BadInput: none or several match.
    """
    path = Path(reference).expanduser()
    if (path / "state.json").is_file():
        return JobFolder(path.resolve())
    jobs = list(among) if among is not None else all_jobs()
    if reference == "last" and jobs:
        return jobs[0]
    exact = [job for job in jobs if job.name == reference]
    matches = exact or [job for job in jobs if reference and job.name.startswith(reference)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise BadInput(
            f"{clean(reference)!r} fits {len(matches)} runs: {', '.join(job.name for job in matches[:4])} ..."
        )
    raise BadInput(
        f"No run is called {clean(reference)!r}; bc250studio runs lists them."
        + nearest(reference, [j.name for j in jobs])
    )
