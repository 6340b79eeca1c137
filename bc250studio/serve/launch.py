"""Starting a llama-server: detached, on loopback, with a key in a file, watched until it answers."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bc250studio import paths
from bc250studio.errors import BadInput, JobFailed
from bc250studio.jobs.identity import of
from bc250studio.jobs.progress import Progress, silent
from bc250studio.jobs.spawn import detached
from bc250studio.models.gguf_file import GgufFile
from bc250studio.serve import memory
from bc250studio.serve.adopt import end, stop_folder
from bc250studio.serve.binary import Binary, Device, choose_device, server_environment
from bc250studio.serve.health import PortLost, verify, wait_ready
from bc250studio.serve.plan import Plan, command
from bc250studio.serve.reach import free_port
from bc250studio.serve.server_log import as_placed
from bc250studio.serve.server_record import Server, forget, read, write

KEY_TAIL = "-bc250"  # llama-server logs the last four characters of a key; these are nobody's secret
OOM_SCORE_ADJ = 500  # when memory ends, the kernel shall take the server before the user's shell


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
        except PortLost:
            if plan.port or attempt == 2:
                raise JobFailed(f"Port {port} was taken before llama-server could have it; choose another.") from None
    raise AssertionError


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
    write(server, state="starting")
    environment = server_environment({**binary.environment, **plan.environment})
    if not binary.has("--api-key-file"):
        environment["LLAMA_API_KEY"] = key
    try:
        child = detached(words, server.log, environment, fresh=True)
    except OSError as error:
        forget(folder)
        raise JobFailed(f"{binary.path} cannot be started: {error}.") from error
    server = replace(server, process=of(child.pid))
    write(server, state="loading")
    with contextlib.suppress(OSError):
        Path(f"/proc/{child.pid}/oom_score_adj").write_text(str(OOM_SCORE_ADJ))
    try:
        wait_ready(server, child, progress)
        server = replace(server, n_ctx=verify(server))
        server = as_placed(server)
    except BaseException:
        end(server, 5.0)
        child.wait(timeout=10)
        forget(folder)
        raise
    write(server, state="ready")
    return server
