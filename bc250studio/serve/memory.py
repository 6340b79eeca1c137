"""Is there room for a server? On a board whose GPU and CPU share memory, training must be over first."""

from __future__ import annotations

from pathlib import Path

import psutil

from bc250studio import jobs
from bc250studio.board import presets
from bc250studio.errors import JobFailed
from bc250studio.models.gguf_file import GgufFile
from bc250studio.serve.binary import Device

SPARE_MIB = 256
_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 1.0625, "q5_1": 0.75, "q5_0": 0.6875, "q4_1": 0.625}
_BYTES |= {"q4_0": 0.5625, "iq4_nl": 0.5625}
_TRAINING = frozenset({"loading", "preparing", "cooling", "training", "evaluating", "saving", "paused"})


def need_mib(model: Path, adapter: Path | None, context: int, slots: int, cache_bytes: tuple[float, float]) -> int:
    """About what a server takes, MiB: weights, the cache of keys and values, compute buffers and a reserve.

    The cache is layers x KV heads x (key length + value length) numbers a token, ``cache_bytes`` each for keys and
    values. Buffers: the logits of one batch are left out (one row is computed), activations are a few MiB.

    Raises:
        BadInput: the model file is damaged.
    """
    weights = sum(file.stat().st_size for file in (model, adapter) if file is not None)
    with GgufFile(model) as file:
        layers = _number(file.arch_get("block_count"))
        heads = _number(file.arch_get("attention.head_count")) or 1
        kv_heads = _number(file.arch_get("attention.head_count_kv")) or heads
        head_dim = _number(file.arch_get("embedding_length")) // heads
        key = _number(file.arch_get("attention.key_length")) or head_dim
        value = _number(file.arch_get("attention.value_length")) or head_dim
    cache = context * slots * layers * kv_heads * (key * cache_bytes[0] + value * cache_bytes[1])
    return int((weights + cache) / 2**20 + SPARE_MIB)


def _number(value: object) -> int:
    """A metadata number; the largest where it is given by layer."""
    if isinstance(value, list):
        return max((int(one) for one in value if isinstance(one, (int, float))), default=0)
    return int(value) if isinstance(value, (int, float)) else 0


def check(
    device: Device,
    model: Path,
    adapter: Path | None,
    context: int,
    slots: int,
    cache_types: tuple[str, str] = ("f16", "f16"),
    own_job: Path | None = None,
) -> None:
    """Refuse to start a server where it would fight for memory.

    Raises:
        JobFailed: a training run is live on a board with shared memory, or too little is available.
    """
    if presets.detect().apu or (device.shares_memory and not device.cpu_based):
        for other in jobs.live():
            if own_job is not None and other.job.path == own_job:
                continue
            if other.state.get("kind") == "train" and other.phase in _TRAINING:
                raise JobFailed(
                    f"{other.job.name} is {other.phase} and the server would share its memory: on this board the GPU "
                    f"uses the machine's. Wait for it, or stop it with: bc250studio stop {other.job.name}"
                )
    sizes = (_BYTES.get(cache_types[0], 2.0), _BYTES.get(cache_types[1], 2.0))
    needed = need_mib(model, adapter, context, slots, sizes)
    if device.shares_memory or not device.total_mib:
        available, where = psutil.virtual_memory().available // 2**20, "of memory available"
    else:
        available, where = device.free_mib, f"free on {device.name}"
    if available < needed:
        raise JobFailed(
            f"The server needs about {needed} MiB and only {available} MiB are {where}; "
            "end other programs, lower serve.context or use a smaller quantisation."
        )
