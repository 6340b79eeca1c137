"""``queue add|list|clear``: several profiles, one after the other, while you sleep."""

from __future__ import annotations

import argparse

from bc250studio import pipeline, profiles
from bc250studio.cli.common import emit, narrate
from bc250studio.pipeline import preflight, queue


def add(parser: argparse.ArgumentParser) -> None:
    """Sub-commands."""
    verbs = parser.add_subparsers(dest="verb", required=True)
    put = verbs.add_parser("add", help="put profiles at the end")
    put.add_argument("profile", nargs="+")
    put.add_argument("--set", action="append", default=[], metavar="A.B=C")
    put.add_argument("--only-train", action="store_true", help="no export, server and proof")
    put.add_argument("--json", action="store_true")
    verbs.add_parser("list", help="what waits and what runs").add_argument("--json", action="store_true")
    verbs.add_parser("clear", help="forget what waits").add_argument("--json", action="store_true")


def run(options: argparse.Namespace) -> int:
    """Dispatch."""
    if options.verb == "add":
        found = [profiles.load(name, options.set) for name in options.profile]
        stages = ("train",) if options.only_train else pipeline.STAGES
        for resolved in found:
            preflight.check(resolved, stages)
        for resolved in found:
            queue.add(resolved, stages)
        job = queue.ensure_runner()
        narrate(f"The queue works as {job.name}; it goes on without this terminal.")
    elif options.verb == "clear":
        for entry in queue.waiting():
            entry.unlink(missing_ok=True)
    job_now = queue.runner()
    names = [entry.stem.partition("--")[2] for entry in queue.waiting()]
    lines = [f"works    {job_now.name}" if job_now else "works    nothing"]
    lines += [f"waits    {name}" for name in names]
    emit({"runner": job_now.name if job_now else None, "waiting": names}, options.json, "\n".join(lines))
    return 0
