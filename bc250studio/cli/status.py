"""``status RUN``: how a run stands, without touching it."""

from __future__ import annotations

import argparse

from bc250studio import jobs, telemetry
from bc250studio.cli.common import duration, emit
from bc250studio.cli.follow import status_line
from bc250studio.pipeline.summary import sentence, summary


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``status``."""
    parser.add_argument("run", nargs="?", default="last", help="a run's name (default: the newest)")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace) -> int:
    """Look."""
    job = jobs.find(options.run)
    found = jobs.standing(job)
    board = telemetry.read_all(job.path / "board.jsonl")
    line = f"{job.name}: {found.verdict}, {status_line(found, board[-1].get('readings', {}) if board else {})}"
    if found.live:
        line += f"  (news {duration(found.age_s)} old)"
    data = {**summary(job), "age_s": round(found.age_s, 1), "state": found.state}
    emit(data, options.json, line if found.live else f"{line}\n{sentence(summary(job))}")
    return 0
