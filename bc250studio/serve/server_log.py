"""What a living server's own log tells: how far it has come while loading, and which device took the weights."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from bc250studio.serve import causes
from bc250studio.serve.server_record import Server


def as_placed(server: Server) -> Server:
    """What computes is what the log says, not what was asked for: a device that took no weights is not named."""
    holders = re.findall(r"load_tensors:\s+(\S+) model buffer size", causes.head(server.log))
    if server.device == "CPU" or not holders or server.device in holders:
        return server
    return replace(server, device="CPU", backend_words=f"CPU ({server.backend_words}, asked for, took no weights)")


def loading_words(log: Path) -> str:
    text = causes.tail(log)
    for sign, words in (
        ("warming up", "warming up"),
        ("llama_context", "making room for the context"),
        ("load_tensors", "loading the weights"),
        ("fitting params", "measuring memory"),
        ("loading model", "opening the model"),
    ):
        if sign in text:
            return words
    return "starting"


def death(server: Server, code: int | None = None) -> str:
    """Why a server that answered before is gone: half a sentence with the last lines of its log."""
    return causes.obituary(server.log, code)
