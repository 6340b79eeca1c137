"""The compiler that belongs to the machine's HIP runtime, and rocBLAS's stock logic: what building needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bc250studio.errors import BadInput
from bc250studio.kernels.tensile import Tensile

COMPILERS = ("amdclang++", "hipcc", "clang++")
LOGIC = ("library/src/blas3/Tensile/Logic/asm_full", "projects/rocblas/library/src/blas3/Tensile/Logic/asm_full")


@dataclass(frozen=True)
class Toolchain:
    """``root``: ROCM_PATH; ``compiler``: the name TensileCreateLibrary is given; ``folders``: put first in PATH."""

    root: Path
    compiler: str
    folders: tuple[Path, ...]

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """``base`` with this ROCm in front."""
        path = os.pathsep.join([*map(str, self.folders), base.get("PATH", os.defpath)])
        return {**base, "ROCM_PATH": str(self.root), "PATH": path, "PYTHONUNBUFFERED": "1"}


def find(environment: Mapping[str, str] = os.environ) -> Toolchain:
    """ROCm's own compiler: $ROCM_PATH, then /opt/rocm.

    Raises:
        BadInput: there is no ROCm with a compiler and an offload bundler.
    """
    tried = [Path(place) for place in (environment.get("ROCM_PATH"), "/opt/rocm") if place]
    for root in tried:
        folders = tuple(p for p in (root / "bin", root / "lib" / "llvm" / "bin") if p.is_dir())
        here = os.pathsep.join(map(str, folders))
        compiler = next((name for name in COMPILERS if shutil.which(name, path=here)), None)
        if compiler and shutil.which("clang-offload-bundler", path=here):
            return Toolchain(root, compiler, folders)
    raise BadInput(
        f"No ROCm compiler was found in {' or '.join(map(str, tried))}: kernels must be built with the compiler that "
        "belongs to the HIP runtime; set ROCM_PATH to your ROCm."
    )


def stock_logic(given: Path | None, tensile: Tensile) -> list[Path]:
    """rocBLAS's fallback logic files (``hip_*.yaml``): given, or in a rocBLAS checkout beside the Tensile one.

    Raises:
        BadInput: none found; without them every product that was not tuned would abort.
    """
    places = [given] if given else []
    if not given:
        for near in (tensile.folder, tensile.folder.parent, tensile.folder.parent.parent):
            places += [near / part for part in LOGIC]
            places += [near / name / LOGIC[0] for name in ("rocBLAS", "rocblas")]
    for place in places:
        files = sorted(place.rglob("hip_*.yaml")) if place.is_dir() else []
        if files:
            return files
    where = f"{given} holds" if given else "there is no rocBLAS checkout beside Tensile, or it holds"
    raise BadInput(
        f"rocBLAS's fallback logic is missing: {where} no hip_*.yaml; give the folder "
        "library/src/blas3/Tensile/Logic/asm_full of the rocBLAS you run with --stock-logic."
    )
