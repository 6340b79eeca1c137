"""The shader clock, measured on the device instead of read from a driver that may read it wrongly.

``assets/shader_clock.hip`` is built with any clang that has the AMDGPU target (hipcc's or Debian's ``clang``
and ``lld``), and run through libamdhip64 by ctypes, so neither torch nor ROCm's headers are needed. The
measuring runs in a process of its own with the runner's environment: a driver that hangs or aborts takes
only that process. Nobody has run it on a BC-250 yet; its building for gfx1013 is tested.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bc250studio import paths
from bc250studio.errors import JobFailed, StudioError, clean
from bc250studio.jobs import spawn

TICKS_MHZ = 100.0
SUPPORTED = re.compile(r"^gfx10[0-3][0-9a-f]$")
"""RDNA 1 and 2 have both counters; RDNA 3 dropped s_memtime."""

_ITERATIONS = 2_000_000
_LANES = 256
_GROUPS_PER_UNIT = 4
_LEAST_S, _MOST_LAUNCHES = 1.5, 400


@dataclass(frozen=True)
class Compiler:
    """A clang that can build for AMD GPUs."""

    path: str
    version: str


def compilers(candidates: Sequence[str] | None = None) -> list[Compiler]:
    """Every clang found that has the amdgcn target: ROCm's first, then the newest of the system."""
    names = [*candidates] if candidates is not None else ["/opt/rocm/llvm/bin/clang", "clang"]
    if candidates is None:
        names += [f"clang-{number}" for number in range(24, 12, -1)]
    found = []
    for name in names:
        path = shutil.which(name)
        if path is None:
            continue
        targets, version = _say([path, "--print-targets"]), _say([path, "--version"])
        if "amdgcn" in targets:
            found.append(Compiler(path, clean(version.partition("\n")[0], 80)))
    return found


