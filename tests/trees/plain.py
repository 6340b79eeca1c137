"""A machine without a GPU: a virtual Debian with two cores."""

from __future__ import annotations

from pathlib import Path


def put(root: Path, path: str, content: str | bytes | int) -> Path:
    """Write one file of a tree."""
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        file.write_text(f"{content}\n")
    return file


def meminfo(root: Path, total_mib: int, available_mib: int, swap_mib: int = 0) -> None:
    """/proc/meminfo and /proc/swaps."""
    put(
        root,
        "/proc/meminfo",
        f"MemTotal:       {total_mib * 1024} kB\nMemFree:        {available_mib * 512} kB\n"
        f"MemAvailable:   {available_mib * 1024} kB\nSwapTotal:      {swap_mib * 1024} kB\n"
        f"SwapFree:       {swap_mib * 1024} kB",
    )
    swaps = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority"
    if swap_mib:
        swaps += f"\n/dev/nvme0n1p3                          partition\t{swap_mib * 1024}\t\t0\t\t-2"
    put(root, "/proc/swaps", swaps)


def plain(root: Path) -> Path:
    """The tree of the virtual machine the tests run on, reduced to what is read."""
    meminfo(root, 8192, 6000)
    put(root, "/proc/stat", "cpu  100 0 50 1000 10 0 5 0 0 0\ncpu0 50 0 25 500 5 0 2 0 0 0")
    put(root, "/proc/cmdline", "root=/dev/vda ro")
    put(root, "/proc/sys/kernel/osrelease", "6.1.0-18-amd64")
    put(root, "/etc/group", "root:x:0:\nrender:x:106:\nvideo:x:44:")
    return root
