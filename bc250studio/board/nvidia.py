"""Readings of an NVIDIA GPU by nvidia-ml-py, where it is installed and a driver answers."""

from __future__ import annotations

import importlib
from typing import Any

from bc250studio.board.reading import Reading, missing

MIB = 1 << 20
_SOURCE = "NVML"


class Nvml:
    """One NVIDIA GPU behind NVML. ``open`` returns None with the reason when there is none to talk to."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    @classmethod
    def open(cls, index: int = 0) -> tuple[Nvml | None, str]:
        """Load NVML and take GPU ``index``."""
        try:
            library = importlib.import_module("pynvml")
        except ImportError:
            return None, "nvidia-ml-py is not installed (pip install 'bc250studio[nvidia]')"
        try:
            library.nvmlInit()
            return cls(library, library.nvmlDeviceGetHandleByIndex(index)), ""
        except Exception as error:  # NVML raises its own family of errors, and OSError for a broken library
            return None, f"NVML does not answer: {error}"

    def name(self) -> str:
        """The GPU's product name."""
        name = self._ask("nvmlDeviceGetName")
        return name.decode() if isinstance(name, bytes) else str(name or "NVIDIA GPU")

    def capability(self) -> tuple[int, int] | None:
        """CUDA compute capability."""
        return self._ask("nvmlDeviceGetCudaComputeCapability")

    def _ask(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._library, function)(self._handle, *arguments)
        except Exception:
            return None

    def read(self) -> dict[str, Reading]:
        """Temperature, power, clock and memory now."""

        def one(value: Any, unit: str, scale: float = 1.0) -> Reading:
            if not isinstance(value, (int, float)):
                return missing(unit, "the NVIDIA driver does not say", _SOURCE)
            return Reading(value * scale, unit, _SOURCE)

        temperature = one(self._ask("nvmlDeviceGetTemperature", 0), "°C")
        if temperature.value is not None and not 0 < temperature.value < 115:
            temperature = temperature.doubted(f"NVML says {temperature.value:g} °C")
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        return {
            "gpu_temp_c": temperature,
            "gpu_power_w": one(self._ask("nvmlDeviceGetPowerUsage"), "W", 1e-3),
            "gpu_clock_mhz": one(self._ask("nvmlDeviceGetClockInfo", 1), "MHz"),
            "gpu_memory_used_mib": one(getattr(memory, "used", None), "MiB", 1 / MIB),
            "gpu_memory_total_mib": one(getattr(memory, "total", None), "MiB", 1 / MIB),
        }
