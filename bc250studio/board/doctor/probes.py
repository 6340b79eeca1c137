"""Questions that need another process (torch, products, clock); each ends in a record or a sentence."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bc250studio import settings
from bc250studio.board import clock, gpu, presets
from bc250studio.board.presets import Chip
from bc250studio.board.sysfs import Tree
from bc250studio.errors import JobFailed, clean
from bc250studio.jobs import spawn
from bc250studio.profiles import Profile

TORCH_TIMEOUT_S = 120.0
PRODUCTS_TIMEOUT_S = 300.0


def runner_python() -> str:
    """The Python that trains."""
    return settings.load().runtime.python or sys.executable


def environment(chip: Chip, library: str | Path | None = None) -> dict[str, str]:
    """What a run's process would get."""
    return presets.runner_environment(Profile(), chip, spawn.child_environment(), library)[0]


def torch_facts(python: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """The lines of torch_probe.py merged. ``error`` is there when there is no torch; ``launched`` False with
    ``launch_error`` when it cannot compute."""
    script = str(Path(__file__).with_name("torch_probe.py"))
    try:
        done = subprocess.run(
            [python, script],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TORCH_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env=dict(variables),
            cwd="/",
        )
        output, code, last = done.stdout, done.returncode, (clean(done.stderr).strip().splitlines() or [""])[-1]
    except OSError as error:
        return {"error": f"{python} cannot be started: {clean(error, 120)}"}
    except subprocess.TimeoutExpired as late:
        output, code, last = _text(late.stdout), None, f"no answer within {TORCH_TIMEOUT_S:.0f} s"
    facts: dict[str, Any] = {}
    for line in output.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            facts.update(record)
    if not facts:
        return {"error": last or f"{python} ended with code {code} without a word"}
    if "error" not in facts and "launched" not in facts:
        facts["launched"] = False
        facts["launch_error"] = f"{_ending(code)}{': ' + last[:200] if last else ''}"
    return facts


def _text(output: bytes | str | None) -> str:
    return output.decode("utf-8", "replace") if isinstance(output, bytes) else output or ""


def _ending(code: int | None) -> str:
    if code is None:
        return "the process hung and was ended"
    if code < 0:
        try:
            return f"the process died of {signal.Signals(-code).name}"
        except ValueError:
            return f"the process died of signal {-code}"
    return f"the process ended with code {code}"


def products(python: str, variables: Mapping[str, str]) -> dict[str, Any] | str:
    """The quick proof of matrix products of every type and layout against float64 (kernels/proof.py as a process
    of the runner's Python); a sentence when it cannot be had."""
    request = {"device": "auto", "quick": True, "training": False}
    try:
        done = subprocess.run(
            [python, "-m", "bc250studio.kernels.proof", "--quick", "--json"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PRODUCTS_TIMEOUT_S,
            env={**variables},
            cwd="/",
        )
    except OSError as error:
        return f"{python} cannot be started: {clean(error, 120)}"
    except subprocess.TimeoutExpired:
        return f"the products did not finish within {PRODUCTS_TIMEOUT_S:.0f} s"
    try:
        record = json.loads(done.stdout.strip().splitlines()[-1])
        if isinstance(record, dict) and isinstance(record.get("products"), dict):
            return record
    except (ValueError, IndexError):
        pass
    last = (clean(done.stderr).strip().splitlines() or [_ending(done.returncode)])[-1]
    return f"the products could not be computed: {last[:200]}"


def shader_clock(chip: Chip, python: str | None = None) -> dict[str, Any]:
    """Measure the shader clock of this machine's GPU.

    Raises:
        JobFailed: no AMD GPU, no HIP runtime, no compiler, or the device refuses.
    """
    tree = Tree()
    found = [device for device in gpu.find(tree) if device.is_amd]
    if not found:
        raise JobFailed("The shader clock is measured on AMD GPUs; there is none here.")
    variables = environment(chip)
    folder = torch_facts(python or runner_python(), variables).get("folder")
    library = clock.hip_library(Path(folder) if isinstance(folder, str) else None)
    if library is None:
        raise JobFailed("The shader clock needs libamdhip64, which neither the runner's torch nor /opt/rocm has.")
    return clock.measure(chip.gfx, library, gpu.compute_units(tree, found[0]) or 24, variables)
