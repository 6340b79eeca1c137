"""Is a server well? It answers /health, serves the files it was started for, and completes a real prompt."""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path

from bc250studio.errors import JobFailed, clean
from bc250studio.jobs.progress import Progress
from bc250studio.serve import causes
from bc250studio.serve.reach import free_port
from bc250studio.serve.server_log import loading_words
from bc250studio.serve.server_record import Server

STUCK_S = 300.0


class PortLost(Exception):
    """Somebody else took the port before llama-server could have it."""


def wait_ready(server: Server, child: subprocess.Popen[bytes], progress: Progress) -> None:
    """Until /health says 200; dead or stuck servers are reported with the cause."""
    talk = server.talk(timeout_s=10.0)
    grown, size = time.monotonic(), -1
    while True:
        code = child.poll()
        if code is not None:
            text = causes.tail(server.log)
            if ("bind" in text and "port" in causes.cause(text, code)) or free_port(
                server.host, server.port
            ) != server.port:
                raise PortLost  # its log may not say so: it can die before the last lines are written
            raise JobFailed(f"llama-server died while loading: {causes.obituary(server.log, code)}")
        if talk.healthy():
            return
        with contextlib.suppress(OSError):
            now_size = server.log.stat().st_size
            if now_size != size:
                grown, size = time.monotonic(), now_size
                progress(f"llama-server on {server.backend_words}: {loading_words(server.log)}", None, None)
        if time.monotonic() - grown > STUCK_S:
            raise JobFailed(
                f"llama-server said nothing for {STUCK_S:.0f} seconds while loading and was ended. Log: {server.log}"
            )
        time.sleep(0.05)


def verify(server: Server) -> int:
    """Health is a real completion; the files must be ours; returns the context each slot really has."""
    talk = server.talk()
    properties = talk.props()
    served = properties.get("model_path")
    if served and Path(str(served)) != Path(server.model):
        raise JobFailed(f"{server.url} serves {clean(served, 200)}, not {server.model}; another program has that port.")
    if server.adapter is not None and not talk.adapters():
        raise JobFailed(f"llama-server did not load the adapter {server.adapter}. Log: {server.log}")
    talk.has_adapter = False  # the server's own scale: nothing is to change it here
    talk.complete("Hello", n_predict=1, scale=1.0)
    settings = properties.get("default_generation_settings")
    n_ctx = settings.get("n_ctx") if isinstance(settings, dict) else None
    return int(n_ctx) if isinstance(n_ctx, int) else server.n_ctx
