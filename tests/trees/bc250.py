"""A BC-250 as a file tree, healthy unless told otherwise."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

from tests.trees.plain import meminfo, put

MIB = 1 << 20
ADDRESS = "0000:01:00.0"
GOVERNOR = """\
[timing.intervals]
sample = 500
adjust = 200_000

[temperature]
throttling = 80
throttling_recovery = 75

[frequency-range]
min = 500
max = 2000

[[safe-points]]
frequency = 1000
voltage = 800

[[safe-points]]
frequency = 2000
voltage = 960
"""


@dataclass
class Bc250:
    """What the tree says; change a field and ``write`` again to let time pass."""

    root: Path
    temp_c: float | None = 68.5
    edge_c: float | None = None
    tctl_c: float | None = 70.1
    power_w: float | None = 138.0
    clock_mhz: int = 2000
    hwmon: int = 3
    nct: int | None = 5
    nct_driver: str = "nct6687"
    pwm: bool = True
    fan_rpm: int = 2400
    vram_mib: int = 512
    gtt_mib: int = 14336
    vram_used_mib: int = 200
    gtt_used_mib: int = 1024
    page_limit_mib: int | None = 14336
    total_mib: int = 15360
    available_mib: int = 13000
    swap_mib: int = 16384
    compute_units: int = 40
    kernel: str = "6.18.9"
    cmdline: str = "root=/dev/nvme0n1p2 ro ttm.pages_limit=3670016 amdgpu.bc250_cc_write_mode=3"
    governor: str | None = GOVERNOR
    running: tuple[str, ...] = ("cyan-skillfish-governor-smu",)
    parameters: dict[str, int] = field(
        default_factory=lambda: {
            "bc250_flush_pasid_kiq": 0,
            "bc250_flush_by_runlist": 1,
            "bc250_cc_write_mode": 3,
            "sched_policy": 0,
        }
    )
    mesa: str | None = "25.3.1"

    @property
    def device(self) -> Path:
        """The GPU's folder."""
        return self.root / "sys/devices/pci0000:00/0000:00:08.1" / ADDRESS

    @property
    def gpu_hwmon(self) -> Path:
        """amdgpu's hwmon folder."""
        return self.device / "hwmon" / f"hwmon{self.hwmon}"

    def metrics(self) -> bytes:
        """gpu_metrics v2.2 as the driver fills it: unfilled fields are all ones, power is cut to 16 bits."""
        table = bytearray(b"\xff" * 128)
        struct.pack_into("<HBB", table, 0, 128, 2, 2)
        if self.temp_c is not None:
            struct.pack_into("<HH", table, 4, int(self.temp_c * 100), int(self.temp_c * 100))
        if self.power_w is not None:
            struct.pack_into("<H", table, 40, int(self.power_w * 1000) & 0xFFFF)
        struct.pack_into("<H", table, 76, self.clock_mhz)
        struct.pack_into("<H", table, 80, 450)
        struct.pack_into("<I", table, 108, 0)
        return bytes(table)

    def write(self) -> Bc250:
        """Write (again) the whole tree."""
        root, device = self.root, self.device
        self._link("sys/bus/pci/devices", ADDRESS, device)
        for name, content in {
            "vendor": "0x1002", "device": "0x13fe", "class": "0x030000",
            "uevent": f"DRIVER=amdgpu\nPCI_CLASS=30000\nPCI_ID=1002:13FE\nPCI_SLOT_NAME={ADDRESS}",
            "mem_info_vram_total": self.vram_mib * MIB, "mem_info_vram_used": self.vram_used_mib * MIB,
            "mem_info_gtt_total": self.gtt_mib * MIB, "mem_info_gtt_used": self.gtt_used_mib * MIB,
        }.items():  # fmt: skip
            put(device, name, content)
        put(device, "gpu_metrics", self.metrics())
        (device / "drm/card1").mkdir(parents=True, exist_ok=True)
        self._link("sys/class/drm", "card1", device / "drm/card1")
        self._link("sys/class/drm/card1", "device", device)
        self._hwmon()
        put(root, "/sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 16\nsimd_count 0\ndevice_id 0")
        put(
            root,
            "/sys/class/kfd/kfd/topology/nodes/1/properties",
            f"cpu_cores_count 0\nsimd_count {self.compute_units * 2}\nsimd_per_cu 2\ngfx_target_version 100103\n"
            f"vendor_id 4098\ndevice_id {0x13FE}\nmax_engine_clk_fcompute 2000",
        )
        for name, value in self.parameters.items():
            put(root, f"/sys/module/amdgpu/parameters/{name}", value)
        if self.page_limit_mib is not None:
            put(root, "/sys/module/ttm/parameters/pages_limit", self.page_limit_mib * MIB // 4096)
        meminfo(root, self.total_mib, self.available_mib, self.swap_mib)
        put(root, "/proc/stat", "cpu  100 0 50 1000 10 0 5 0 0 0")
        put(root, "/proc/cmdline", self.cmdline)
        put(root, "/proc/sys/kernel/osrelease", self.kernel)
        put(root, "/etc/group", "root:x:0:\nrender:x:106:owner\nvideo:x:44:owner")
        put(root, "/dev/kfd", "")
        put(root, "/dev/dri/renderD128", "")
        if self.governor is not None:
            put(root, "/etc/cyan-skillfish-governor-smu/config.toml", self.governor)
        for number, name in enumerate(self.running):
            put(root, f"/proc/{700 + number}/cmdline", f"/usr/bin/{name}\0/etc/{name}/config.toml\0".encode())
        if self.mesa is not None:
            put(root, "/usr/share/vulkan/icd.d/radeon_icd.x86_64.json",
                '{"ICD": {"library_path": "/usr/lib/x86_64-linux-gnu/libvulkan_radeon.so"}}')  # fmt: skip
            put(
                root,
                "/usr/lib/x86_64-linux-gnu/libvulkan_radeon.so",
                b"\x7fELF\0\0Mesa " + self.mesa.encode() + b"\0rest",
            )
        return self

    def _hwmon(self) -> None:
        """The kernel gives numbers anew at each start; all folders are written for the present ones."""
        for link in (self.root / "sys/class/hwmon").glob("*"):
            link.unlink()
        for old in (self.device / "hwmon").glob("hwmon*"):
            for file in old.iterdir():
                file.unlink()
            old.rmdir()
        gpu = self.gpu_hwmon
        put(gpu, "name", "amdgpu")
        edge = self.edge_c if self.edge_c is not None else self.temp_c
        if edge is not None:
            put(gpu, "temp1_input", int(edge) * 1000)
            put(gpu, "temp1_label", "edge")
        if self.power_w is not None:
            put(gpu, "power1_average", int(self.power_w * 1_000_000))
        put(gpu, "freq1_input", self.clock_mhz * 1_000_000)
        put(gpu, "in0_input", 960)
        self._link("sys/class/hwmon", f"hwmon{self.hwmon}", gpu)
        if self.tctl_c is not None:
            cpu = self.root / "sys/devices/pci0000:00/0000:00:18.3/hwmon" / f"hwmon{self.hwmon + 1}"
            put(cpu, "name", "k10temp")
            put(cpu, "temp1_input", int(self.tctl_c * 1000))
            put(cpu, "temp1_label", "Tctl")
            self._link("sys/class/hwmon", f"hwmon{self.hwmon + 1}", cpu)
        drive = self.root / "sys/devices/virtual/nvme" / f"hwmon{self.hwmon - 1}"
        put(drive, "name", "nvme")
        put(drive, "temp1_input", 41850)
        self._link("sys/class/hwmon", f"hwmon{self.hwmon - 1}", drive)
        if self.nct is not None:
            self._fans()

    def _fans(self) -> None:
        board = self.root / "sys/devices/platform/nct6687.2592"
        if not board.exists():  # a fan driver's state is not renumbered away; keep what was written to it
            put(board, "name", self.nct_driver)
            for channel, label in ((1, "CPU Fan"), (2, "Pump Fan"), (3, "System Fan")):
                put(board, f"fan{channel}_input", self.fan_rpm if channel == 2 else 0)
                put(board, f"fan{channel}_label", label)
                if self.pwm:
                    put(board, f"pwm{channel}", 90 + channel)
                    put(board, f"pwm{channel}_enable", 99)
        self._link("sys/class/hwmon", f"hwmon{self.nct}", board)

    @property
    def fan_board(self) -> Path:
        """The fan chip's folder."""
        return self.root / "sys/devices/platform/nct6687.2592"

    def _link(self, folder: str, name: str, target: Path) -> None:
        place = self.root / folder
        place.mkdir(parents=True, exist_ok=True)
        link = place / name
        if not link.is_symlink():
            link.symlink_to(os.path.relpath(target, place))
