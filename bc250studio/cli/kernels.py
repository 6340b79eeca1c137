"""``kernels``: tuned matrix kernels, from the shapes of a training step to a proven library in use.

One module per group of verbs; this one only says which there are.
"""

from __future__ import annotations

import argparse
import importlib

GROUPS = ("kernels_shapes", "kernels_library", "kernels_tuning")


def add(parser: argparse.ArgumentParser) -> None:
    """Options of every verb."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for group in GROUPS:
        importlib.import_module(f"bc250studio.cli.{group}").add(verbs)


def run(options: argparse.Namespace) -> int:
    """Run the verb."""
    return int(options.act(options))
