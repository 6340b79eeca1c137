"""The prove stage of a run: the running server against the reference, tokens against the tokenizer, a cause if not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bc250studio import paths
from bc250studio.errors import BadInput, StudioError, clean
from bc250studio.jobs import JobFolder
from bc250studio.jobs.folder import read_json
from bc250studio.jobs.progress import Progress
from bc250studio.profiles import Resolved
from bc250studio.serve import bisect, prove, rates, same_ids, server, stage_serve
from bc250studio.serve.merge_check import check_merge
from bc250studio.serve.reference import read_reference
from bc250studio.serve.talk import Talk


def inputs(job: JobFolder, resolved: Resolved) -> dict[str, Any]:
    """The server's process and files, the reference, the limits."""
    reference = job.path / str((job.stage("reference").get("outputs") or {}).get("reference", "reference.safetensors"))
    described = read_json(job.path / "server.json")
    return {
        "server": [described.get("process"), described.get("model"), described.get("adapter")],
        "reference": [reference.stat().st_size, reference.stat().st_mtime_ns] if reference.exists() else None,
        "proof": resolved.profile.proof.model_dump(mode="json"),
    }


def run(job: JobFolder, resolved: Resolved, progress: Progress) -> dict[str, Any]:
    """Compare; a failed proof is a record with the verdict ``failed``, not an exception.

    Raises:
        BadInput: there is no reference.
        JobFailed: the server cannot be reached or started.
    """
    proof = prove_run(job, resolved, progress)
    record: dict[str, Any] = {"verdict": "passed" if proof.passed else "failed", "proof": proof.as_dict()}
    if not proof.passed:
        record["exit_code"] = 3
        record["error"] = f"What is served is not what was trained: {proof.cause or 'the numbers differ'}."
    paths.write_atomic(job.path / "proof.json", json.dumps(record, indent=1))
    return record


def ensure_reference(job: JobFolder, resolved: Resolved, progress: Progress) -> None:
    """Write the reference when the job has none for these files (an adapter from elsewhere, another quantisation).

    Model and server need not fit together: a server of this job is stopped first.

    Raises:
        StudioError: the reference stage's own sentence.
    """
    from bc250studio.train import stage_reference

    wanted = stage_reference.inputs(job, resolved)
    known = job.stage("reference")
    if known.get("inputs") == wanted and (job.path / "reference.safetensors").exists():
        return
    server.stop(job)
    job.write_stage("reference", inputs=wanted, **stage_reference.run(job, resolved, progress))


def prove_run(job: JobFolder, resolved: Resolved, progress: Progress) -> prove.Proof:
    """The proof of a run's own server."""
    profile = resolved.profile
    name = str((job.stage("reference").get("outputs") or {}).get("reference", "reference.safetensors"))
    reference = read_reference(job.path / name)
    running = stage_serve.running(job, resolved, progress)
    if reference.longest >= running.n_ctx:
        raise BadInput(
            f"The reference needs {reference.longest} tokens of context and the server has {running.n_ctx}; "
            "raise serve.context."
        )
    plan = stage_serve.plan_for(job, resolved)
    binary = stage_serve.binary_for(job)
    talk = server.steady_talk(running, stage_serve.tuned(plan, binary), binary)
    limit = prove.limit_for(Path(running.model), profile.proof.max_kl)
    merged = running.adapter is None
    proof, _ = prove.measure(talk, reference, limit, profile.proof.min_top1, merged, progress)
    trained = (job.stage("train").get("outputs") or {}).get("adapter")
    if merged and trained:
        _check_merge(proof, job, job.path / trained, Path(running.model))
    progress("comparing templates and tokens", None, None)
    _compare_ids(proof, talk, resolved)
    if not proof.passed and not proof.cause:
        progress("looking for the cause", None, None)
        proof.cause = bisect.find_cause(
            proof, talk, reference, plan, binary, job.path / trained if trained else None, progress
        )
    _measure_price(proof, talk, progress)
    talk.settle()
    if talk.deaths:
        proof.notes.append(f"the server died {talk.deaths} times while it was compared and was started again")
    return proof


def _measure_price(proof: prove.Proof, talk: Talk, progress: Progress) -> None:
    """Tokens a second with the adapter and without: shown, never judged, and never a reason to fail."""
    if not talk.has_adapter or talk.rescale is not None:
        return  # one side only; or a device that computes on the CPU for the sake of a check, whose rate says nothing
    progress("measuring what the adapter costs", None, None)
    try:
        proof.rates = {side: found.as_dict() for side, found in rates.price(talk).items()}
    except StudioError as error:
        proof.notes.append(f"tokens a second could not be measured: {clean(error, 120)}")


def _check_merge(proof: prove.Proof, job: JobFolder, trained: Path, merged: Path) -> None:
    base = (job.stage("export").get("outputs") or {}).get("base_gguf")
    if not base:
        return
    found = check_merge(trained, Path(str(base)), merged)
    if found is None:
        return
    proof.merge_share = found.share
    proof.cause = found.fault
    if not found.exact:
        proof.notes.append(f"the quantised file holds {100 * found.share:.0f} % of the adapter's change")


def _compare_ids(proof: prove.Proof, talk: Any, resolved: Resolved) -> None:
    from bc250studio.data.thinking import served
    from bc250studio.models.find import find
    from bc250studio.models.tokenizer import load_tokenizer

    profile = resolved.profile
    source = find(profile.model.base, profile.model.revision)
    chats, thinking = _chats(resolved, source, proof), served(profile, source)
    found = same_ids.compare(talk, load_tokenizer(source), chats, thinking)
    proof.ids_equal, proof.ids_checked, proof.ids_note = found.equal, found.checked, found.note
    proof.closing_stops = found.closing_stops


def _chats(resolved: Resolved, source: Any, proof: prove.Proof) -> list[list[dict[str, Any]]]:
    """The evaluation chats; without the data (it was moved, say) the fixed chats must do, and that is noted."""
    from bc250studio import data

    try:
        return data.prepare(resolved.profile, source).eval_chats
    except StudioError as error:
        proof.notes.append(f"evaluation chats could not be read, only fixed ones were compared: {clean(error, 160)}")
        return []
