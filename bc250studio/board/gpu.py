"""Which GPU this machine has, by PCI id and the kernel's topology; numbers of cards and hwmon move, ids do not."""

from __future__ import annotations

from dataclasses import dataclass

from bc250studio.board.sysfs import Tree, whole

BC250 = (0x1002, 0x13FE)
_AMD, _NVIDIA = 0x1002, 0x10DE

# PCI ids of chips we can name without the kernel's compute topology: https://pci-ids.ucw.cz/read/PC/1002
_GFX_BY_PCI = {
    0x13FE: "gfx1013", 0x143F: "gfx1013",
    0x7310: "gfx1010", 0x731F: "gfx1010", 0x7312: "gfx1010", 0x7340: "gfx1012", 0x7341: "gfx1012", 0x7360: "gfx1011",
    0x73BF: "gfx1030", 0x73AF: "gfx1030", 0x73A5: "gfx1030", 0x73DF: "gfx1031", 0x73FF: "gfx1032", 0x163F: "gfx1033",
    0x743F: "gfx1034", 0x1681: "gfx1035", 0x164E: "gfx1036",
    0x744C: "gfx1100", 0x7448: "gfx1100", 0x745E: "gfx1100", 0x747E: "gfx1101", 0x7480: "gfx1102", 0x7483: "gfx1102",
    0x15BF: "gfx1103", 0x1900: "gfx1103", 0x1901: "gfx1103",
    0x150E: "gfx1150", 0x1586: "gfx1151", 0x1114: "gfx1152",
    0x7590: "gfx1200", 0x7550: "gfx1201", 0x7551: "gfx1201",
    0x66A1: "gfx906", 0x66AF: "gfx906", 0x66A0: "gfx906",
    0x738C: "gfx908", 0x740F: "gfx90a", 0x740C: "gfx90a", 0x7408: "gfx90a", 0x74A1: "gfx942", 0x74A0: "gfx942",
}  # fmt: skip


@dataclass(frozen=True)
class Gpu:
    """One display-class PCI device. ``path`` is its folder in sysfs, ``gfx`` AMD's name of its instruction set."""

    vendor: int
    device: int
    address: str
    path: str
    gfx: str
    driver: str

    @property
    def is_amd(self) -> bool:
        """AMD?"""
        return self.vendor == _AMD

    @property
    def is_nvidia(self) -> bool:
        """NVIDIA?"""
        return self.vendor == _NVIDIA

    @property
    def is_bc250(self) -> bool:
        """A BC-250 (1002:13fe)?"""
        return (self.vendor, self.device) == BC250

    @property
    def pci_id(self) -> str:
        """As lspci writes it."""
        return f"{self.vendor:04x}:{self.device:04x}"


def find(tree: Tree) -> list[Gpu]:
    """AMD and NVIDIA GPUs, the most likely one first: a BC-250, then NVIDIA, then AMD by memory size."""
    found: dict[str, Gpu] = {}
    folders = [f"/sys/bus/pci/devices/{name}" for name in tree.names("/sys/bus/pci/devices")]
    folders += [
        f"/sys/class/drm/{name}/device"
        for name in tree.names("/sys/class/drm")
        if name[4:].isdigit() and name[:4] == "card"
    ]
    for folder in folders:
        vendor, device = tree.number(f"{folder}/vendor"), tree.number(f"{folder}/device")
        kind = whole(tree.text(f"{folder}/class"))
        if vendor not in (_AMD, _NVIDIA) or device is None:
            continue
        # 0x03 is the display class, 0x12 (processing accelerator) is what data-centre cards say.
        if kind is not None and kind >> 16 not in (0x03, 0x12):
            continue
        address = _uevent(tree, folder, "PCI_SLOT_NAME") or folder.rpartition("/")[2]
        if address in found or (address == "device" and found):
            continue
        gfx = (_gfx_from_topology(tree, device) or _GFX_BY_PCI.get(device, "")) if vendor == _AMD else ""
        found[address] = Gpu(vendor, device, address, folder, gfx, _uevent(tree, folder, "DRIVER"))
    return sorted(found.values(), key=lambda gpu: (not gpu.is_bc250, not gpu.is_nvidia, -_vram(tree, gpu), gpu.address))


def _vram(tree: Tree, gpu: Gpu) -> int:
    return tree.number(f"{gpu.path}/mem_info_vram_total") or 0


def _uevent(tree: Tree, folder: str, key: str) -> str:
    for line in (tree.text(f"{folder}/uevent") or "").splitlines():
        name, _, value = line.partition("=")
        if name == key:
            return value.strip()
    return ""


def topology(tree: Tree, device: int) -> dict[str, int]:
    """The compute topology's properties of the node with this PCI device id; empty when there is none."""
    base = "/sys/class/kfd/kfd/topology/nodes"
    for node in tree.names(base):
        properties: dict[str, int] = {}
        for line in (tree.text(f"{base}/{node}/properties") or "").splitlines():
            name, _, value = line.partition(" ")
            number = whole(value.strip())
            if number is not None:
                properties[name] = number
        if properties.get("device_id") == device and properties.get("simd_count", 0) > 0:
            return properties
    return {}


def _gfx_from_topology(tree: Tree, device: int) -> str:
    version = topology(tree, device).get("gfx_target_version", 0)
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{stepping:x}" if 0 < major < 100 else ""


def compute_units(tree: Tree, gpu: Gpu) -> int | None:
    """Compute units the kernel's topology counts; None when it says nothing."""
    properties = topology(tree, gpu.device)
    per_cu = properties.get("simd_per_cu", 0)
    simds = properties.get("simd_count", 0)
    return simds // per_cu if per_cu > 0 and simds > 0 else None
