"""Checks of the GPU, its kernel and the board's patched driver (board notes 2.1, 2.6, 2.8, 2.9)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from bc250studio.board import gpu
from bc250studio.board.doctor.check import ONLY_BC250, Check, Lines
from bc250studio.board.doctor.machine import Machine

GROUP = "Device"
say = Lines(GROUP)
PATCH = "https://github.com/GabriWar/bc250-rocm-working"
_BAD_KERNELS = (((6, 15, 0), (6, 15, 6)), ((6, 17, 8), (6, 17, 10)))
_DOUBTED_KERNELS = ((6, 14, 7),)
_GOOD_FROM = (6, 18, 0)


def checks(machine: Machine) -> Iterator[Check]:
    """Device, access, kernel, patched parameters, compute units."""
    yield device(machine)
    yield access(machine)
    for name, check in (("kernel", kernel), ("flush", flush), ("sched-policy", sched_policy), ("units", units)):
        yield check(machine) if machine.is_bc250 else say.skip(name, ONLY_BC250)


def device(machine: Machine) -> Check:
    """Is there a GPU, by its PCI id, and does its driver have it?"""
    found = machine.gpu
    if found is None:
        if machine.chip.name == "nvidia":
            return say.ok("gpu", f"{machine.chip.title} (NVML)")
        return say.warn(
            "gpu",
            "no AMD or NVIDIA GPU is visible: training and serving use the CPU",
            "if the machine has one, see what the kernel says: sudo dmesg | grep -iE 'amdgpu|nvidia'",
        )
    name = f"{machine.chip.title}, {found.pci_id} at {found.address}"
    wanted = "amdgpu" if found.is_amd else "nvidia"
    if found.driver != wanted:
        driver = found.driver or "no driver"
        return say.fail("gpu", f"{name}: {driver} has it, not {wanted}", f"sudo modprobe {wanted}")
    if machine.chip.name == "cpu":
        return say.warn("gpu", f"{name}: no preset of ours covers it, so nothing is assumed about it")
    measured = (
        "" if machine.chip.preset.measured else "; its preset comes from others' reports, not from our measurements"
    )
    return say.ok("gpu", f"{name}{measured}")


def access(machine: Machine) -> Check:
    """May this login use the device files? Without, Vulkan shows llvmpipe only and everything runs on the CPU."""
    if machine.gpu is None or not machine.gpu.is_amd:
        return say.skip("groups", "no AMD GPU")
    nodes = ["/dev/kfd", *(f"/dev/dri/{n}" for n in machine.tree.names("/dev/dri") if n.startswith("renderD"))]
    missing = [node for node in nodes if not machine.tree.exists(node)]
    if missing or len(nodes) < 2:
        which = missing[0] if missing else "/dev/dri/renderD*"
        return say.fail(
            "groups",
            f"{which} does not exist: amdgpu has not set up compute",
            "sudo dmesg | grep -iE 'amdgpu|kfd'",
        )
    wanted = {"render", "video"}
    have = machine.login.groups
    if machine.tree.is_machine:
        closed = [node for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    else:
        closed = [] if wanted <= have or machine.login.user == "root" else nodes
    if not closed:
        return say.ok("groups", f"{machine.login.user} may use {', '.join(nodes)}")
    listed = _members(machine)
    if wanted <= listed | have:
        return say.fail(
            "groups",
            "you are in render and video, but this login began before that",
            "log out and in again (tmux and screen sessions too)",
        )
    return say.fail(
        "groups",
        f"this login may not use {', '.join(closed)}: Vulkan and ROCm would fall to the CPU",
        f"sudo usermod -aG render,video {machine.login.user}, then log out and in again",
    )


def _members(machine: Machine) -> set[str]:
    """Groups of /etc/group that list this user."""
    found = set()
    for line in (machine.tree.text("/etc/group") or "").splitlines():
        fields = line.split(":")
        if len(fields) == 4 and machine.login.user in fields[3].split(","):
            found.add(fields[0])
    return found


def version(text: str | None) -> tuple[int, int, int] | None:
    """``6.18.9-arch1`` -> (6, 18, 9)."""
    match = re.match(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?", text or "")
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def kernel(machine: Machine) -> Check:
    """Is the kernel on owners' list of bad ones?"""
    text = machine.tree.text("/proc/sys/kernel/osrelease") or "unknown"
    here = version(text)
    fix = "install Linux 6.18 LTS or newer and reboot"
    if here is None:
        return say.warn("kernel", f"the kernel calls itself {text[:40]!r}; its version is unknown")
    if any(low <= here <= high for low, high in _BAD_KERNELS):
        return say.fail("kernel", f"Linux {text} is on the list of kernels that break the BC-250", fix)
    if here in _DOUBTED_KERNELS:
        return say.warn("kernel", f"some owners list Linux {text} among the bad kernels", fix)
    if here < _GOOD_FROM:
        return say.warn("kernel", f"Linux {text}: the patched driver is reported to come up from 6.18 on", fix)
    return say.ok("kernel", f"Linux {text}")


