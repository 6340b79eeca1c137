"""The process that owns a job: takes the lock, runs the stages in order, records each, ends with a verdict.

It imports no torch: stages that need it run as child processes. A stage whose recorded inputs still
match is not run again, so going on after a failure costs only what failed.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from types import FrameType, ModuleType
from typing import Any

from bc250studio import profiles
from bc250studio.errors import ProofFailed, StudioError, clean
from bc250studio.jobs import JobFolder, Lock, control, spawn
from bc250studio.jobs.identity import mine
from bc250studio.pipeline import stall

MODULES = {
    "train": "bc250studio.train.stage",
    "export": "bc250studio.export.stage",
    "reference": "bc250studio.train.stage_reference",
    "serve": "bc250studio.serve.stage_serve",
    "prove": "bc250studio.serve.stage_prove",
    "ask": "bc250studio.serve.stage_ask",
}
PHASE = {
    "train": "loading",
    "export": "exporting",
    "reference": "proving",
    "serve": "serving",
    "prove": "proving",
    "ask": "serving",
}
GOOD = ("done", "passed")


class Stopped(BaseException):
    """SIGTERM outside training; like KeyboardInterrupt it must not be mistaken for an error."""


class _Stage:
    """What the signal handler must know: which stage runs now."""

    name = ""


def supervise(job: JobFolder, names: Sequence[str]) -> int:
    """Run the stages of ``job``; returns the exit code (0 done, 1 failed, 2 bad input, 3 proof failed)."""
    with Lock(job.path):
        job.own("loading")
        if not _peek(job, names):
            job.write_state(stages=list(names))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, frame: _stop(job, number, frame))
        guard = _start_guard(job)
        ended = threading.Event()
        stall.start(job, ended)
        try:
            return _run_all(job, names)
        except Stopped:
            job.event("phase", f"Stopped during {_Stage.name} as asked.")
            job.write_state(phase="stopped", stage=None)
            return 1
        except BaseException as error:
            traceback.print_exc()
            _fail(job, error, 1)
            raise
        finally:
            ended.set()
            if guard is not None:
                guard.terminate()
                guard.wait(timeout=10)


def _peek(job: JobFolder, names: Sequence[str]) -> bool:
    """Whether these stages only look at a training in between: what was wanted of the run stays what resume does."""
    wanted = job.state().get("stages") or ()
    return "train" in wanted and "train" not in names and job.stage("train").get("verdict") == "stopped"


def _run_all(job: JobFolder, names: Sequence[str]) -> int:
    resolved = job.profile()
    exit_code, remark = 0, None
    for name in names:
        record = _run_stage(job, resolved, name)
        verdict = record.get("verdict")
        if verdict == "stopped":
            job.write_state(phase="stopped", stage=None)
            return 1
        if verdict not in GOOD:
            exit_code = record.get("exit_code", 1)
            remark = record.get("error") or f"{name} failed"
            if exit_code != ProofFailed.exit_code:
                break
    phase = "done" if exit_code == 0 else "failed"
    job.write_state(phase=phase, stage=None, exit_code=exit_code, error=remark, finished=time.time())
    job.event("phase", "All stages done." if exit_code == 0 else f"Ended with a failure: {remark}", exit_code=exit_code)
    return exit_code


def _run_stage(job: JobFolder, resolved: profiles.Resolved, name: str) -> dict[str, Any]:
    module = importlib.import_module(MODULES[name])
    _Stage.name = name
    began = time.time()
    try:
        inputs = module.inputs(job, resolved)
        earlier = job.stage(name)
        if earlier.get("verdict") in GOOD and earlier.get("inputs") == inputs and _still_there(module, job, earlier):
            job.event("phase", f"{name}: nothing changed since it was done, kept.", stage=name)
            return earlier
        job.write_state(phase=PHASE[name], stage=name, stage_text="", stage_done=None, stage_total=None)
        if name in ("train", "reference"):
            _choose_kernels(job, resolved)
        record = dict(module.run(job, resolved, _Progress(job, name)))
        record.setdefault("verdict", "done")
    except StudioError as error:
        inputs = {}
        record = {"verdict": "failed", "error": clean(error), "exit_code": error.exit_code}
    except Exception as error:
        traceback.print_exc()
        log = job.path / "logs" / "pipeline.log"
        inputs = {}
        record = {
            "verdict": "failed",
            "exit_code": 1,
            "error": f"{name} broke with {type(error).__name__}: {clean(error, 300)}. The whole story: {log}",
        }
    if record["verdict"] == "failed" and name == "prove":
        record.setdefault("exit_code", ProofFailed.exit_code)
    record = {"inputs": inputs, "began": began, "seconds": round(time.time() - began, 3), **record}
    job.write_stage(name, **record)
    if record["verdict"] == "failed":
        record.setdefault("error", f"{name} failed")
        job.event("error", str(record["error"]), stage=name)
    else:
        job.event("stage", f"{name} {record['verdict']} in {record['seconds']:.1f} s.", stage=name)
    return record


def _choose_kernels(job: JobFolder, resolved: profiles.Resolved) -> None:
    """Which matrix kernels the torch stages load: into this process's environment, which they inherit.

    Raises:
        StudioError: the profile insists on tuned kernels that are not there or not proven.
    """
    from bc250studio.board import presets
    from bc250studio.kernels import switch

    chip = presets.detect()
    decision = switch.decide(resolved.profile, chip)
    os.environ.update(decision.environment)
    job.write_state(kernels=decision.name or ("tuned" if decision.library else "stock"))
    if chip.gfx or resolved.profile.kernels.library != "auto":
        job.event("note", f"Kernels: {decision.why}")


def _still_there(module: ModuleType, job: JobFolder, record: dict[str, Any]) -> bool:
    """A stage may say that its result is gone although its inputs match (a server that died)."""
    check = getattr(module, "still_there", None)
    return bool(check(job, record)) if check is not None else True


class _Progress:
    """Writes a stage's progress into state.json, at most five times a second."""

    def __init__(self, job: JobFolder, stage: str) -> None:
        self._job, self._stage, self._last = job, stage, 0.0

    def __call__(self, text: str, done: float | None = None, total: float | None = None) -> None:
        now = time.monotonic()
        if now - self._last < 0.2 and done is not None and done != total:
            return
        self._last = now
        self._job.write_state(stage=self._stage, stage_text=clean(text, 200), stage_done=done, stage_total=total)


def _start_guard(job: JobFolder) -> subprocess.Popen[bytes] | None:
    """The sampler that also puts back what we changed on the board when this process is gone."""
    try:
        command = [sys.executable, "-m", "bc250studio.board.guard", str(job.path), str(mine().pid)]
        return spawn.detached(command, job.path / "logs" / "guard.log", spawn.child_environment())
    except OSError as error:
        job.event("warning", f"The board's guard could not be started: {clean(error)}.")
        return None


def _stop(job: JobFolder, _number: int, _frame: FrameType | None) -> None:
    """SIGTERM: training ends after its step and saves; other stages end at once."""
    if _Stage.name == "train":
        control.ask(job, "stop")
    else:
        raise Stopped


def _fail(job: JobFolder, error: BaseException, exit_code: int) -> None:
    job.write_state(phase="failed", stage=None, exit_code=exit_code, error=clean(error, 500) or type(error).__name__)
