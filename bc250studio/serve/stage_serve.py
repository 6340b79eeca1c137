"""The serve stage of a run: llama-server with what was exported, left running for whoever comes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bc250studio import settings
from bc250studio.errors import BadInput, clean
from bc250studio.jobs import JobFolder
from bc250studio.jobs.progress import Progress
from bc250studio.profiles import Resolved
from bc250studio.serve import server
from bc250studio.serve.binary import Binary, find_binary
from bc250studio.serve.server import Plan


def inputs(job: JobFolder, resolved: Resolved) -> dict[str, Any]:
    """The exported files, the [serve] section, the binary.

    Raises:
        BadInput: nothing was exported yet, or there is no server binary.
    """
    binary = find_binary(settings.load())
    export = job.stage("export")
    return {
        "files": export.get("sha256"),
        "base": str(plan_for(job, resolved).model),
        "serve": resolved.profile.serve.model_dump(mode="json"),
        "binary": [str(binary.path), binary.version],
    }


def run(job: JobFolder, resolved: Resolved, progress: Progress) -> dict[str, Any]:
    """Start the server (an earlier one of this run is stopped first) and describe it.

    Raises:
        BadInput: device, port, file or option cannot be as asked.
        JobFailed: no memory, or the server died; the cause in words.
    """
    if server.Plan.of(resolved.profile.serve, Path("/"), None).host not in server.LOOPBACK:
        job.event("warning", f"The server listens on {resolved.profile.serve.host}, not only on this machine.")
    started = _start(job, resolved, progress)
    return {"verdict": "done", "server": started.public(), "outputs": {"server": "server.json"}}


def still_there(job: JobFolder, earlier: dict[str, Any]) -> bool:
    """Whether the server of an earlier serve stage still answers."""
    return server.adopt(job) is not None


def plan_for(job: JobFolder, resolved: Resolved, changes: Mapping[str, Any] | None = None) -> Plan:
    """What the run's export says to serve, and how the profile says to serve it; ``changes`` go on top.

    Raises:
        BadInput: nothing was exported yet.
    """
    outputs = job.stage("export").get("outputs") or {}
    serve = resolved.profile.serve
    if changes:
        try:
            serve = type(serve).model_validate({**serve.model_dump(), **changes})
        except ValidationError as error:
            first = error.errors()[0]
            raise BadInput(f"serve.{first['loc'][0]} = {clean(first.get('input'), 60)!r}: {first['msg']}.") from error
    merged, base, adapter = (outputs.get(key) for key in ("merged_gguf", "base_gguf", "adapter_gguf"))
    if merged:
        return Plan.of(serve, Path(str(merged)), None)
    if base and adapter:
        return Plan.of(serve, Path(str(base)), Path(str(adapter)))
    raise BadInput(f"{job.name} has nothing exported to serve; run: bc250studio export {job.name}")


def binary_for(job: JobFolder) -> Binary:
    """The binary the run's server was started with, else this machine's."""
    running = server.read(job)
    if running is not None and Path(running.binary).is_file():
        return find_binary(settings.load(), Path(running.binary))
    return find_binary(settings.load())


def running(job: JobFolder, resolved: Resolved, progress: Progress) -> server.Server:
    """The run's server: adopted when it still runs, started again when it does not.

    Raises:
        BadInput, JobFailed: it cannot be started.
    """
    found = server.adopt(job)
    if found is not None:
        return found
    progress("the server is gone; starting it again", None, None)
    return _start(job, resolved, progress)


def _start(job: JobFolder, resolved: Resolved, progress: Progress) -> server.Server:
    binary = find_binary(settings.load())
    return server.start(job.path, tuned(plan_for(job, resolved), binary), binary, progress, own_job=job.path)


def tuned(plan: Plan, binary: Binary) -> Plan:
    """``plan`` with the settings that ``serve --tune`` found for these files on this device."""
    from bc250studio.serve import tune

    return tune.applied(plan, binary)
