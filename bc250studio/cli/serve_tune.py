"""``serve --tune``: measure settings of the server, keep the fastest that is still right, serve with it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bc250studio.cli.common import Bar, emit, table


def run(job: Any, resolved: Any, plan: Any, binary: Any, options: argparse.Namespace, bar: Bar) -> int:
    """Tune for this run's files; the run's own server comes back with the winner."""
    from bc250studio.serve import prove, server, stage_serve, tune
    from bc250studio.serve.reference import read_reference

    file = job.path / "reference.safetensors"
    reference = read_reference(file) if file.exists() else None
    limit = prove.limit_for(Path(plan.model), resolved.profile.proof.max_kl)
    server.stop(job)
    best, trials = tune.tune(job.path, plan, binary, reference, limit, bar)
    kept = tune.keep(binary, best, trials)
    found = server.start(job.path, stage_serve.tuned(best, binary), binary, bar, own_job=job.path)
    job.write_stage("serve", verdict="done", server=found.public(), outputs={"server": "server.json"})
    bar.close()
    rows = [
        (trial.words, f"{trial.score:.1f}", "-" if trial.kl is None else f"{trial.kl:.4f}", _said(trial, limit))
        for trial in trials
    ]
    gain = max(trial.score for trial in trials if trial.accepted) / max(trials[0].score, 1e-9)
    text = "\n".join(
        [
            table(("setting", "tokens/s (mean of all depths)", "KL", ""), rows),
            "",
            f"{gain:.2f} times the profile's settings; kept in {kept}",
            ""
            if reference is not None
            else "Without a reference nothing could be proved: run bc250studio prove first.",
        ]
    )
    result = {"run": job.name, "gain": round(gain, 4), "kept": str(kept), "trials": [t.as_dict() for t in trials]}
    emit(result, options.json, text)
    return 0


def _said(trial: Any, limit_kl: float) -> str:
    if trial.accepted:
        return "kept"
    if trial.error:
        return str(trial.error)
    return "not faster" if trial.kl is None or trial.kl <= limit_kl else "faster or not, it is wrong"
