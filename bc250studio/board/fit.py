"""Does it fit on this machine? An estimate (made by models/memory.py) against what the machine really has.

On a board whose GPU and CPU share memory there are two walls, and the nearer one counts: what the driver may hand
to the GPU (VRAM + GTT, GTT capped by the live ``ttm.pages_limit``, less what is in use), and what Linux can still
give (MemAvailable, less a reserve that keeps the machine alive, plus the carve-out Linux does not count).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bc250studio.board import amd, gpu, host, presets
from bc250studio.board.nvidia import Nvml
from bc250studio.board.sysfs import Tree
from bc250studio.errors import BadInput

GIB = 1 << 30
MIB = 1 << 20
TIGHT = 0.92
"""Above this share of what there is, a verdict says ``tight``: estimates are good to a few percent, not exact."""


@dataclass(frozen=True)
class Alternative:
    """What the same work takes after turning one or more knobs; ``words`` are settings a user can type."""

    words: str
    total_bytes: int


@dataclass(frozen=True)
class Estimate:
    """Memory of one piece of work by part, in bytes, and what other settings would take, the mildest first."""

    what: str
    parts: Mapping[str, int]
    alternatives: tuple[Alternative, ...] = ()
    remark: str = ""

    @property
    def total_bytes(self) -> int:
        """The sum of the parts."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Facts:
    """What a machine has for the work, in bytes. ``device_free`` is None where the CPU does it."""

    device: str
    shared: bool
    device_total: int | None
    device_free: int | None
    memory_total: int
    memory_available: int
    carve_out_free: int = 0
    reserve: int = 400 * MIB
    others: tuple[str, ...] = ()

    @property
    def budget_bytes(self) -> int:
        """What the work may take."""
        system = max(0, self.memory_available - self.reserve)
        if self.device_free is None:
            return system
        if not self.shared:
            return self.device_free
        return min(self.device_free, system + self.carve_out_free)

    @property
    def wall(self) -> str:
        """Which limit is the nearer one, in words."""
        if self.device_free is None:
            return "available memory"
        if not self.shared:
            return f"free on {self.device}"
        if self.device_free <= self.memory_available - self.reserve + self.carve_out_free:
            return "what the driver may give the GPU (VRAM + GTT)"
        return "available memory, which GPU and system share"


@dataclass(frozen=True)
class Fit:
    """The verdict with its sentence; ``knob`` names the mildest setting that makes it fit, empty when none does."""

    what: str
    verdict: Literal["fits", "tight", "does not fit"]
    need_bytes: int
    budget_bytes: int
    sentence: str
    knob: str = ""
    parts: Mapping[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "what": self.what,
            "verdict": self.verdict,
            "need_bytes": self.need_bytes,
            "budget_bytes": self.budget_bytes,
            "why": self.sentence,
            "knob": self.knob,
            "parts": dict(self.parts),
        }


def facts(root: str | Path = "/", reserve_mib: int = 400, device: str = "auto") -> Facts:
    """This machine (or the tree at ``root``) as it is now. ``device`` ``cpu`` leaves the GPU out.

    Raises:
        BadInput: the machine does not say how much memory it has.
    """
    tree = Tree(root)
    sizes = host.memory_kib(tree)
    if "MemTotal" not in sizes or "MemAvailable" not in sizes:
        raise BadInput("This machine's /proc/meminfo does not say how much memory it has, so nothing can be judged.")
    total, available = sizes["MemTotal"] << 10, sizes["MemAvailable"] << 10
    chip = presets.detect(root)
    found = next(iter(gpu.find(tree)), None) if device != "cpu" else None
    others = host.other_programs(tree)
    if found is not None and found.is_amd and chip.name != "cpu":
        memory = amd.memory_bytes(tree, found)
        if "vram_total" in memory:
            gtt = min(memory.get("gtt_total", 0), memory.get("page_limit", 1 << 62)) if chip.apu else 0
            used_gtt = memory.get("gtt_used", 0) if chip.apu else 0
            carve_out_free = max(0, memory["vram_total"] - memory.get("vram_used", 0))
            free = carve_out_free + max(0, gtt - used_gtt)
            return Facts(
                chip.title, chip.apu, memory["vram_total"] + gtt, free, total, available,
                carve_out_free if chip.apu else 0, reserve_mib * MIB, others,
            )  # fmt: skip
    if chip.name == "nvidia" and device != "cpu" and tree.is_machine:
        nvml = Nvml.open()[0]
        reading = nvml.read() if nvml is not None else {}
        has, used = reading.get("gpu_memory_total_mib"), reading.get("gpu_memory_used_mib")
        if has is not None and used is not None and has.value is not None and used.value is not None:
            return Facts(
                chip.title, False, int(has.value * MIB), int((has.value - used.value) * MIB), total, available,
                0, reserve_mib * MIB, others,
            )  # fmt: skip
    return Facts("the CPU", False, None, None, total, available, 0, reserve_mib * MIB, others)


def judge(estimate: Estimate, machine: Facts) -> Fit:
    """The verdict, and the first alternative that fits without being tight (or at all)."""
    need, budget = estimate.total_bytes, machine.budget_bytes
    words = f"{estimate.what} takes about {need / GIB:.1f} GiB of {budget / GIB:.1f} ({machine.wall})"
    words += f", {estimate.remark}" if estimate.remark else ""
    if need <= TIGHT * budget:
        return Fit(estimate.what, "fits", need, budget, words, "", estimate.parts)
    others = f"; {' and '.join(machine.others)} runs here and holds memory" if machine.others else ""
    alternative = next((a for a in estimate.alternatives if a.total_bytes <= TIGHT * budget), None) or next(
        (a for a in estimate.alternatives if a.total_bytes <= budget), None
    )
    verdict: Literal["tight", "does not fit"] = "tight" if need <= budget else "does not fit"
    if alternative is not None:
        words += f"; {alternative.words} makes it {alternative.total_bytes / GIB:.1f} GiB"
    elif verdict == "does not fit":
        if need <= (machine.device_total or machine.memory_total):
            words += "; it would fit were the machine empty: end other programs"
        else:
            words += "; no setting makes it fit: take a smaller model"
    return Fit(
        estimate.what, verdict, need, budget, words + others, alternative.words if alternative else "", estimate.parts
    )
