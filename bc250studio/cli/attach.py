"""``attach RUN``: follow a run until it ends; Ctrl-C detaches."""

from __future__ import annotations

import argparse

from bc250studio import jobs
from bc250studio.cli.run import watch


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``attach``."""
    parser.add_argument("run", nargs="?", default="last", help="a run's name (default: the newest)")
    parser.add_argument("--json", action="store_true", help="the result as JSON on stdout")


def run(options: argparse.Namespace) -> int:
    """Follow."""
    return watch(jobs.find(options.run), options.json)
