"""The train stage: starts the runner as a child with its own Python and environment, and waits. No torch here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from bc250studio import settings
from bc250studio.board import presets
from bc250studio.errors import BadInput, JobFailed, StudioError
from bc250studio.jobs import JobFolder
from bc250studio.jobs.folder import read_json
from bc250studio.jobs.progress import Progress
from bc250studio.jobs.spawn import child_environment, last_lines
from bc250studio.profiles import Resolved

RESULT = "checkpoints/result.json"


def inputs(job: JobFolder, resolved: Resolved) -> dict[str, Any]:
    """Everything that decides what comes out: model, data, adapter and training sections."""
    profile = resolved.profile
    return {
        "model": profile.model.model_dump(exclude={"gguf", "device"}),
        "data": {
            **profile.data.model_dump(),
            "file": _stamp(profile.data.path),
            "eval_file": _stamp(profile.data.eval_path),
        },
        "adapter": profile.adapter.model_dump(),
        "train": profile.train.model_dump(),
    }


def _stamp(path: str | None) -> list[Any] | None:
    """Size and time of a plain file: a changed dataset is another input."""
    if not path:
        return None
    try:
        stat = Path(path).expanduser().stat()
    except OSError:
        return None
    return [stat.st_size, stat.st_mtime_ns]


def run(job: JobFolder, resolved: Resolved, progress: Progress) -> dict[str, Any]:
    """Train; the record as in ``train.runner``. ``verdict`` is ``done`` or ``stopped``.

    Raises:
        StudioError: the runner's own sentence and exit code, or the end of its log when it died without one.
    """
    while True:
        record = run_child(job, resolved, "bc250studio.train.runner", "train", RESULT)
        # Memory ran out where freed memory must not be used again: a fresh process goes on with a lighter plan.
        if record.get("verdict") != "again":
            return record


def run_child(job: JobFolder, resolved: Resolved, module: str, log: str, result: str) -> dict[str, Any]:
    """Run one torch module over the job folder with the runner's Python; its record from ``result``."""
    python = settings.load().runtime.python or sys.executable
    environment, notes = presets.runner_environment(resolved.profile, presets.detect(), child_environment())
    for note in notes:
        job.event("note", note)
    environment.setdefault("TOKENIZERS_PARALLELISM", "false")
    file = job.path / "logs" / f"{log}.log"
    (job.path / result).unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        child = subprocess.Popen(
            [python, "-m", module, str(job.path)],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd="/",
            env=environment,
        )
    except OSError as error:
        raise BadInput(
            f"The runner's Python {python} cannot be started: {error}; see settings.toml [runtime]."
        ) from error
    finally:
        os.close(descriptor)
    return _wait(job, child, result, file)


def _wait(job: JobFolder, child: subprocess.Popen[bytes], result: str, log: Path) -> dict[str, Any]:
    # A stop of the supervisor is a stop of the training: the runner finishes its step and saves.
    before = signal.getsignal(signal.SIGTERM)
    in_main = _is_main_thread()
    if in_main:
        signal.signal(signal.SIGTERM, lambda *_: child.send_signal(signal.SIGTERM))
    try:
        # No progress from here: while the child works only the child writes state.json. Two writers that read,
        # merge and replace would lose each other's facts.
        while child.poll() is None:
            try:
                child.wait(0.25)
            except subprocess.TimeoutExpired:
                continue
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait()
        if in_main:
            signal.signal(signal.SIGTERM, before)
    record = read_json(job.path / result)
    code = record.pop("exit_code", child.returncode)
    if record.get("verdict") == "again":
        return record
    if child.returncode == 0 and record.get("verdict") in ("done", "stopped"):
        return record
    sentence = record.get("error")
    if not sentence:
        how = (
            f"was killed by signal {-child.returncode}"
            if child.returncode < 0
            else f"ended with code {child.returncode}"
        )
        sentence = f"The runner {how} without a verdict: {last_lines(log)} Log: {log}"
    raise _error(code)(sentence)


def _error(code: Any) -> type[StudioError]:
    return BadInput if code == 2 else JobFailed


def _is_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()
