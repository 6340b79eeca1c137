"""The shader clock: builds for gfx1013 with a plain clang; its host side against a HIP runtime written in C.

What it reports on a real chip can only be seen on one.
"""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import pytest

from bc250studio.board import clock
from bc250studio.errors import JobFailed

pytestmark = pytest.mark.clang

FAKE_HIP = r"""
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
/* A runtime that 'runs' the kernel by writing the counters of a chip at MHZ into the first buffer. */
static int module_ok;
const char *hipGetErrorString(int code) { return code == 209 ? "no kernel image is available" : "a test error"; }
int hipInit(unsigned f) { return getenv("HIP_FAILS") && !strcmp(getenv("HIP_FAILS"), "init") ? 100 : 0; }
int hipModuleLoadData(void **m, const void *image) {
  if (getenv("HIP_FAILS") && !strcmp(getenv("HIP_FAILS"), "load")) return 209;
  module_ok = !memcmp(image, "\x7f" "ELF", 4); *m = &module_ok; return module_ok ? 0 : 1; }
int hipModuleGetFunction(void **f, void *m, const char *name) { *f = m; return strcmp(name, "shader_clock") ? 2 : 0; }
int hipMalloc(void **p, size_t n) { *p = calloc(1, n); return *p ? 0 : 3; }
int hipModuleLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *stream, void **params, void **extra) {
  if (gy != 1 || gz != 1 || bx != 256 || by != 1 || bz != 1 || shared || stream || extra) return 4;
  unsigned long long *out = *(unsigned long long **)params[0];
  float *kept = *(float **)params[1];
  unsigned iterations = *(unsigned *)params[2];
  const char *mhz = getenv("MHZ");
  for (unsigned g = 0; g < gx; ++g) {
    out[2 * g] = (unsigned long long)iterations * 5;
    out[2 * g + 1] = atoi(mhz) ? out[2 * g] * 100 / atoi(mhz) : 0;
    kept[g] = 1.0f;
  }
  return 0; }
int hipDeviceSynchronize(void) { return 0; }
int hipMemcpy(void *d, const void *s, size_t n, int kind) { if (kind != 2) return 5; memcpy(d, s, n); return 0; }
"""


@pytest.fixture(scope="module")
def compiler() -> clock.Compiler:
    found = clock.compilers()
    if not found:
        pytest.skip("no clang with the AMDGPU target (apt install clang lld)")
    return found[0]


@pytest.fixture
def hip(compiler: clock.Compiler, tmp_path: Path) -> Path:
    source, library = tmp_path / "hip.c", tmp_path / "libamdhip64.so.7"
    source.write_text(FAKE_HIP)
    subprocess.run([compiler.path, "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def test_it_builds_for_gfx1013_with_every_clang_here(compiler: clock.Compiler, tmp_path: Path) -> None:
    for each in clock.compilers():
        image = clock.build("gfx1013", tmp_path, each).read_bytes()
        assert image[:4] == b"\x7fELF"
        machine, flags = struct.unpack_from("<H", image, 18)[0], struct.unpack_from("<I", image, 48)[0]
        assert machine == 224, "EM_AMDGPU"
        assert flags & 0xFF == 0x42, "EF_AMDGPU_MACH_AMDGCN_GFX1013"
        assert b"shader_clock.kd" in image
        text = (tmp_path / "shader_clock-gfx1013.s").read_text()
        body = text[text.index("shader_clock:") : text.index("s_endpgm")]
        assert body.count("s_memtime") == 2 and body.count("s_memrealtime") == 2
        between = body[body.index("s_memrealtime") : body.rindex("s_memtime")]
        assert "v_fma" in between and "s_cbranch" in between, "the arithmetic lies between the two reads"


def test_chips_without_the_counter_are_refused(tmp_path: Path) -> None:
    for gfx in ("gfx1100", "gfx906", "", "gfx1013; rm"):
        with pytest.raises(JobFailed, match="RDNA 1 and 2 only"):
            clock.build(gfx, tmp_path)


def test_cycles_over_ticks_is_the_clock(
    compiler: clock.Compiler, hip: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MHZ", "1900")
    found = clock.measure("gfx1013", hip, 40, {**os.environ})
    assert found["clock_mhz"] == pytest.approx(1900, abs=0.1)
    assert found["lowest_mhz"] <= found["clock_mhz"] <= found["highest_mhz"]
    assert found["launches"] >= 8 and found["seconds"] < 30


def test_a_device_that_refuses_is_a_sentence(compiler: clock.Compiler, hip: Path) -> None:
    with pytest.raises(JobFailed, match="hipModuleLoadData failed: no kernel image is available"):
        clock.measure("gfx1013", hip, 40, {**os.environ, "HIP_FAILS": "load", "MHZ": "1900"})


def test_counters_that_stand_still_are_a_sentence(compiler: clock.Compiler, hip: Path, tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match="stand still"):
        clock.measure("gfx1013", hip, 40, {**os.environ, "MHZ": "0"})


def test_something_else_in_place_of_the_runtime(compiler: clock.Compiler, tmp_path: Path) -> None:
    other = tmp_path / "libamdhip64.so"
    other.write_bytes(b"not a library")
    with pytest.raises(JobFailed, match="not a HIP runtime"):
        clock.measure("gfx1013", other, 40, {**os.environ})
