"""``logs RUN``: events in words, or one of its log files."""

from __future__ import annotations

import argparse
import time

from bc250studio import jobs
from bc250studio.cli.common import emit
from bc250studio.errors import BadInput, clean, nearest


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``logs``."""
    parser.add_argument("run", nargs="?", default="last", help="a run's name (default: the newest)")
    parser.add_argument("--file", metavar="NAME", help="print logs/NAME.log instead of the events")
    parser.add_argument("--json", action="store_true", help="events as JSON")


def run(options: argparse.Namespace) -> int:
    """Print."""
    job = jobs.find(options.run)
    if options.file:
        names = {file.stem: file for file in sorted((job.path / "logs").glob("*.log"))}
        if options.file not in names:
            raise BadInput(f"{job.name} has the logs {', '.join(names) or 'none'}.{nearest(options.file, names)}")
        print(clean(names[options.file].read_text("utf-8", "replace")), end="")
        return 0
    events = job.events()
    lines = [
        f"{time.strftime('%m-%d %H:%M:%S', time.localtime(e.get('t', 0)))}  {clean(e.get('text', ''))}" for e in events
    ]
    emit(events, options.json, "\n".join(lines) or "No events yet.")
    return 0
