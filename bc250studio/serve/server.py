"""A llama-server's life: started detached, described by ``server.json``, adopted on return, stopped only if ours.

The server outlives the app and the job's supervisor. Whoever comes back reads ``server.json`` (mode
0600: it holds the key), checks pid + start time + boot id and that the server serves these files, and
goes on using it. A start that was cut off leaves ``server.json`` with no process in it; the key file's
path on the server's command line then finds the orphan. 127.0.0.1 and a port are always given; the key
travels in a file, never on a command line.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bc250studio import paths
from bc250studio.errors import BadInput, JobFailed, clean
from bc250studio.jobs import Identity, JobFolder, spawn
from bc250studio.jobs.folder import read_json
from bc250studio.jobs.identity import of
from bc250studio.jobs.progress import Progress, silent
from bc250studio.models.gguf_file import GgufFile
from bc250studio.serve import causes, memory
from bc250studio.serve.binary import Binary, Device, choose_device, server_environment
from bc250studio.serve.plan import SLOTS, Plan, command
from bc250studio.serve.reach import LOOPBACK, check_address, free_port, osc52, tunnel_lines
from bc250studio.serve.talk import Talk

__all__ = [
    "LOOPBACK",
    "SLOTS",
    "Plan",
    "Server",
    "adopt",
    "check_address",
    "death",
    "forget",
    "osc52",
    "read",
    "start",
    "stop",
    "stop_folder",
    "tunnel_lines",
]

SCHEMA = 1
STUCK_S = 300.0
KEY_TAIL = "-bc250"  # llama-server logs the last four characters of a key; these are nobody's secret
OOM_SCORE_ADJ = 500  # when memory ends, the kernel shall take the server before the user's shell


@dataclass(frozen=True)
class Server:
    """A running (or once running) server as ``server.json`` describes it. ``n_ctx``: tokens a slot has."""

    folder: Path
    process: Identity | None
    url: str
    key: str
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

    def steady_talk(self, plan: Plan, binary: Binary) -> Talk:
        """A client for long series of repeatable requests: it starts this server again when it dies.

        Mesa 22.3's llvmpipe breaks its heap when the adapter's scale changes between two requests, so on a CPU-based
        Vulkan device each scale gets a process of its own; GPUs and the CPU backend change it with the request.
        """
        talk = self.talk()

        def again(scale: float) -> tuple[str, str]:
            if read(self.folder) is None:
                raise JobFailed("The server was stopped while it was being compared; start it again and prove again.")
            started = start(self.folder, replace(plan, scale=scale), binary, own_job=self.folder)
            return started.url, started.key

        talk.revive = lambda: again(talk.scale_now)
        if plan.adapter is not None and choose_device(binary, plan.device)[1].cpu_based:
            talk.rescale = again
        return talk

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


def start(
    folder: Path,
    plan: Plan,
    binary: Binary,
    progress: Progress = silent,
    own_job: Path | None = None,
    check_memory: bool = True,
) -> Server:
    """Start a server for ``folder``, wait until it answers a real completion, and write ``server.json``.

    A server of this folder that still runs is stopped first. One that is started again keeps its port (where the
    profile leaves it open) and its key, so that a tunnel and a client somebody set up go on working.

    Raises:
        BadInput: device, port, file or option cannot be as asked.
        JobFailed: no memory, or the server died (the cause in words) or stayed silent.
    """
    for file, what in ((plan.model, "model"), (plan.adapter, "adapter")):
        if file is None:
            continue
        if not file.is_file():
            raise BadInput(f"The {what} file {file} is not there; export it again.")
        GgufFile(file).close()  # a file that was cut short is refused here, with the tensor's name
    if plan.adapter is not None and "," in str(plan.adapter):
        raise BadInput(f"llama-server cannot take an adapter whose path has a comma in it: {plan.adapter}")
    binary, device = choose_device(binary, plan.device)
    with _only_starter(folder):
        return _start(folder, plan, binary, device, progress, own_job, check_memory)


@contextlib.contextmanager
def _only_starter(folder: Path) -> Iterator[None]:
    """One start at a time for a folder: app, command line and supervisor may all want the server."""
    descriptor = os.open(folder / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise JobFailed(
                f"Another process starts the server of {folder.name} at this moment; wait for it."
            ) from None
        yield
    finally:
        os.close(descriptor)


def _start(
    folder: Path,
    plan: Plan,
    binary: Binary,
    device: Device,
    progress: Progress,
    own_job: Path | None,
    check_memory: bool,
) -> Server:
    earlier = read(folder)
    stop_folder(folder)
    if check_memory:
        caches = (plan.cache_type_k, plan.cache_type_v)
        memory.check(device, plan.model, plan.adapter, plan.context, plan.slots, caches, own_job)
    for attempt in range(3):
        port = plan.port or free_port(plan.host, earlier.port if earlier is not None and not attempt else 0)
        try:
            return _start_once(folder, plan, binary, device, port, earlier.key if earlier else _new_key(), progress)
        except _PortLost:
            if plan.port or attempt == 2:
                raise JobFailed(f"Port {port} was taken before llama-server could have it; choose another.") from None
    raise AssertionError


class _PortLost(Exception):
    pass


def _new_key() -> str:
    return secrets.token_urlsafe(24) + KEY_TAIL


def _start_once(
    folder: Path, plan: Plan, binary: Binary, device: Device, port: int, key: str, progress: Progress
) -> Server:
    key_file = folder / "server.key"
    paths.write_atomic(key_file, key + "\n")
    host = f"[{plan.host}]" if ":" in plan.host else plan.host
    server = Server(
        folder=folder,
        process=None,
        url=f"http://{'127.0.0.1' if plan.host == '0.0.0.0' else host}:{port}",
        key=key,
        device=device.name,
        backend_words=device.words,
        binary=str(binary.path),
        version=binary.version,
        model=str(plan.model),
        adapter=str(plan.adapter) if plan.adapter else None,
        n_ctx=plan.context,
        host=plan.host,
        port=port,
        started=time.time(),
    )
    words = command(binary, plan, device, port, key_file)
    _write(server, state="starting")
    log = server.log
    environment = server_environment({**binary.environment, **plan.environment})
    if not binary.has("--api-key-file"):
        environment["LLAMA_API_KEY"] = key
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            close_fds=True,
            cwd="/",
            env=environment,
        )
    except OSError as error:
        forget(folder)
        raise JobFailed(f"{binary.path} cannot be started: {error}.") from error
    finally:
        os.close(descriptor)
    server = replace(server, process=of(child.pid))
    _write(server, state="loading")
    with contextlib.suppress(OSError):
        Path(f"/proc/{child.pid}/oom_score_adj").write_text(str(OOM_SCORE_ADJ))
    try:
        _wait_ready(server, child, progress)
        server = replace(server, n_ctx=_verify(server))
        server = _as_placed(server)
    except BaseException:
        _end(server, 5.0)
        child.wait(timeout=10)
        forget(folder)
        raise
    _write(server, state="ready")
    return server


def _wait_ready(server: Server, child: subprocess.Popen[bytes], progress: Progress) -> None:
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
                raise _PortLost  # its log may not say so: it can die before the last lines are written
            raise JobFailed(f"llama-server died while loading: {causes.obituary(server.log, code)}")
        if talk.healthy():
            return
        with contextlib.suppress(OSError):
            now_size = server.log.stat().st_size
            if now_size != size:
                grown, size = time.monotonic(), now_size
                progress(f"llama-server on {server.backend_words}: {_loading_words(server.log)}", None, None)
        if time.monotonic() - grown > STUCK_S:
            raise JobFailed(
                f"llama-server said nothing for {STUCK_S:.0f} seconds while loading and was ended. Log: {server.log}"
            )
        time.sleep(0.05)


def _as_placed(server: Server) -> Server:
    """What computes is what the log says, not what was asked for: a device that took no weights is not named."""
    holders = re.findall(r"load_tensors:\s+(\S+) model buffer size", causes.head(server.log))
    if server.device == "CPU" or not holders or server.device in holders:
        return server
    return replace(server, device="CPU", backend_words=f"CPU ({server.backend_words}, asked for, took no weights)")


def _loading_words(log: Path) -> str:
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


def _verify(server: Server) -> int:
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


def _write(server: Server, state: str) -> None:
    record = asdict(server)
    record.pop("folder")
    record["process"] = server.process.as_dict() if server.process else None
    record |= {"schema": SCHEMA, "state": state, "key_file": str(server.folder / "server.key")}
    paths.write_atomic(server.folder / "server.json", json.dumps(record, indent=1))


def _folder(job: JobFolder | Path) -> Path:
    return job.path if isinstance(job, JobFolder) else job


def read(job: JobFolder | Path) -> Server | None:
    """What ``server.json`` says; None when there is none. The process may be gone: see ``alive``."""
    folder = _folder(job)
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


def adopt(job: JobFolder | Path) -> Server | None:
    """The folder's server if it still runs and still serves these files; None otherwise.

    A start that was cut off before it was finished (kill -9 of the starter) is finished here when the
    server came up, and cleaned up when it did not.
    """
    folder = _folder(job)
    server = read(folder)
    if server is None:
        return None
    if server.process is None:
        orphan = _orphan(folder)
        if orphan is None:
            return None
        server = replace(server, process=orphan)
    if not server.alive:
        return None
    talk = server.talk(timeout_s=10.0)
    deadline = time.monotonic() + STUCK_S
    while server.alive and not talk.healthy():
        if read_json(folder / "server.json").get("state") == "ready" or time.monotonic() > deadline:
            return None
        time.sleep(0.1)
    try:
        server = replace(server, n_ctx=_verify(server))
    except JobFailed:
        return None
    if read_json(folder / "server.json").get("state") != "ready":
        _write(server, state="ready")
    return server


def _orphan(folder: Path) -> Identity | None:
    """A server whose command line names this folder's key file: ours, though nobody wrote down its pid."""
    wanted = str(folder / "server.key").encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "cmdline").read_bytes().split(b"\0"):
                    return of(int(entry.name))
    return None


