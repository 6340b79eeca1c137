"""Readings of the machine around the GPU: CPU temperature and load, memory, swap."""

from __future__ import annotations

import psutil

from bc250studio.board.amd import plausible_temperature
from bc250studio.board.reading import Reading, missing
from bc250studio.board.sysfs import Tree, hwmon_named, whole

_EATERS = ("llama-server", "ollama", "koboldcpp", "vllm", "comfyui")
_CPU_CHIPS = ("k10temp", "zenpower", "coretemp", "cpu_thermal")


def cpu_temperature(tree: Tree) -> Reading:
    """k10temp's Tctl, or what another CPU driver calls its package; the hottest plausible one."""
    doubtful = missing("°C", "no k10temp, coretemp or other CPU sensor")
    best: Reading | None = None
    for folder in hwmon_named(tree, *_CPU_CHIPS):
        name = tree.text(f"{folder}/name") or "cpu"
        for entry in tree.names(folder):
            if not (entry.startswith("temp") and entry.endswith("_input")):
                continue
            raw = tree.number(f"{folder}/{entry}")
            label = tree.text(f"{folder}/{entry[:-6]}_label") or ""
            if raw is None or label == "Tdie":
                continue
            reading = plausible_temperature(Reading(raw / 1000, "°C", f"{name} {label}".strip()[:40]))
            if not reading.good:
                doubtful = reading
            elif best is None or (reading.value or 0) > (best.value or 0):
                best = reading
    return best or doubtful


def memory_kib(tree: Tree) -> dict[str, int]:
    """/proc/meminfo in KiB."""
    found = {}
    for line in (tree.text("/proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        value = whole((rest.split() or [""])[0])
        if value is not None and 0 <= value < 1 << 40:
            found[name.strip()] = value
    return found


def memory(tree: Tree) -> dict[str, Reading]:
    """MemTotal, MemAvailable and used swap in MiB."""
    sizes = memory_kib(tree)
    if not sizes and tree.is_machine:
        now, swap = psutil.virtual_memory(), psutil.swap_memory()
        sizes = {
            "MemTotal": now.total >> 10,
            "MemAvailable": now.available >> 10,
            "SwapTotal": swap.total >> 10,
            "SwapFree": swap.free >> 10,
        }

    def one(name: str) -> Reading:
        if name in sizes:
            return Reading(sizes[name] / 1024, "MiB", "/proc/meminfo")
        return missing("MiB", f"/proc/meminfo has no {name}")

    found = {"mem_total_mib": one("MemTotal"), "mem_available_mib": one("MemAvailable")}
    if "SwapTotal" in sizes and "SwapFree" in sizes:
        used = max(0, sizes["SwapTotal"] - sizes["SwapFree"]) / 1024
        found["swap_used_mib"] = Reading(used, "MiB", "/proc/meminfo")
    return found


def other_programs(tree: Tree) -> tuple[str, ...]:
    """Programs running here that are known to hold much memory, by name."""
    found = set()
    for pid in tree.names("/proc"):
        if pid.isdigit():
            program = (tree.text(f"/proc/{pid}/cmdline") or "").split("\0")[0].rpartition("/")[2]
            if program in _EATERS:
                found.add(program)
    return tuple(sorted(found))


class CpuLoad:
    """Share of CPU time spent working since the last read, over all cores, in %."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._last = self._ticks()
        if tree.is_machine:
            psutil.cpu_percent(None)

    def read(self) -> Reading:
        """Load since the call before."""
        if self._tree.is_machine:
            return Reading(psutil.cpu_percent(None), "%", "psutil")
        now, last = self._ticks(), self._last
        self._last = now
        if now is None:
            return missing("%", "no /proc/stat")
        if last is None or now[1] <= last[1]:
            return missing("%", "needs two reads", "/proc/stat")
        busy = (now[0] - last[0]) / (now[1] - last[1]) * 100
        return Reading(min(max(busy, 0.0), 100.0), "%", "/proc/stat")

    def _ticks(self) -> tuple[int, int] | None:
        line = (self._tree.text("/proc/stat") or "").partition("\n")[0].split()
        ticks = [whole(field) for field in line[1:9]]
        if line[:1] != ["cpu"] or len(ticks) < 4 or any(t is None for t in ticks):
            return None
        total = sum(t for t in ticks if t is not None)
        idle = (ticks[3] or 0) + (ticks[4] or 0 if len(ticks) > 4 else 0)
        return total - idle, total
