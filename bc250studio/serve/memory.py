"""Is there room for a server? On a board whose GPU and CPU share memory, training must be over first."""

from __future__ import annotations

from pathlib import Path

import psutil

from bc250studio import jobs
from bc250studio.errors import JobFailed
from bc250studio.serve.binary import Device

SPARE_MIB = 256
_TRAINING = frozenset({"loading", "preparing", "cooling", "training", "evaluating", "saving", "paused"})


def need_mib(files: list[Path], context: int, slots: int) -> int:
    """About what a server takes, MiB: its files, a cache of keys and values, buffers and a reserve.

    The cache is estimated from the file's size (2 layers-worth of width per token is unknown without
    reading metadata): 8 KiB a token for each GiB of weights, at least 24 KiB, which covers the models
    this product fits.
    """
    weights = sum(file.stat().st_size for file in files) / 2**20
    cache = context * slots * max(24.0, 80.0 * weights / 1024) / 1024
    return int(weights * 1.05 + cache + SPARE_MIB)


def check(device: Device, files: list[Path], context: int, slots: int, own_job: Path | None = None) -> None:
    """Refuse to start a server where it would fight for memory.

    Raises:
        JobFailed: a training run is live on a board with shared memory, or too little is available.
    """
    if device.shares_memory or not device.total_mib:
        for other in jobs.live():
            if own_job is not None and other.job.path == own_job:
                continue
            kind = other.state.get("kind")
            if device.shares_memory and not device.cpu_based and kind == "train" and other.phase in _TRAINING:
                raise JobFailed(
                    f"{other.job.name} is {other.phase} and the server would share its memory: on this board the GPU "
                    f"uses the machine's. Wait for it, or stop it with: bc250studio stop {other.job.name}"
                )
    needed = need_mib(files, context, slots)
    if device.shares_memory or not device.total_mib:
        available, where = psutil.virtual_memory().available // 2**20, "of memory available"
    else:
        available, where = device.free_mib, f"free on {device.name}"
    if available < needed:
        raise JobFailed(
            f"The server needs about {needed} MiB and only {available} MiB are {where}; "
            "end other programs, lower serve.context or use a smaller quantisation."
        )
