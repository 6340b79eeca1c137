"""Checks of serving: llama-server, its devices, RADV and Mesa (board notes 2.8, systems notes 2.7)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bc250studio.board.doctor.check import ONLY_BC250, Check, Lines
from bc250studio.board.doctor.machine import Machine
from bc250studio.errors import clean

GROUP = "Serving"
say = Lines(GROUP)
_SOFTWARE = re.compile(r"llvmpipe|lavapipe|swiftshader|software rasterizer", re.IGNORECASE)
_LEAST_MESA = (25, 1)
_LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu/libvulkan_radeon.so",
    "/usr/lib64/libvulkan_radeon.so",
    "/usr/lib/libvulkan_radeon.so",
)


def checks(machine: Machine) -> Iterator[Check]:
    """The binary, what it computes on, and the driver behind it."""
    yield binary(machine)
    yield vulkan(machine)
    yield mesa(machine)
    yield radv(machine)


def binary(machine: Machine) -> Check:
    """Is there a llama-server?"""
    found = machine.server
    if found.error:
        return say.fail("llama-server", clean(found.error, 200), "pip install 'bc250studio[serve]'")
    return say.ok("llama-server", f"version {clean(found.version, 60)}, {found.path}")


def vulkan(machine: Machine) -> Check:
    """A real GPU behind Vulkan: without access llama.cpp takes the CPU and says nothing."""
    found = machine.server
    if found.error:
        return say.skip("vulkan", "no llama-server to ask")
    real = [d for d in found.devices if not _SOFTWARE.search(d)]
    listed = ", ".join(clean(d, 60) for d in found.devices) or "none"
    if machine.gpu is None and not real:
        return say.ok("vulkan", f"no GPU, so the CPU serves (devices the server lists: {listed})")
    if not real:
        return say.fail(
            "vulkan",
            f"the server lists {listed}: it would silently serve on the CPU although a GPU is here",
            f"{machine.install('mesa-vulkan-drivers')}, and see the line about groups",
        )
    if machine.is_bc250 and not any("radv" in d.lower() for d in real):
        return say.warn(
            "vulkan",
            f"the GPU is there, but not by RADV: {', '.join(real)}",
            "export AMD_VULKAN_ICD=RADV",
        )
    return say.ok("vulkan", ", ".join(clean(d, 60) for d in real))


def mesa_version(machine: Machine) -> tuple[int, int, str] | None:
    """Mesa's version out of the installed RADV library, which carries it as text."""
    for path in _LIBRARIES:
        content = machine.tree.blob(path, limit=64 << 20)
        match = re.search(rb"Mesa (\d{1,3})\.(\d{1,3})(\.\d{1,3})?", content) if content else None
        if match:
            return int(match[1]), int(match[2]), match[0].decode()[5:]
    return None


def mesa(machine: Machine) -> Check:
    """Mesa before 25.1 uses the BC-250's broken compute queue."""
    if machine.gpu is None or not machine.gpu.is_amd:
        return say.skip("mesa", "no AMD GPU")
    found = mesa_version(machine)
    if found is None:
        return say.warn("mesa", "RADV (libvulkan_radeon.so) was not found", machine.install("mesa-vulkan-drivers"))
    if machine.is_bc250 and found[:2] < _LEAST_MESA:
        return say.fail(
            "mesa",
            f"Mesa {found[2]} uses the BC-250's broken compute queue: 25.1 or newer is needed",
            "install Mesa 25.3 or newer (Debian 12 is too old); until then: export RADV_DEBUG=nocompute",
        )
    return say.ok("mesa", f"Mesa {found[2]} (RADV)")


def radv(machine: Machine) -> Check:
    """Variables and a second driver that change which Vulkan is taken."""
    if not machine.is_bc250:
        return say.skip("radv", ONLY_BC250)
    found = mesa_version(machine)
    debug = machine.login.variables.get("RADV_DEBUG", "")
    if "nocompute" in debug and found is not None and found[:2] >= _LEAST_MESA:
        return say.warn("radv", f"RADV_DEBUG={clean(debug, 40)} is for Mesa before 25.1 only", "unset RADV_DEBUG")
    folders = ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d")
    rival = [name for folder in folders for name in machine.tree.names(folder) if name.startswith("amd_icd")]
    if rival and machine.login.variables.get("AMD_VULKAN_ICD", "").upper() != "RADV":
        return say.warn("radv", f"amdvlk ({rival[0]}) is installed beside RADV", "export AMD_VULKAN_ICD=RADV")
    return say.ok("radv", "RADV is the only AMD driver for Vulkan")
