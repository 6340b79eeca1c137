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
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bc250studio import paths, profiles
from bc250studio.errors import BadInput, JobFailed, clean
from bc250studio.jobs import Identity, JobFolder, spawn
from bc250studio.jobs.folder import read_json
from bc250studio.jobs.identity import of
from bc250studio.jobs.progress import Progress, silent
from bc250studio.models.gguf_file import GgufFile
from bc250studio.serve import causes, memory
from bc250studio.serve.binary import Binary, Device, choose_device, server_environment
from bc250studio.serve.talk import Talk

SCHEMA = 1
LOOPBACK = ("127.0.0.1", "::1", "localhost")
SLOTS = 2  # base and tuned answer side by side, each with its own cache
STUCK_S = 300.0
KEY_TAIL = "-bc250"  # llama-server logs the last four characters of a key; these are nobody's secret
OOM_SCORE_ADJ = 500  # when memory ends, the kernel shall take the server before the user's shell


@dataclass(frozen=True)
class Plan:
    """What to serve and how. ``adapter`` is None for a merged or plain model; ``scale`` is its scale for requests
    that name none."""

    model: Path
    adapter: Path | None = None
    device: str = "auto"
    host: str = "127.0.0.1"
    port: int = 0
    context: int = 4096
    batch: int = 128
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attention: str = "auto"
    threads: int | None = None
    slots: int = SLOTS
    warmup: bool = True
    scale: float = 1.0
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, serve: profiles.profile.Serve, model: Path, adapter: Path | None) -> Plan:
        """From a profile's [serve] section."""
        return cls(model=model, adapter=adapter, **serve.model_dump())


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


def command(binary: Binary, plan: Plan, device: Device, port: int, key_file: Path) -> list[str]:
    """The command line, drawn from what the binary has. The context is given once for each slot."""
    words = [str(binary.path), "--model", str(plan.model), "--host", plan.host, "--port", str(port)]

    def add(flag: str, *values: object) -> None:
        if binary.has(flag):
            words.extend([flag, *map(str, values)])

    if plan.adapter is not None:
        if not binary.has("--lora"):
            raise BadInput(
                f"{binary.path} cannot serve an adapter (its --help has no --lora); export a merged file instead."
            )
        if plan.scale == 1.0:
            words += ["--lora", str(plan.adapter)]
        else:
            words += ["--lora-scaled", f"{plan.adapter}:{plan.scale:.9g}"]
    for flag, value in (("--cache-type-k", plan.cache_type_k), ("--cache-type-v", plan.cache_type_v)):
        if not binary.allows(flag, value):
            known = ", ".join(binary.values[flag])
            raise BadInput(f"{binary.path} has no cache type {value!r} ({flag} knows {known}).")
        add(flag, value)
    if plan.cache_type_v not in ("f16", "f32", "bf16") and plan.flash_attention == "off":
        raise BadInput(
            "A quantised value cache (serve.cache_type_v) needs flash attention; set serve.flash_attention to auto."
        )
    add("--ctx-size", plan.context * plan.slots)
    add("--parallel", plan.slots)
    add("--no-kv-unified")
    add("--ubatch-size", plan.batch)
    add("--flash-attn", plan.flash_attention)
    if plan.threads:
        add("--threads", plan.threads)
    if device.name == "CPU":
        add("--device", "none")
    else:
        add("--device", device.name)
        add("--n-gpu-layers", 999)
    add("--fit", "off")  # what was asked for or an error, never a quietly smaller context
    add("--cache-ram", 0)  # prompts of old chats would eat the memory the board shares with its GPU
    add("--offline")
    add("--no-webui") if not binary.has("--no-ui") else add("--no-ui")
    add("--log-colors", "off")
    if binary.has("--verbosity") and "--log-verbosity" in binary.flags:
        add("--verbosity", 4)  # below 4 new builds do not say which device holds what
    if not plan.warmup:
        add("--no-warmup")
    if binary.has("--api-key-file"):
        words += ["--api-key-file", str(key_file)]
    return words


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
            if "bind" in text and "port" in causes.cause(text, code):
                raise _PortLost
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


def osc52(text: str) -> str:
    """The terminal sequence that puts ``text`` on the clipboard of the machine the user sits at."""
    import base64

    return f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\x07"
