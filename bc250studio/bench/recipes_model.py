"""Frozen bases for training benches: loaded or random once, shared by all sides without a second copy.

A side gets its own module objects over the same weights: what one recipe hooks into its modules
cannot speed up or break another, and a 2-billion-parameter base lies on the device once.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import torch

from bc250studio.bench.shapes import RANDOM, shape_file
from bc250studio.errors import BadInput, clean
from bc250studio.jobs.progress import Progress, silent

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def pick_device(name: str) -> torch.device:
    """``auto`` takes the first accelerator torch sees, else the CPU.

    Raises:
        BadInput: the named device is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise BadInput(
            f"This torch has no device {clean(name)!r} ({clean(error, 100)}); use --device cpu or auto."
        ) from error
    return device


def pick_type(name: str, device: torch.device, kind: str = "lora") -> str:
    """``auto`` is fp32 on the CPU and where every weight is trained, else fp16: the type of the board's own recipe."""
    if name != "auto":
        return name
    return "fp32" if device.type == "cpu" or kind == "full" else "fp16"


def device_name(device: torch.device) -> str:
    """What the vendor calls it; for the CPU the thread count, since it decides the rate."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"CPU, {torch.get_num_threads()} threads"


class Base:
    """One frozen model on one device in one type; ``copy`` gives module objects over the same weights."""

    def __init__(self, name: str, dtype: str, device: torch.device, seed: int = 0, progress: Progress = silent) -> None:
        self.name, self.dtype, self.device = name, dtype, device
        progress(f"loading {name} as {dtype} on {device}", None, None)
        self.model = self._random(seed) if name.startswith(RANDOM) else self._load()
        self.model.requires_grad_(False)
        self.model.config.use_cache = False
        self.config: Any = self.model.config

    def _random(self, seed: int) -> Any:
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(str(shape_file(self.name)))
        torch.manual_seed(seed)
        with self.device:
            return AutoModelForCausalLM.from_config(config, dtype=TYPES[self.dtype], attn_implementation="sdpa")

    def _load(self) -> Any:
        from bc250studio.models.find import find
        from bc250studio.models.load import load

        return load(find(self.name), dtype=TYPES[self.dtype], device=self.device)

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return int(self.config.get_text_config().vocab_size)

    @property
    def parameters(self) -> int:
        """Weights of the base."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def copy(self, own_weights: bool = False) -> Any:
        """New modules and buffers over the same parameter storage, or with weights of its own to train."""
        if own_weights:
            return copy.deepcopy(self.model).requires_grad_(True)
        shared: dict[int, Any] = {id(parameter): parameter for parameter in self.model.parameters()}
        twin = copy.deepcopy(self.model, shared)
        assert all(a is b for a, b in zip(twin.parameters(), self.model.parameters(), strict=True))
        return twin


def free(device: torch.device) -> None:
    """Give back what a closed side held, so that the next side's peak is its own."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


class MemoryPeak:
    """Peak memory from ``start`` on: the allocator's on a GPU, the process's resident set on a CPU.

    ``take`` gives (allocated GiB, reserved GiB or None). The resident set is sampled at 20 Hz from a
    thread; it holds the Python process and both libraries too, so compare it between sides only.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stop: Callable[[], float] | None = None

    def start(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            self._stop = _sample_resident()

    def take(self) -> tuple[float, float | None]:
        gib = float(1 << 30)
        if self._device.type == "cuda":
            allocated = torch.cuda.max_memory_allocated(self._device) / gib
            return round(allocated, 3), round(torch.cuda.max_memory_reserved(self._device) / gib, 3)
        peak = self._stop() if self._stop else 0.0
        self._stop = None
        return round(peak / gib, 3), None


def _sample_resident() -> Callable[[], float]:
    import threading

    import psutil

    process, done = psutil.Process(), threading.Event()
    peak = [float(process.memory_info().rss)]

    def run() -> None:
        while not done.wait(0.05):
            peak[0] = max(peak[0], float(process.memory_info().rss))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def stop() -> float:
        done.set()
        thread.join(timeout=5)
        return peak[0]

    return stop
