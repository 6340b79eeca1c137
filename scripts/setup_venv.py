"""Set up `.venv`: the app, and torch unless this machine already has one that sees a GPU.

Run by `make venv` with any Python >= 3.11; needs only the standard library.

The Pythons of this login are asked first (PYTHON_TRAIN=, $VIRTUAL_ENV, python3): one whose torch sees a
GPU becomes the runner, is recorded as `[runtime] python` in settings.toml, and nothing is installed over
it: the few small packages it lacks go to `.runner`, which the runner puts behind its own. Otherwise
`torch==2.13.0` (TORCH= overrides) goes into `.venv`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV, RUNNER = ROOT / ".venv", ROOT / ".runner"
READY = VENV / ".ready"
TORCH = os.environ.get("TORCH") or "torch==2.13.0"
# What the runner needs beside torch; each goes to .runner only when the runner's Python lacks it.
RUNNER_NEEDS = {
    "transformers": "transformers", "peft": "peft", "accelerate": "accelerate", "safetensors": "safetensors",
    "tokenizers": "tokenizers", "huggingface_hub": "huggingface_hub", "pydantic": "pydantic", "tomlkit": "tomlkit",
    "platformdirs": "platformdirs", "psutil": "psutil", "pyarrow": "pyarrow", "gguf": "gguf", "jinja2": "jinja2",
    "requests": "requests",
}  # fmt: skip
PROBE = """
import torch
assert torch.cuda.is_available(), "its torch sees no GPU"
x = torch.ones(8, device="cuda")
print(torch.__version__, torch.cuda.get_device_name(0), float((x + x).sum()))
"""


def main(with_torch: bool) -> int:
    """Everything; returns an exit code."""
    if sys.version_info < (3, 11):  # noqa: UP036 - any Python may run this file
        return fail(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}.")
    runner = find_runner()
    try:
        make_venv()
        pip("install", "-q", "-U", "pip>=24")
        small = ["-c", "requirements/constraints.txt"]
        if runner is None or with_torch:
            say(f"installing {TORCH} and the rest (a few minutes the first time)")
            pip("install", "-q", *small, TORCH)
            pip("install", "-q", *small, "--no-deps", "--require-hashes", "-r", "requirements/pinned.txt")
            pip("install", "-q", *small, "-e", ".[train,serve,nvidia,web,dev]")
        else:
            say("installing the app (torch stays with your own Python)")
            pip("install", "-q", *small, "--no-deps", "--require-hashes", "-r", "requirements/pinned.txt")
            pip("install", "-q", *small, "-e", ".[serve,nvidia,web,dev]")
        if runner is not None:
            complete_runner(runner)
            record_runner(runner)
    except subprocess.CalledProcessError as error:
        return fail(f"this step failed (exit code {error.returncode}): {' '.join(map(str, error.cmd))}")
    READY.touch()
    say("ready: make demo | make studio | make test")
    return 0


def find_runner() -> str | None:
    """The first Python of this login whose torch launches a kernel on a GPU."""
    asked = os.environ.get("PYTHON_TRAIN")
    own = os.environ.get("VIRTUAL_ENV")
    candidates = [asked, f"{own}/bin/python" if own else None, shutil.which("python3")]
    for python in dict.fromkeys(c for c in candidates if c):
        if Path(python).resolve().is_relative_to(VENV.resolve()):
            continue
        try:
            answer = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=120)
        except (OSError, subprocess.TimeoutExpired) as error:
            say(f"{python} gave no answer about its torch ({type(error).__name__}); not used for training")
            continue
        if answer.returncode == 0:
            say(f"{python} trains: torch {answer.stdout.strip()}")
            return python
        if python == asked:
            reason = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
            say(f"PYTHON_TRAIN={python} does not see a GPU ({reason}); it is not used")
    return None


def make_venv() -> None:
    """Create `.venv`, or keep it."""
    if not (VENV / "bin" / "pip").exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True, capture_output=True)
        except subprocess.CalledProcessError as error:
            shutil.rmtree(VENV, ignore_errors=True)
            raise SystemExit(
                fail("python3 cannot make virtual environments; run: sudo apt install python3-venv")
            ) from error


def complete_runner(python: str) -> None:
    """Small packages the runner's Python lacks go to `.runner`, never over its own."""
    code = "import importlib.util,sys; print(' '.join(m for m in sys.argv[1:] if importlib.util.find_spec(m) is None))"
    answer = subprocess.run([python, "-c", code, *RUNNER_NEEDS], capture_output=True, text=True, check=True)
    missing = [RUNNER_NEEDS[name] for name in answer.stdout.split()]
    if missing:
        say(f"for the runner, beside your torch: {', '.join(missing)}")
        wanted = resolve_without_torch(missing)
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "--no-deps", "--upgrade", "--target", str(RUNNER), *wanted],
            check=True, cwd=ROOT,
        )  # fmt: skip


def resolve_without_torch(names: list[str]) -> list[str]:
    """Pinned versions of ``names`` and of the small packages they need, as the constraints file has them."""
    more = {"pydantic": ["pydantic_core", "annotated-types", "typing-inspection", "typing-extensions"]}
    pins = {}
    for file in ("constraints.txt", "pinned.txt"):
        for line in (ROOT / "requirements" / file).read_text().splitlines():
            if "==" in line and not line.startswith("#"):
                requirement = line.split(" --hash")[0].strip()
                pins[requirement.split("==")[0].lower().replace("_", "-")] = requirement
    every = [n for name in names for n in (name, *more.get(name, ()))]
    return [pins.get(name.lower().replace("_", "-"), name) for name in every]


def record_runner(python: str) -> None:
    """`[runtime] python` in settings.toml."""
    code = f"from bc250studio import settings; settings.put('runtime.python', {python!r})"
    subprocess.run([str(VENV / "bin" / "python"), "-c", code], check=True, cwd=ROOT)


def pip(*words: str) -> None:
    """Run `.venv`'s pip; its warnings about folders this machine lacks are noise."""
    subprocess.run(
        [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", *words], check=True, cwd=ROOT
    )


def say(text: str) -> None:
    """One line for the person."""
    print(f"setup: {text}", flush=True)


def fail(text: str) -> int:
    """Say it on stderr; exit code 1."""
    print(f"setup: {text}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(with_torch="--with-torch" in sys.argv[1:]))
