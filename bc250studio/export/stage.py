"""The export stage of a run: the trained adapter (or model) becomes the files that llama-server loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bc250studio.errors import BadInput
from bc250studio.export.exported import Exported, sha256_of
from bc250studio.export.way import export
from bc250studio.jobs import JobFolder
from bc250studio.jobs.progress import Progress
from bc250studio.models.find import find
from bc250studio.models.served import served_base
from bc250studio.profiles import Resolved


def inputs(job: JobFolder, resolved: Resolved) -> dict[str, Any]:
    """What the export depends on: the trained weights, the base and the export section.

    Raises:
        BadInput: nothing has been trained yet.
    """
    trained = trained_folder(job)
    profile = resolved.profile
    return {
        "trained": {file.name: sha256_of(file) for file in sorted(trained.glob("*model*.safetensors"))},
        "config": {file.name: sha256_of(file) for file in sorted(trained.glob("*config.json"))},
        "base": profile.model.base,
        "revision": profile.model.revision,
        "gguf": profile.model.gguf,
        "export": profile.export.model_dump(mode="json"),
    }


def run(job: JobFolder, resolved: Resolved, progress: Progress) -> dict[str, Any]:
    """Write the files into the job's ``export/`` folder.

    Raises:
        BadInput: the fine-tune cannot leave in the way asked for; the sentence says why.
        JobFailed: no room on disk, or the base could not be converted.
    """
    profile = resolved.profile
    source = find(profile.model.base, profile.model.revision)
    trained = trained_folder(job)
    progress("looking for the base's GGUF file", None, None)
    base = served_base(resolved, source, progress)
    exported = export(trained, source, base, job.path / "export", profile.export, progress)
    for note in exported.notes:
        job.event("note", note)
    return record(exported, base)


def record(exported: Exported, base: Path) -> dict[str, Any]:
    """The stage's record: what was written, what it belongs to."""
    key = "adapter_gguf" if exported.kind == "adapter" else "merged_gguf"
    outputs = {"kind": exported.kind, "base_gguf": str(base.resolve()), key: str(exported.path.resolve())}
    return {
        "verdict": "done",
        "outputs": outputs,
        "types": exported.types,
        "bytes": exported.size_bytes,
        "sha256": exported.sha256,
        "notes": list(exported.notes),
    }


def still_there(job: JobFolder, earlier: dict[str, Any]) -> bool:
    """Are the files of an earlier export still on disk?"""
    outputs = earlier.get("outputs", {})
    files = [outputs.get("base_gguf"), outputs.get("adapter_gguf") or outputs.get("merged_gguf")]
    return all(isinstance(file, str) and Path(file).is_file() for file in files)


def trained_folder(job: JobFolder) -> Path:
    """The PEFT folder (or, after a full fine-tune, the model folder) that training left.

    Raises:
        BadInput: there is none yet.
    """
    outputs = job.stage("train").get("outputs", {})
    name = outputs.get("adapter") or outputs.get("model")
    if not isinstance(name, str) or not (job.path / name).is_dir():
        raise BadInput(f"{job.name} has no trained adapter yet; train it first (bc250studio train).")
    return job.path / name
