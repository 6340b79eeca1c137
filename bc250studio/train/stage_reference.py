"""The reference stage: log-probabilities the served answers are judged by, before the server starts. Torch-free."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bc250studio.jobs import JobFolder
from bc250studio.jobs.progress import Progress
from bc250studio.profiles import Resolved
from bc250studio.train.stage import run_child

RESULT = "checkpoints/reference_result.json"


def inputs(job: JobFolder, resolved: Resolved) -> dict[str, Any]:
    """The trained files, the exported files, and how many tokens are compared."""
    outputs = {**(job.stage("train").get("outputs") or {}), **(job.stage("export").get("outputs") or {})}
    files = {}
    for key in ("adapter", "model", "base_gguf", "merged_gguf"):
        if outputs.get(key):
            files[key] = _stamp(job.path / str(outputs[key]))
    return {"files": files, "tokens": resolved.profile.proof.tokens, "model": resolved.profile.model.model_dump()}


def _stamp(path: Path) -> list[Any]:
    """Path, size and time of a file, or of the newest file of a folder."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    found = [file.stat() for file in files if file.is_file()]
    return [str(path), sum(s.st_size for s in found), max((s.st_mtime_ns for s in found), default=0)]


def run(job: JobFolder, resolved: Resolved, progress: Progress) -> dict[str, Any]:
    """Compute the reference in a child process; record: outputs.reference, tokens, variants.

    Raises:
        StudioError: the child's own sentence.
    """
    progress("Computing reference log-probabilities", None, None)
    return run_child(job, resolved, "bc250studio.train.reference", "reference", RESULT)
