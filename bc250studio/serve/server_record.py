"""``server.json``: what is written down about a llama-server, so that whoever comes later can go on using it.

Mode 0600, because it holds the key. The process in it is pid + start time + boot id: a reused pid is never it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bc250studio import paths
from bc250studio.jobs import Identity, JobFolder
from bc250studio.jobs.folder import read_json
from bc250studio.serve.reach import LOOPBACK
from bc250studio.serve.talk import Talk

SCHEMA = 1


@dataclass(frozen=True)
class Server:
    """A running (or once running) server as ``server.json`` describes it. ``n_ctx``: tokens a slot has."""

    folder: Path
    process: Identity | None
    url: str
    key: str = field(repr=False)
    device: str
    backend_words: str
    binary: str
    version: str
    model: str
    adapter: str | None
    n_ctx: int
    host: str
    port: int
    started: float

    @property
    def alive(self) -> bool:
        """Whether exactly this process still runs."""
        return self.process is not None and self.process.alive

    @property
    def log(self) -> Path:
        """What it said."""
        return log_of(self.folder)

    @property
    def loopback(self) -> bool:
        """False is said on every screen."""
        return self.host in LOOPBACK

    def talk(self, timeout_s: float = 600.0) -> Talk:
        """A client that knows the key."""
        return Talk(self.url, self.key, timeout_s=timeout_s, has_adapter=self.adapter is not None)

    def public(self) -> dict[str, Any]:
        """For records and screens: everything but the key."""
        return {
            "device": self.device,
            "backend_words": self.backend_words,
            "url": self.url,
            "pid": self.process.pid if self.process else None,
            "binary": self.binary,
            "version": self.version,
            "n_ctx": self.n_ctx,
            "model": self.model,
            "adapter": self.adapter,
        }


def log_of(folder: Path) -> Path:
    """The server's log in a job's folder (or beside ``server.json`` where there is no ``logs/``)."""
    logs = folder / "logs"
    return (logs if logs.is_dir() else folder) / "server.log"


def write(server: Server, state: str) -> None:
    """Keep it; ``state`` is ``starting``, ``loading`` or ``ready``."""
    record = asdict(server)
    record.pop("folder")
    record["process"] = server.process.as_dict() if server.process else None
    record |= {"schema": SCHEMA, "state": state, "key_file": str(server.folder / "server.key")}
    paths.write_atomic(server.folder / "server.json", json.dumps(record, indent=1))


def folder_of(job: JobFolder | Path) -> Path:
    """A job's folder, or the folder itself."""
    return job.path if isinstance(job, JobFolder) else job


def read(job: JobFolder | Path) -> Server | None:
    """What ``server.json`` says; None when there is none. The process may be gone: see ``alive``."""
    folder = folder_of(job)
    record = read_json(folder / "server.json")
    try:
        return Server(
            folder=folder,
            process=Identity.from_dict(record.get("process")),
            url=str(record["url"]),
            key=str(record["key"]),
            device=str(record["device"]),
            backend_words=str(record["backend_words"]),
            binary=str(record["binary"]),
            version=str(record["version"]),
            model=str(record["model"]),
            adapter=str(record["adapter"]) if record.get("adapter") else None,
            n_ctx=int(record["n_ctx"]),
            host=str(record["host"]),
            port=int(record["port"]),
            started=float(record["started"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def forget(folder: Path) -> None:
    """Remove what describes a server that is gone. The log stays."""
    for name in ("server.json", "server.key"):
        (folder / name).unlink(missing_ok=True)
