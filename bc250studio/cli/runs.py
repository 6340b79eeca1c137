"""``runs``: every run, newest first, with how it stands."""

from __future__ import annotations

import argparse
import time

from bc250studio import jobs
from bc250studio.cli.common import emit, table
from bc250studio.pipeline.summary import summary


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``runs``."""
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace) -> int:
    """List."""
    rows, data = [], []
    for job in jobs.all_jobs():
        one = summary(job)
        found = jobs.standing(job)
        created = found.state.get("created")
        when = time.strftime("%m-%d %H:%M", time.localtime(created)) if isinstance(created, (int, float)) else "-"
        loss = one.get("eval_loss_after")
        rate = (one.get("rates") or {}).get("real_tokens_per_s")
        rows.append(
            (
                job.name,
                found.verdict if not found.live else found.phase,
                when,
                f"{loss:.3f}" if loss is not None else "-",
                f"{rate:.0f}" if rate is not None else "-",
                one.get("stages", {}).get("prove", "-"),
            )
        )
        data.append({**one, "created": created})
    emit(
        data,
        options.json,
        table(("run", "state", "started", "loss", "tok/s", "proof"), rows) if rows else "No runs yet.",
    )
    return 0
