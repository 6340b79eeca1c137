"""A bench that needs torch runs in its own process, with the runner's Python: ``run_in_worker`` starts it.

``python -m bc250studio.bench.worker REQUEST.json RESULT.json``: the request names a recipe module of
ours with a ``measure(options, progress)``; progress goes to stderr, the result to the file.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bc250studio import paths, settings
from bc250studio.board import presets
from bc250studio.errors import BadInput, JobFailed, StudioError, clean
from bc250studio.jobs.spawn import child_environment
from bc250studio.profiles import Profile

_PR_SET_PDEATHSIG = 1
RECIPES = ("train", "step", "memory", "fit", "gemm")
"""Recipes with a torch part: ``bench/recipes_NAME.py``."""


def run_in_worker(recipe: str, options: dict[str, Any], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Measure in a child of the runner's Python; its narration passes through to stderr.

    Raises:
        BadInput, JobFailed: what the child said, or that it died without a word.
    """
    python = settings.load().runtime.python or sys.executable
    with tempfile.TemporaryDirectory(prefix="bc250studio-bench-") as folder:
        request, result = Path(folder) / "request.json", Path(folder) / "result.json"
        paths.write_atomic(request, json.dumps({"recipe": recipe, "options": options, "parent": os.getpid()}))
        command = [python, "-m", "bc250studio.bench.worker", str(request), str(result)]
        # A bench gets what a run gets: on a BC-250 a copy never finishes without it.
        variables, notes = presets.runner_environment(Profile(), presets.detect(), child_environment(environment))
        for note in notes:
            narrate(note)
        try:
            code = subprocess.run(command, stdin=subprocess.DEVNULL, env=variables, check=False).returncode
        except OSError as error:
            raise BadInput(
                f"The runner's Python {python} cannot be started ({error}); correct runtime.python in settings.toml."
            ) from error
        if not result.is_file():
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise JobFailed(f"The bench process ended without a result ({how}); its last lines above say why.")
        answer = json.loads(result.read_text())
    if "error" in answer:
        raise (BadInput if answer.get("exit_code") == 2 else JobFailed)(answer["error"])
    found = answer["result"]
    assert isinstance(found, dict)
    return found


def main(arguments: list[str]) -> int:
    """The child: measure and write the result file."""
    request, result = Path(arguments[0]), Path(arguments[1])
    wanted = json.loads(request.read_text())
    _end_with(wanted["parent"])
    if wanted["recipe"] not in RECIPES:
        raise SystemExit(f"unknown recipe {wanted['recipe']!r}")
    warnings.filterwarnings("ignore", category=FutureWarning)
    try:
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise BadInput(
                f"{sys.executable} has no torch, which this bench needs ({clean(error, 80)}); install the extra "
                "'train' or set runtime.python in settings.toml to the Python that trains."
            ) from error
        module = importlib.import_module(f"bc250studio.bench.recipes_{wanted['recipe']}")
        answer: dict[str, Any] = {"result": module.measure(wanted["options"], narrate)}
    except StudioError as error:
        answer = {"error": str(error), "exit_code": error.exit_code}
    paths.write_atomic(result, json.dumps(answer, default=str))
    return 0 if "result" in answer else int(answer["exit_code"])


def _end_with(parent: int) -> None:
    """Nobody reads a bench whose command was killed, and it would go on to disturb the next one (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it was gone before we asked
        raise SystemExit(1)


def narrate(text: str, done: float | None = None, total: float | None = None) -> None:
    """One line of progress on stderr."""
    share = f" ({done:.0f} of {total:.0f})" if done is not None and total else ""
    print(clean(text) + share, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
