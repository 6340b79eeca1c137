"""Readings of an AMD GPU from sysfs: temperature, power, clock, memory. Never rocm-smi, amd-smi or debugfs."""

from __future__ import annotations

from bc250studio.board import gpu_metrics
from bc250studio.board.gpu import Gpu
from bc250studio.board.reading import Reading, missing
from bc250studio.board.sysfs import Tree

MIB = 1 << 20
COLDEST_C, HOTTEST_C = 0.0, 115.0
_DISAGREEMENT_C = 10.0
# The BC-250's package has peaked at 223 W (board notes 2.5) on a 220 W design; more is a broken reading.
_MOST_WATTS_BC250 = 300.0
_SLOWEST_BC250_MHZ = 300
_PAGE_BYTES = 4096


def read(tree: Tree, gpu: Gpu) -> dict[str, Reading]:
    """Everything this GPU's sysfs says now, each with its trust. Paths are looked up anew, since numbers move."""
    hwmon = _hwmon(tree, gpu)
    table, why_not = gpu_metrics.parse(tree.blob(f"{gpu.path}/gpu_metrics"))
    power = _power(tree, gpu, hwmon)
    found = {
        "gpu_temp_c": _temperature(tree, hwmon, table, why_not),
        "gpu_power_w": power,
        "gpu_clock_mhz": _clock(tree, gpu, hwmon, power),
        **_memory(tree, gpu),
    }
    if gpu.is_bc250 and table is not None and table.memory_clock_mhz is not None:
        found["gpu_memory_clock_mhz"] = Reading(
            table.memory_clock_mhz, "MHz", table.revision, trust="implausible",
            why="the fabric profile's value, not the memory clock under load",
        )  # fmt: skip
    return found


def _hwmon(tree: Tree, gpu: Gpu) -> str | None:
    for entry in tree.names(f"{gpu.path}/hwmon"):
        return f"{gpu.path}/hwmon/{entry}"
    # Kernels of trees without the per-device folder: only a single amdgpu entry can be meant.
    entries = [e for e in tree.names("/sys/class/hwmon") if tree.text(f"/sys/class/hwmon/{e}/name") == "amdgpu"]
    return f"/sys/class/hwmon/{entries[0]}" if len(entries) == 1 else None


def plausible_temperature(reading: Reading) -> Reading:
    """A temperature outside 0 to 115 °C (both excluded) is marked; 0 °C is never taken as cool."""
    if reading.value is None or COLDEST_C < reading.value < HOTTEST_C:
        return reading
    return reading.doubted(f"{reading.source} says {reading.value:g} °C, which no running chip has")


def _temperature(tree: Tree, hwmon: str | None, table: gpu_metrics.GpuMetrics | None, why_not: str) -> Reading:
    fine = missing("°C", why_not)
    if table is not None:
        if table.gfx_temp_c is None:
            fine = missing("°C", f"{table.revision} leaves the temperature unfilled")
        else:
            fine = plausible_temperature(Reading(table.gfx_temp_c, "°C", table.revision))
    edge_raw = tree.number(f"{hwmon}/temp1_input") if hwmon else None
    edge = missing("°C", "no amdgpu temp1_input")
    if edge_raw is not None:
        edge = plausible_temperature(Reading(edge_raw / 1000, "°C", "amdgpu edge"))
    if fine.good and edge.good and fine.value is not None and edge.value is not None:
        if abs(fine.value - edge.value) > _DISAGREEMENT_C:
            hotter, cooler = (fine, edge) if fine.value > edge.value else (edge, fine)
            return hotter.explained(f"{cooler.source} says {cooler.value:.0f} °C; the hotter one counts")
        return fine
    if fine.good:
        return fine
    if edge.good:
        return edge.explained(fine.why if fine.trust == "implausible" else "")
    return (
        fine
        if fine.trust == "implausible"
        else edge
        if edge.trust == "implausible"
        else missing("°C", f"{fine.why}; {edge.why}")
    )


def _power(tree: Tree, gpu: Gpu, hwmon: str | None) -> Reading:
    if hwmon is None:
        return missing("W", "amdgpu has no hwmon folder")
    for name in ("power1_average", "power1_input"):
        microwatts = tree.number(f"{hwmon}/{name}")
        if microwatts is None:
            continue
        reading = Reading(microwatts / 1e6, "W", f"amdgpu {name}")
        if not 0 < microwatts < 1e9 or (gpu.is_bc250 and microwatts > _MOST_WATTS_BC250 * 1e6):
            return reading.doubted(f"{microwatts / 1e6:.0f} W is beyond what this chip can draw")
        return reading
    return missing("W", "neither power1_average nor power1_input can be read")


def _clock(tree: Tree, gpu: Gpu, hwmon: str | None, power: Reading) -> Reading:
    hertz = tree.number(f"{hwmon}/freq1_input") if hwmon else None
    if hertz is None:
        return missing("MHz", "no amdgpu freq1_input")
    reading = Reading(hertz / 1e6, "MHz", "amdgpu freq1_input")
    if gpu.is_bc250 and not _SLOWEST_BC250_MHZ <= hertz / 1e6 <= 3000:
        drawn = f" at {power.value:.0f} W" if power.good else ""
        return reading.doubted(f"{hertz / 1e6:.0f} MHz{drawn}: with 8 cores unlocked the driver reads the wrong field")
    if power.good and power.value is not None and power.value > 60 and hertz / 1e6 < 200:
        return reading.doubted(f"{hertz / 1e6:.0f} MHz does not go with {power.value:.0f} W")
    if not 0 <= hertz / 1e6 <= 5000:
        return reading.doubted(f"{hertz / 1e6:.0f} MHz is beyond any chip")
    return reading


def memory_bytes(tree: Tree, gpu: Gpu) -> dict[str, int]:
    """``vram_total``, ``vram_used``, ``gtt_total``, ``gtt_used``, ``page_limit`` in bytes, those that can be read.

    ``page_limit`` is the live ``ttm.pages_limit`` (4 KiB pages): a tmpfiles line may have overridden the boot
    argument, and it caps GTT.
    """
    sizes = {}
    for kind in ("vram", "gtt"):
        for what in ("total", "used"):
            value = tree.number(f"{gpu.path}/mem_info_{kind}_{what}")
            if value is not None and 0 <= value < 1 << 50:
                sizes[f"{kind}_{what}"] = value
    pages = tree.number("/sys/module/ttm/parameters/pages_limit")
    if pages is not None and 0 < pages < 1 << 40:
        sizes["page_limit"] = pages * _PAGE_BYTES
    return sizes


def _memory(tree: Tree, gpu: Gpu) -> dict[str, Reading]:
    sizes = memory_bytes(tree, gpu)
    if "vram_total" not in sizes:
        why = "amdgpu says nothing about its memory"
        return {"gpu_memory_used_mib": missing("MiB", why), "gpu_memory_total_mib": missing("MiB", why)}
    gtt = sizes.get("gtt_total", 0)
    source = "VRAM + GTT"
    if "page_limit" in sizes and sizes["page_limit"] < gtt:
        gtt, source = sizes["page_limit"], "VRAM + ttm.pages_limit"
    used = [sizes[key] for key in ("vram_used", "gtt_used") if key in sizes]
    found = {"gpu_memory_total_mib": Reading((sizes["vram_total"] + gtt) / MIB, "MiB", source)}
    if used:
        found["gpu_memory_used_mib"] = Reading(sum(used) / MIB, "MiB", "VRAM + GTT")
    else:
        found["gpu_memory_used_mib"] = missing("MiB", "amdgpu does not say how much is used")
    return found