def _say(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def build(gfx: str, folder: Path, compiler: Compiler | None = None) -> Path:
    """The code object of the shader clock for ``gfx``, written into ``folder``.

    In two steps, assembly and then linking, because clang 14 alone wants its offload bundler otherwise.

    Raises:
        JobFailed: no compiler, or it refuses; its last line is in the sentence.
    """
    if not SUPPORTED.match(gfx):
        raise JobFailed(
            f"The shader clock can be measured on RDNA 1 and 2 only; {gfx or 'this chip'} lacks the counter."
        )
    if compiler is None:
        found = compilers()
        if not found:
            raise JobFailed("No clang with the AMDGPU target was found; install it with: sudo apt install clang lld")
        compiler = found[0]
    source = paths.shipped("assets") / "shader_clock.hip"
    assembly, target = folder / f"shader_clock-{gfx}.s", folder / f"shader_clock-{gfx}.hsaco"
    to_assembly = ["-x", "hip", f"--offload-arch={gfx}", "--cuda-device-only", "-nogpuinc", "-nogpulib", "-O2", "-S"]
    _compile([compiler.path, *to_assembly, str(source), "-o", str(assembly)])
    _compile([compiler.path, "--target=amdgcn-amd-amdhsa", f"-mcpu={gfx}", str(assembly), "-o", str(target)])
    return target


def _compile(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JobFailed(f"The shader clock could not be built: {clean(error, 200)}.") from error
    if done.returncode:
        lines = [line for line in clean(done.stderr).splitlines() if "error" in line] or ["no message"]
        raise JobFailed(f"The shader clock could not be built with {command[0]}: {lines[0][:300]}")


def hip_library(torch_folder: Path | None) -> Path | None:
    """libamdhip64: the runner's torch's own first (it is what trains), then ROCm's."""
    places = [torch_folder / "lib"] if torch_folder else []
    places += [Path("/opt/rocm/lib"), *sorted(Path("/opt").glob("rocm-*/lib"), reverse=True)]
    places += [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64")]
    for place in places:
        for file in sorted(place.glob("libamdhip64.so*")):
            return file
    return None


def measure(gfx: str, library: Path, compute_units: int, environment: Mapping[str, str]) -> dict[str, Any]:
    """Build, run for about two seconds, and return ``clock_mhz`` (median), ``lowest_mhz``, ``highest_mhz``,
    ``launches``, ``seconds``.

    Raises:
        JobFailed: it cannot be built, or the device does not run it.
    """
    folder = paths.private_dir(paths.cache_dir() / "clock")
    image = build(gfx, folder)
    command = [sys.executable, "-m", "bc250studio.board.clock", str(image), str(library)]
    command += ["--compute-units", str(compute_units)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
            env={**spawn.child_environment(), **environment, "PYTHONPATH": spawn.package_root()},
        )
    except subprocess.TimeoutExpired as error:
        raise JobFailed("The shader clock did not finish within a minute: the device hangs.") from error
    if done.returncode:
        last = (clean(done.stderr).strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
        raise JobFailed(f"The shader clock does not run on this device: {last[:300]}")
    return dict(json.loads(done.stdout))


class Hip:
    """The few calls of the HIP runtime that one kernel needs."""

    def __init__(self, library: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(library))
            self._library.hipGetErrorString.restype = ctypes.c_char_p
        except (OSError, AttributeError) as error:
            raise JobFailed(f"{library} is not a HIP runtime: {clean(error, 200)}") from error

    def call(self, name: str, *arguments: Any) -> None:
        """Call ``name``; a HIP error becomes a sentence."""
        code = getattr(self._library, name)(*arguments)
        if code:
            text = self._library.hipGetErrorString(code) or b"unknown error"
            raise JobFailed(f"{name} failed: {clean(text.decode('utf-8', 'replace'), 120)} ({code}).")


def run(image: bytes, library: Path, compute_units: int, seconds: float = _LEAST_S) -> dict[str, Any]:
    """Launch the kernel over the whole chip until ``seconds`` have passed; the second half counts, since a
    governor needs a moment to raise the clock."""
    hip, groups = Hip(library), max(1, compute_units) * _GROUPS_PER_UNIT
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    out, kept = ctypes.c_void_p(), ctypes.c_void_p()
    hip.call("hipInit", 0)
    hip.call("hipModuleLoadData", ctypes.byref(module), image)
    hip.call("hipModuleGetFunction", ctypes.byref(function), module, b"shader_clock")
    hip.call("hipMalloc", ctypes.byref(out), ctypes.c_size_t(groups * 16))
    hip.call("hipMalloc", ctypes.byref(kept), ctypes.c_size_t(groups * 4))
    iterations = ctypes.c_uint(_ITERATIONS)
    pointers = [ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in (out, kept, iterations)]
    parameters = (ctypes.c_void_p * 3)(*[pointer.value for pointer in pointers])
    host = (ctypes.c_ulonglong * (2 * groups))()
    began = time.monotonic()
    clocks: list[float] = []
    while len(clocks) < _MOST_LAUNCHES and (time.monotonic() - began < seconds or len(clocks) < 8):
        shape = [ctypes.c_uint(value) for value in (groups, 1, 1, _LANES, 1, 1, 0)]
        hip.call("hipModuleLaunchKernel", function, *shape, None, parameters, None)
        hip.call("hipDeviceSynchronize")
        hip.call("hipMemcpy", host, out, ctypes.c_size_t(groups * 16), 2)  # 2 = device to host
        pairs = [(host[2 * group], host[2 * group + 1]) for group in range(groups)]
        if any(ticks == 0 or cycles == 0 for cycles, ticks in pairs):
            raise JobFailed("The device's counters stand still; the shader clock cannot be measured.")
        clocks.append(statistics.median(cycles / ticks * TICKS_MHZ for cycles, ticks in pairs))
    warm = clocks[len(clocks) // 2 :]
    return {
        "clock_mhz": round(statistics.median(warm), 1),
        "lowest_mhz": round(min(warm), 1),
        "highest_mhz": round(max(warm), 1),
        "launches": len(clocks),
        "seconds": round(time.monotonic() - began, 3),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The measuring process: a code object and a HIP library in, JSON out."""
    parser = argparse.ArgumentParser(prog="python -m bc250studio.board.clock")
    parser.add_argument("image", type=Path)
    parser.add_argument("library", type=Path)
    parser.add_argument("--compute-units", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=_LEAST_S)
    given = parser.parse_args(arguments)
    try:
        print(json.dumps(run(given.image.read_bytes(), given.library, given.compute_units, given.seconds)))
    except (StudioError, OSError) as error:
        print(clean(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
