"""What the runner's Python brings: torch, HIP, and the rocBLAS library it would load. Torch is never imported here."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bc250studio import paths, settings
from bc250studio.errors import JobFailed, clean
from bc250studio.jobs.folder import read_json

_PROBE = """
import importlib.util, json, pathlib, runpy, sys
spec = importlib.util.find_spec("torch")
found = {"python": sys.version.split()[0]}
if spec and spec.origin:
    root = pathlib.Path(spec.origin).parent
    try:
        version = runpy.run_path(str(root / "version.py"))
    except Exception:
        version = {}
    found.update({key: version.get(name) for key, name in (("torch", "__version__"), ("hip", "hip"), ("cuda", "cuda"))})
    found["lib"] = str(root / "lib")
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Runner:
    """The Python that trains. ``rocblas`` is the librocblas.so it would load; ``stock`` the folder beside it."""

    python: str
    torch: str | None
    hip: str | None
    cuda: str | None
    rocblas: Path | None
    stock: Path | None

    @property
    def build(self) -> str:
        """Digest of the rocBLAS library file: kernel tables and library must be of one build. Empty without one."""
        return digest(self.rocblas) if self.rocblas else ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "python": self.python,
            "torch": self.torch,
            "hip": self.hip,
            "cuda": self.cuda,
            "rocblas": str(self.rocblas) if self.rocblas else None,
            "rocblas_build": self.build[:16] or None,
            "stock_library": str(self.stock) if self.stock else None,
        }


def runner() -> Runner:
    """The configured runner ([runtime] python, else this Python).

    Raises:
        JobFailed: that Python cannot be started.
    """
    return probe(settings.load().runtime.python or sys.executable)


@cache
def probe(python: str) -> Runner:
    """Ask ``python`` for its torch without importing it. See :func:`runner`."""
    try:
        done = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise JobFailed(
            f"The runner's Python {clean(python)} cannot be asked for its torch: {clean(error, 200)}."
        ) from error
    library = _rocblas(found.get("lib"))
    stock = library.resolve().parent / "rocblas" / "library" if library else None
    if library and stock and not stock.is_dir():
        stock = next((p for p in (library.parent / "rocblas" / "library",) if p.is_dir()), None)
    return Runner(python, found.get("torch"), found.get("hip"), found.get("cuda"), library, stock)


def _rocblas(torch_lib: str | None) -> Path | None:
    """A wheel's own librocblas wins over the system's: torch finds it by RPATH $ORIGIN."""
    places = [Path(torch_lib)] if torch_lib else []
    rocm = os.environ.get("ROCM_PATH")
    places += [Path(rocm) / "lib"] if rocm else []
    places.append(Path("/opt/rocm/lib"))
    for place in places:
        found = sorted(place.glob("librocblas.so*"))
        if found:
            return found[0]
    return None


def digest(file: Path) -> str:
    """sha256 of a file, kept in the cache by path, size and time: librocblas.so has hundreds of megabytes."""
    status = file.stat()
    key = f"{file.resolve()}|{status.st_size}|{status.st_mtime_ns}"
    store = paths.cache_dir() / "digests.json"
    known = read_json(store)
    if isinstance(known.get(key), str):
        return str(known[key])
    with file.open("rb") as stream:
        value = hashlib.file_digest(stream, "sha256").hexdigest()
    paths.private_dir(store.parent)
    paths.write_atomic(store, json.dumps({**known, key: value}))
    return value


def folder_digest(folder: Path) -> str:
    """One sha256 over names and contents of a library folder."""
    whole = hashlib.sha256()
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        whole.update(f"{file.relative_to(folder)}\0{digest(file)}\n".encode())
    return whole.hexdigest()
