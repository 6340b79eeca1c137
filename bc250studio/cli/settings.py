"""``settings``: show them, or set one (``settings serve.binary=/path/llama-server``)."""

from __future__ import annotations

import argparse

from bc250studio import paths, settings
from bc250studio.cli.common import emit
from bc250studio.errors import BadInput
from bc250studio.profiles.profile import parse_override


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``settings``."""
    parser.add_argument("change", nargs="?", metavar="A.B=C", help="set one value (empty after = removes it)")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace) -> int:
    """Show or set."""
    if options.change:
        if "=" not in options.change:
            raise BadInput("Setting one needs the form section.key=value, such as serve.binary=/opt/llama-server.")
        dotted, value = parse_override(options.change)
        settings.put(dotted, None if value == "" else value)
    data = settings.load().model_dump()
    lines = [f"# {paths.settings_file()}"]
    lines += [f"{s}.{k} = {'-' if v is None else v}" for s, t in data.items() for k, v in t.items()]
    emit(data, options.json, "\n".join(lines))
    return 0
