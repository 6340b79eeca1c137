"""``train PROFILE``: only the training stage; export, serve and prove can follow later."""

from __future__ import annotations

import argparse

from bc250studio import pipeline, profiles
from bc250studio.cli.run import add_common, start


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``train``."""
    parser.add_argument("profile", help="a profile's name or file")
    add_common(parser)


def run(options: argparse.Namespace) -> int:
    """Start and follow."""
    resolved = profiles.load(options.profile, options.set)
    return start(pipeline.launch(resolved, ("train",)), options)