def death(server: Server, code: int | None = None) -> str:
    """Why a server that answered before is gone: half a sentence with the last lines of its log."""
    return causes.obituary(server.log, code)


def stop(job: JobFolder | Path, grace_s: float = 10.0) -> bool:
    """End the folder's server and forget it; False when it was gone already. Never another process."""
    return stop_folder(_folder(job), grace_s)


def stop_folder(folder: Path, grace_s: float = 10.0) -> bool:
    """See :func:`stop`."""
    server = read(folder)
    if server is None:
        forget(folder)
        return False
    if server.process is None:
        server = replace(server, process=_orphan(folder))
    stopped = _end(server, grace_s)
    forget(folder)
    return stopped


def _end(server: Server, grace_s: float) -> bool:
    """SIGTERM, then SIGKILL, to exactly this process; waits until it is gone."""
    if server.process is None or not spawn.terminate(server.process, signal.SIGTERM):
        return False
    deadline = time.monotonic() + grace_s
    while server.process.alive:
        if time.monotonic() > deadline:
            spawn.terminate(server.process, signal.SIGKILL)
            deadline = time.monotonic() + grace_s
        time.sleep(0.02)
    return True


def forget(folder: Path) -> None:
    """Remove what describes a server that is gone. The log stays."""
    for name in ("server.json", "server.key"):
        (folder / name).unlink(missing_ok=True)
