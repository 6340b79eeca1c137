"""The app: ``bc250studio`` without any word."""

from __future__ import annotations

import argparse
import gc
import sys


def add(parser: argparse.ArgumentParser) -> None:
    """Options of the app."""
    parser.add_argument("run", nargs="?", help="open this run (default: the live one, when there is one)")
    parser.add_argument("--readonly", action="store_true", help="only watch: keys that change anything say so instead")
    parser.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal (selecting text)")


def run(options: argparse.Namespace) -> int:
    """Open it; the exit code."""
    from bc250studio import jobs
    from bc250studio.errors import BadInput

    # Textual draws on the real stderr and reads keys from stdin.
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadInput(
            "The app needs a terminal; without one use the commands, such as: bc250studio run demo "
            "(bc250studio --help lists them)."
        )
    job = jobs.find(options.run) if options.run else None
    if job is None:
        live = jobs.live()
        job = live[0].job if live else None
    gc.disable()  # importing makes a million objects and hardly any garbage; on again with the first frame
    from bc250studio.ui.app import main

    return main(read_only=options.readonly, job=job, mouse=not options.no_mouse)
