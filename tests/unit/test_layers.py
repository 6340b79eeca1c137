"""The layers, the lean imports and the wheel: what keeps the app light beside a ROCm build."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import bc250studio

ROOT = Path(__file__).resolve().parents[2]
# The only modules that may import torch (docs/architecture.md, "Who may import torch").
TORCH_MODULES = (
    "bc250studio.train.",
    "bc250studio.models.load",
    "bc250studio.kernels.proof",
    "bc250studio.kernels.walk",
    "bc250studio.bench.recipes",
)
TORCH_FREE_IN_TRAIN = ("bc250studio.train.stage", "bc250studio.train.stage_reference", "bc250studio.train.layouts")


def modules() -> list[str]:
    return [m.name for m in pkgutil.walk_packages(bc250studio.__path__, "bc250studio.") if "__main__" not in m.name]


def may_use_torch(name: str) -> bool:
    return name.startswith(TORCH_MODULES) and name not in TORCH_FREE_IN_TRAIN


def test_every_other_module_imports_without_torch():
    names = [name for name in modules() if not may_use_torch(name)]
    assert len(names) > 40
    code = (
        "import sys, importlib\n"
        "class Forbid:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'peft', 'accelerate'):\n"
        "            raise AssertionError(f'{current} imports {name}')\n"
        "sys.meta_path.insert(0, Forbid())\n"
        f"for current in {names!r}:\n"
        "    importlib.import_module(current)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_layer_contract():
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports"))], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_version_imports_nothing_heavy():
    heavy = ("pydantic", "textual", "numpy", "transformers", "requests", "argparse")
    code = (
        "import sys; from bc250studio.cli.main import main; main(['--version']); "
        f"print([m for m in sys.modules if m.split('.')[0] in {heavy!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"bc250studio {bc250studio.__version__}", "[]"]


def test_version_is_fast():
    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "bc250studio.cli.main", "--version"], check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    assert min(times) < 0.3


@pytest.mark.slow
def test_the_wheel_carries_assets_and_profiles(tmp_path: Path):
    """Installed bare, without the checkout, the profiles that ship are still found."""
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    python = tmp_path / "bare/bin/python"
    site = next((tmp_path / "bare/lib").glob("python*/site-packages"))
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(wheel)],
        check=True, capture_output=True,
    )  # fmt: skip
    # Third-party packages come from here; ours must come from the wheel.
    outside = Path(sys.modules["pydantic"].__file__ or "").parents[1]
    (site / "zz.pth").write_text(f"{outside}\n")
    code = (
        "import bc250studio, sys; from bc250studio.cli.main import main; "
        "print(bc250studio.__file__); sys.exit(main(['profiles', 'list']))"
    )
    done = subprocess.run(
        [python, "-c", code],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert str(site) in done.stdout, done.stdout + done.stderr
    assert all(name in done.stdout for name in ("demo", "minicpm5-2b-lora", "qwen3-0.6b-lora")), done.stdout
