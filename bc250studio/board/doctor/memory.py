"""Checks of memory and disk: carve-out, GTT, page limit, swap, what is free (board notes 2.7)."""

from __future__ import annotations

from collections.abc import Iterator

from bc250studio.board import host
from bc250studio.board.doctor.check import ONLY_BC250, Check, Lines
from bc250studio.board.doctor.machine import Machine
from bc250studio.board.sysfs import whole

GROUP = "Memory"
say = Lines(GROUP)
GIB = 1 << 30
PAGES_14_GIB = 3670016


def checks(machine: Machine) -> Iterator[Check]:
    """The board's split first, then what every machine has."""
    for name, check in (("carve-out", carve_out), ("gtt", gtt), ("pages-limit", pages_limit)):
        yield check(machine) if machine.is_bc250 else say.skip(name, ONLY_BC250)
    yield swap(machine)
    yield available(machine)
    yield disk(machine)


def carve_out(machine: Machine) -> Check:
    """512 MiB leaves the rest to GTT, where both sides share it; a large one starves Linux."""
    size = machine.memory_bytes.get("vram_total")
    if size is None:
        return say.warn("carve-out", "amdgpu does not say how large the carve-out is")
    if size > 4 * GIB:
        return say.warn(
            "carve-out",
            f"{size / GIB:.1f} GiB are carved out for the GPU and lost to Linux (12 + 4 GiB starved it)",
            "set UMA to 512 MB in the BIOS or with https://github.com/fanoush/bc250_memcfg, and raise ttm.pages_limit",
        )
    return say.ok("carve-out", f"{size / (1 << 20):.0f} MiB carved out, the rest is shared as GTT")


def gtt(machine: Machine) -> Check:
    """GTT is what a run gets; the default is half of the memory."""
    size = machine.memory_bytes.get("gtt_total")
    if size is None:
        return say.warn("gtt", "amdgpu does not say how large GTT is")
    if size < 11 * GIB:
        return say.warn(
            "gtt",
            f"GTT is {size / GIB:.1f} GiB: a 2-billion-parameter LoRA wants 11 or more",
            f"add ttm.pages_limit={PAGES_14_GIB} (14 GiB) to the kernel's command line and reboot",
        )
    return say.ok("gtt", f"GTT is {size / GIB:.1f} GiB")


def pages_limit(machine: Machine) -> Check:
    """The live limit, since a tmpfiles line may override the kernel argument."""
    name = "pages-limit"
    live = machine.memory_bytes.get("page_limit")
    if live is None:
        return say.warn(name, "/sys/module/ttm/parameters/pages_limit cannot be read")
    asked = whole(machine.command_line.get("ttm.pages_limit"))
    if asked is not None and asked * 4096 != live:
        return say.warn(
            name,
            f"the live limit is {live / GIB:.1f} GiB, the kernel's command line asks for {asked * 4096 / GIB:.1f}",
            "look for a line that writes it: grep -rs pages_limit /etc/tmpfiles.d /usr/lib/tmpfiles.d /etc/modprobe.d",
        )
    size = machine.memory_bytes.get("gtt_total", 0)
    if live < size:
        return say.warn(
            name,
            f"the live limit of {live / GIB:.1f} GiB is below GTT's {size / GIB:.1f} GiB",
            f"add ttm.pages_limit={size // 4096} to the kernel's command line and reboot",
        )
    if "amdgpu.gttsize" in machine.command_line:
        return say.warn(
            name,
            "amdgpu.gttsize on the kernel's command line is obsolete",
            "use ttm.pages_limit instead",
        )
    return say.ok(name, f"ttm.pages_limit is {live / GIB:.1f} GiB, live")


def swap(machine: Machine) -> Check:
    """On shared memory, swap on a drive makes room; zram takes from what the GPU needs."""
    entries = [line.split() for line in (machine.tree.text("/proc/swaps") or "").splitlines()[1:]]
    entries = [entry for entry in entries if len(entry) >= 3]
    zram = [entry[0] for entry in entries if "zram" in entry[0]]
    drive = sum(whole(entry[2]) or 0 for entry in entries if "zram" not in entry[0]) / (1 << 20)
    if machine.chip.apu and zram:
        return say.warn(
            "swap",
            "zram keeps swapped pages in the memory the GPU shares",
            "sudo swapoff /dev/zram0, and swap on the NVMe drive instead",
        )
    if machine.chip.apu and drive == 0:
        return say.warn(
            "swap",
            "no swap: when GPU and system together run out, the kernel kills the run",
            "make a swap file of 16 GiB on the NVMe drive",
        )
    if not entries:
        return say.ok("swap", "no swap, and none needed: no GPU shares this memory")
    kinds = [f"{drive:.0f} GiB on a drive"] if drive else []
    return say.ok("swap", " and ".join([*kinds, *(["zram"] if zram else [])]))


def available(machine: Machine) -> Check:
    """What is free now, and who takes the rest."""
    sizes = host.memory_kib(machine.tree)
    total, free = sizes.get("MemTotal"), sizes.get("MemAvailable")
    if total is None or free is None:
        return say.warn("memory", "/proc/meminfo does not say what is available")
    eaters = host.other_programs(machine.tree)
    words = f"{free / (1 << 20):.1f} of {total / (1 << 20):.1f} GiB are available"
    if eaters and machine.chip.apu:
        return say.warn(
            "memory",
            f"{words}; {', '.join(eaters)} runs and shares memory and heat with training",
            f"stop {eaters[0]} before a run",
        )
    if free < 2 << 20:
        return say.warn("memory", f"{words}: too little for more than the demo", "end other programs")
    return say.ok("memory", words + (f"; {', '.join(eaters)} runs" if eaters else ""))


def disk(machine: Machine) -> Check:
    """Room for checkpoints, GGUF files and the prepared data."""
    free = machine.ask_free_bytes()
    words = f"{free / GIB:.1f} GiB are free where runs are kept"
    if free < GIB:
        return say.fail("disk", words, "delete old runs, or move BC250STUDIO_HOME to a larger drive")
    if free < 10 * GIB:
        return say.warn(
            "disk",
            f"{words}: a merged 2-billion-parameter model alone takes 5",
            "make room before a long run",
        )
    return say.ok("disk", words)
