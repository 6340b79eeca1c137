"""``report RUN``: the run on one page; also written as report.md into its folder."""

from __future__ import annotations

import argparse

from bc250studio import jobs
from bc250studio.cli.common import emit
from bc250studio.pipeline import report


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``report``."""
    parser.add_argument("run", nargs="?", default="last", help="a run's name (default: the newest)")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace) -> int:
    """Print."""
    job = jobs.find(options.run)
    text = report.write(job)
    emit(report.facts(job), options.json, text)
    return 0
