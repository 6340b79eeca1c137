"""Where a server listens, and how somebody at another machine reaches it."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from bc250studio import profiles
from bc250studio.errors import BadInput

if TYPE_CHECKING:
    from bc250studio.serve.server import Server

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def check_address(serve: profiles.profile.Serve) -> None:
    """Refuse an address nobody can listen on.

    Raises:
        BadInput: the port is taken, or the host is not one of this machine.
    """
    if serve.port == 0 and serve.host in LOOPBACK:
        return
    family = socket.AF_INET6 if ":" in serve.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((serve.host, serve.port))
        except OSError as error:
            raise BadInput(
                f"serve.host {serve.host} port {serve.port} cannot be used: {error.strerror or error}; "
                "choose another port, or 0 for a free one."
            ) from error


def free_port(host: str, wanted: int = 0) -> int:
    """A port nobody listens on now: ``wanted`` when it is one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in dict.fromkeys((wanted, 0)):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                if port:
                    continue
                raise
            return int(probe.getsockname()[1])
    raise AssertionError


def tunnel_lines(server: Server) -> dict[str, str]:
    """What a person at another machine types: an ssh tunnel, and a request through it."""
    import getpass

    where = os.environ.get("SSH_CONNECTION", "").split()
    host = where[2] if len(where) == 4 else socket.gethostname()
    bracketed = f"[{host}]" if ":" in host and where else host
    user = getpass.getuser()
    return {
        "tunnel": f"ssh -L {server.port}:127.0.0.1:{server.port} {user}@{bracketed if ':' not in host else host}",
        "key": server.key,
        "curl": (
            f"curl http://127.0.0.1:{server.port}/v1/chat/completions -H 'Authorization: Bearer {server.key}' "
            '-H \'Content-Type: application/json\' -d \'{"messages":[{"role":"user","content":"Hello"}]}\''
        ),
    }
