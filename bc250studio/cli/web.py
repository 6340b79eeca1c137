"""``web``: the app in a browser, for those who tunnel a port. On loopback only."""

from __future__ import annotations

import argparse
import shlex
import sys

from bc250studio.cli.common import narrate
from bc250studio.errors import BadInput


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``web``."""
    parser.add_argument("--port", type=int, default=8250, help="port on 127.0.0.1 (default 8250)")
    parser.add_argument("--readonly", action="store_true", help="only watch")


def run(options: argparse.Namespace) -> int:
    """Serve until interrupted. Each browser tab runs an app of its own; runs do not depend on any of them."""
    try:
        from textual_serve.server import Server
    except ImportError as error:
        raise BadInput("The web view needs one more package: pip install 'bc250studio[web]'.") from error
    words = [sys.executable, "-m", "bc250studio.cli.main", "app", *(["--readonly"] if options.readonly else [])]
    narrate(
        f"http://127.0.0.1:{options.port}   Anyone with a login on this machine can open it. From elsewhere: "
        f"ssh -L {options.port}:127.0.0.1:{options.port} USER@HOST"
    )
    Server(shlex.join(words), host="127.0.0.1", port=options.port, title="bc250studio").serve()
    return 0
