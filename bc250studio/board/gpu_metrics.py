"""amdgpu's binary ``gpu_metrics`` table, for the revisions whose layout we know.

Layout: Linux, drivers/gpu/drm/amd/include/kgd_pp_interface.h. A header of four bytes (u16 size, u8
format, u8 content revision) decides. Format 2 (APUs, content 1 to 4) shares the fields read here;
temperatures are in 0.01 °C there. Fields a driver does not fill hold all ones.

Power is not taken from here: the driver squeezes the BC-250's milliwatts into 16 bits, so 140 W would
read as 8.9 W (cyan_skillfish_ppt.c, ``average_socket_power``).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_UNFILLED = 0xFFFF


@dataclass(frozen=True)
class GpuMetrics:
    """What the table says; None where the driver left a field unfilled."""

    revision: str
    gfx_temp_c: float | None
    memory_clock_mhz: int | None


def parse(content: bytes | None) -> tuple[GpuMetrics | None, str]:
    """The table, or None and the reason."""
    if content is None:
        return None, "no readable gpu_metrics"
    if len(content) < 4:
        return None, "gpu_metrics is shorter than its header"
    size, form, revision = struct.unpack_from("<HBB", content)
    name = f"gpu_metrics v{form}.{revision}"
    if form != 2 or not 1 <= revision <= 4:
        return None, f"{name} has a layout we do not read"
    if size > len(content) or size < 112:
        return None, f"{name} says {size} bytes but has {len(content)}"

    def field(offset: int) -> int | None:
        value = struct.unpack_from("<H", content, offset)[0]
        return None if value == _UNFILLED else int(value)

    centidegrees = field(4)
    return GpuMetrics(name, None if centidegrees is None else centidegrees / 100, field(80)), ""
