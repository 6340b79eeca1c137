"""Adapter beside merged files, each served and proved, in one table: which one should leave the house?

Each merged file gets a folder of its own under the run's ``proofs/``, with a reference made for that file, and a
server that lives as long as its proof. The run's own server is stopped meanwhile (the board has memory for one)
and started again at the end.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bc250studio import paths, profiles
from bc250studio.errors import BadInput, StudioError, clean
from bc250studio.jobs import JobFolder
from bc250studio.jobs.progress import Progress
from bc250studio.profiles import Resolved
from bc250studio.serve import rates, server, stage_prove, stage_serve

MERGED = ("f16", "q4_k_m")


def prove_all(
    job: JobFolder, resolved: Resolved, progress: Progress, kinds: tuple[str, ...] = MERGED
) -> list[dict[str, Any]]:
    """Prove the run's adapter (or merged file) as served, then each merged quantisation of ``kinds``.

    Rows: name, verdict, file, bytes, proof, prompt_per_s, tokens_per_s, error (when it could not be proved).

    Raises:
        BadInput: the run has no trained adapter or nothing exported.
    """
    outputs = job.stage("export").get("outputs") or {}
    trained = (job.stage("train").get("outputs") or {}).get("adapter")
    if not outputs.get("base_gguf") or not trained:
        raise BadInput(f"{job.name} has no exported adapter to compare; train and export it first.")
    had_server = server.adopt(job) is not None
    rows = [_row(job, resolved, progress, "adapter" if outputs.get("adapter_gguf") else "merged, as exported")]
    server.stop(job)
    try:
        for kind in kinds:
            progress(f"merging as {kind}", None, None)
            rows.append(_merged_row(job, resolved, Path(str(outputs["base_gguf"])), job.path / trained, kind, progress))
    finally:
        if had_server:
            stage_serve.running(job, resolved, progress)
    return rows


def _merged_row(
    job: JobFolder, resolved: Resolved, base: Path, trained: Path, kind: str, progress: Progress
) -> dict[str, Any]:
    from bc250studio.export.merged import write_merged
    from bc250studio.models.find import find

    name = f"merged {kind}"
    sub = _sub_job(job, resolved, kind)
    try:
        source = find(resolved.profile.model.base, resolved.profile.model.revision)
        exported = write_merged(trained, source, base, sub.path / "export" / f"merged-{kind}.gguf", kind, progress)
        sub.write_stage("train", verdict="done", outputs={"adapter": str(trained)})
        record = {"base_gguf": str(base), "merged_gguf": str(exported.path), "kind": "merged"}
        sub.write_stage("export", verdict="done", outputs=record, sha256=exported.sha256, types=exported.types)
        stage_prove.ensure_reference(sub, resolved, progress)
        return _row(sub, resolved, progress, name)
    except StudioError as error:
        return {"name": name, "verdict": "failed", "error": clean(error)}
    finally:
        server.stop(sub)


def _sub_job(job: JobFolder, resolved: Resolved, kind: str) -> JobFolder:
    """A job folder inside the run's, for one merged file; no run of its own."""
    sub = JobFolder(job.path / "proofs" / kind)
    for part in ("stages", "control", "checkpoints", "export", "logs"):
        paths.private_dir(sub.path / part)
    merged = resolved.profile.export.model_copy(update={"kind": "merged", "quantisation": kind})
    serve = resolved.profile.serve.model_copy(update={"port": 0})
    profile = resolved.profile.model_copy(update={"export": merged, "serve": serve})
    paths.write_atomic(sub.path / "profile.toml", profiles.dump(replace(resolved, profile=profile)))
    sub.write_state(phase="created", kind="proof", profile=resolved.name)
    return sub


def _row(job: JobFolder, resolved: Resolved, progress: Progress, name: str) -> dict[str, Any]:
    try:
        record = stage_prove.run(job, resolved, progress)
        talk = stage_serve.running(job, resolved, progress).talk()
        plan = stage_serve.plan_for(job, resolved)
        file = plan.adapter or plan.model
        return {
            "name": name,
            "verdict": record["verdict"],
            "file": str(file),
            "bytes": file.stat().st_size,
            "proof": record["proof"],
            **rates.measure(talk, 1.0).as_dict(),
            "error": record.get("error"),
        }
    except StudioError as error:
        return {"name": name, "verdict": "failed", "error": clean(error)}
