"""``paths``: where things are."""

from __future__ import annotations

import argparse

from bc250studio import paths
from bc250studio.cli.common import emit


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``paths``."""
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace) -> int:
    """Print."""
    data = {
        "config": paths.config_dir(),
        "settings": paths.settings_file(),
        "profiles": paths.user_profiles_dir(),
        "shipped profiles": paths.shipped("profiles"),
        "runs": paths.runs_dir(),
        "cache": paths.cache_dir(),
        "logs of the app": paths.state_dir(),
    }
    emit({k: str(v) for k, v in data.items()}, options.json, "\n".join(f"{k:<17} {v}" for k, v in data.items()))
    return 0