def _parameter(machine: Machine, name: str) -> int | None:
    return machine.tree.number(f"/sys/module/amdgpu/parameters/{name}")


def flush(machine: Machine) -> Check:
    """The patched TLB flush: without it freed GPU addresses keep old translations and results are silently wrong."""
    kiq, runlist = _parameter(machine, "bc250_flush_pasid_kiq"), _parameter(machine, "bc250_flush_by_runlist")
    if kiq is None or runlist is None:
        return say.fail(
            "flush",
            "the loaded amdgpu has no bc250_flush parameters: without that patch 13 of 18 runs computed silently wrong",
            f"put the patched module into the initramfs and reboot: {PATCH}",
        )
    if kiq != 0 or runlist not in (1, 3):
        return say.fail(
            "flush",
            f"bc250_flush_pasid_kiq={kiq} (wanted 0), bc250_flush_by_runlist={runlist} (wanted 1 or 3)",
            "add amdgpu.bc250_flush_pasid_kiq=0 amdgpu.bc250_flush_by_runlist=1 to the kernel's command line, reboot",
        )
    return say.ok("flush", f"patched amdgpu: bc250_flush_pasid_kiq=0, bc250_flush_by_runlist={runlist}")


def sched_policy(machine: Machine) -> Check:
    """Policy 2 bypasses the hardware scheduler that the patched flush needs."""
    policy = _parameter(machine, "sched_policy")
    if policy is None:
        return say.warn("sched-policy", "amdgpu's sched_policy cannot be read; it must not be 2")
    if policy == 2:
        return say.fail(
            "sched-policy",
            "amdgpu.sched_policy is 2, which breaks compute on this board",
            "take amdgpu.sched_policy=2 off the kernel's command line and reboot",
        )
    return say.ok("sched-policy", f"amdgpu.sched_policy={policy}")


def units(machine: Machine) -> Check:
    """24 compute units as sold, up to 40 with the patched module; a kernel update silently goes back to 24."""
    count = gpu.compute_units(machine.tree, machine.gpu) if machine.gpu is not None else None
    mode = _parameter(machine, "bc250_cc_write_mode")
    if count is None:
        return say.warn("units", "the kernel's topology does not say how many compute units run")
    asked = mode == 3 or machine.command_line.get("amdgpu.bc250_cc_write_mode") == "3"
    if count <= 24 and asked:
        return say.warn(
            "units",
            f"{count} compute units although bc250_cc_write_mode=3 is asked for: a kernel update "
            "may have replaced the patched module",
            f"rebuild the module and the initramfs: {PATCH}",
        )
    if count <= 24:
        return say.ok("units", f"{count} compute units, as sold (up to 40 with the patched module)")
    note = "" if count == 40 else "; this board may not hold all 40"
    return say.ok("units", f"{count} compute units{note}")
