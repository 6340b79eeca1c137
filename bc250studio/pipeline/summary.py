"""What a run came to, gathered from its folder: for ``run --json``, ``status``, ``report`` and the app."""

from __future__ import annotations

from typing import Any

from bc250studio.jobs import JobFolder, standing


def summary(job: JobFolder) -> dict[str, Any]:
    """The figures of a run; absent ones are left out, never invented."""
    stages = job.stages()
    found = standing(job)
    train, export = stages.get("train", {}), stages.get("export", {})
    serve, prove, ask = stages.get("serve", {}), stages.get("prove", {}), stages.get("ask", {})
    result: dict[str, Any] = {
        "run": job.name,
        "folder": str(job.path),
        "verdict": found.verdict,
        "phase": found.phase,
        "error": found.state.get("error"),
        "eval_loss_before": train.get("eval_loss_before"),
        "eval_loss_after": train.get("eval_loss_after"),
        "steps": train.get("steps"),
        "result_step": train.get("result_step"),
        "train_seconds": train.get("train_seconds"),
        "rates": train.get("rates"),
        "device": train.get("device"),
        "peak_memory_gib": train.get("peak_memory_gib"),
        "export": export.get("outputs"),
        "server": serve.get("server"),
        "proof": prove.get("proof"),
        "answers": ask.get("answers"),
        "stages": {name: record.get("verdict") for name, record in stages.items()},
        "seconds": {name: record.get("seconds") for name, record in stages.items()},
    }
    return {key: value for key, value in result.items() if value is not None}


def sentence(data: dict[str, Any]) -> str:
    """The verdict a person reads first: ``served = trained: top-1 99.6 %, KL 0.001``."""
    proof = data.get("proof") or {}
    if not proof:
        return f"{data['run']}: {data['verdict']}" + (f" ({data['error']})" if data.get("error") else "")
    passed = (data.get("stages") or {}).get("prove") == "passed"
    figures = f"top-1 {100 * proof['top1']:.1f} %, KL {proof['mean_kl']:.4f}"
    if passed:
        return f"served = trained: {figures}"
    return f"SERVED IS NOT WHAT WAS TRAINED: {figures}" + (f"; {proof['cause']}" if proof.get("cause") else "")
