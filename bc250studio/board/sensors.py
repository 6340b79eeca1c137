"""All sensors of this machine behind one call; what vanishes falls to the next, and nothing is believed blindly."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

from bc250studio.board import amd, fans, gpu, host
from bc250studio.board.nvidia import Nvml
from bc250studio.board.reading import Reading, missing
from bc250studio.board.sysfs import Tree

ALWAYS = {
    "gpu_temp_c": "°C",
    "cpu_temp_c": "°C",
    "gpu_power_w": "W",
    "gpu_clock_mhz": "MHz",
    "gpu_memory_used_mib": "MiB",
    "gpu_memory_total_mib": "MiB",
    "mem_available_mib": "MiB",
    "fan_rpm": "rpm",
    "cpu_percent": "%",
}
"""The keys every read has, with their units."""

NO_GPU = "no GPU"

_FROZEN_AFTER_S = 30.0
_REST_WATTS = 60.0


class Sensors:
    """The sensors found at start. ``read`` may be called at 1 to 2 Hz; more often disturbs the board's governor."""

    def __init__(self, tree: Tree, device: gpu.Gpu | None, nvml: Nvml | None, why_none: str) -> None:
        self._tree, self._nvml, self._why_none = tree, nvml, why_none
        self.device = device
        self._load = host.CpuLoad(tree)
        self._still = _Still()

    @classmethod
    def discover(cls, root: str | Path = "/") -> Sensors:
        """Look for a GPU by PCI id; ``root`` reads another machine's tree."""
        tree = Tree(root)
        found = gpu.find(tree)
        device = found[0] if found else None
        nvml, why = None, NO_GPU if device is None else "NVIDIA's library reads this machine only"
        if tree.is_machine and (device is None or device.is_nvidia):
            nvml, why = Nvml.open(_visible_index())
            if device is None and nvml is None:
                why = NO_GPU
        return cls(tree, device, nvml, why)

    def read(self) -> dict[str, Reading]:
        """Every reading now; the keys of :data:`ALWAYS` are always there."""
        found: dict[str, Reading] = {key: missing(unit, self._why_none) for key, unit in ALWAYS.items()}
        if self._nvml is not None:
            found.update(self._nvml.read())
        elif self.device is not None and self.device.is_amd:
            self._follow()
            found.update(amd.read(self._tree, self.device))
        found["cpu_temp_c"] = host.cpu_temperature(self._tree)
        found.update(host.memory(self._tree))
        found.update(fans.read(self._tree))
        found["cpu_percent"] = self._load.read()
        if self.device is not None and self.device.is_bc250:
            found["gpu_temp_c"] = _shared_die(found["gpu_temp_c"], found["cpu_temp_c"])
        found["gpu_power_w"] = self._still.judge(found)
        return found

    def _follow(self) -> None:
        """A device that came back under another address is found again."""
        assert self.device is not None
        if not self._tree.exists(f"{self.device.path}/vendor"):
            again = [g for g in gpu.find(self._tree) if g.pci_id == self.device.pci_id]
            self.device = again[0] if again else self.device


def control_temperature(readings: dict[str, Reading], by: Literal["gpu", "cpu"] = "gpu") -> Reading:
    """The temperature a heat limit goes by: that of the chip which works; the CPU's where there is no GPU."""
    cpu = readings.get("cpu_temp_c", missing("°C", "no CPU sensor"))
    chip = readings.get("gpu_temp_c", missing("°C", NO_GPU))
    if by == "cpu":
        return cpu
    return chip if chip.good or chip.why != NO_GPU else cpu


def _shared_die(chip: Reading, cpu: Reading) -> Reading:
    """CPU and GPU of a BC-250 are one die, so the CPU's sensor stands in when the GPU's cannot be believed."""
    if chip.good or not cpu.good:
        return chip
    return cpu.explained(f"stands in for the GPU's: {chip.why}")


def _visible_index() -> int:
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    return int(first) if first.isdigit() and len(first) < 4 else 0


class _Still:
    """Notices a power reading that stands still while the chip plainly does not."""

    def __init__(self) -> None:
        self._value: float | None = None
        self._since = 0.0
        self._temps: tuple[float, float] = (0.0, 0.0)

    def judge(self, readings: dict[str, Reading]) -> Reading:
        power, now = readings["gpu_power_w"], time.monotonic()
        if not power.good or power.value is None:
            self._value = None
            return power
        heat = readings["gpu_temp_c"]
        temp = heat.value if heat.good and heat.value is not None else None
        if power.value != self._value:
            self._value, self._since = power.value, now
            self._temps = (temp, temp) if temp is not None else (200.0, -200.0)
            return power
        if temp is not None:
            self._temps = min(self._temps[0], temp), max(self._temps[1], temp)
        stood = now - self._since
        moved = self._temps[1] - self._temps[0] >= 2.0
        if stood >= _FROZEN_AFTER_S and (moved or power.value > _REST_WATTS):
            return power.doubted(f"has stood at exactly {power.value:.1f} W for {stood:.0f} s")
        return power
