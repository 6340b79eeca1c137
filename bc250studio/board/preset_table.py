"""Chip presets as data: one row a family, each with the address its facts come from and whether we measured it.

Board notes = what owners of a BC-250 published, gathered for this product; "measured" means by us, on that
chip, with a record in docs/performance.md. docs/board.md's table is generated from these rows
(``python -m bc250studio.board.presets --write docs/board.md``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Variable:
    """An environment variable for the runner. ``required`` overrides what the user has set (and says so)."""

    name: str
    value: str
    why: str
    required: bool = False


@dataclass(frozen=True)
class Preset:
    """One chip family. ``gfx`` holds the instruction-set names it covers (AMD)."""

    name: str
    title: str
    gfx: tuple[str, ...]
    precision: Literal["fp16", "bf16", "fp32"]
    attention: str
    serve: str
    throttle_c: float
    source: str
    measured: bool = False
    environment: tuple[Variable, ...] = ()
    forbidden: dict[str, str] = field(default_factory=dict)
    """Variables that must not be set for the runner -> why."""
    capabilities: tuple[str, ...] = ()
    """What the llama.cpp build must have: its backend."""
    refusals: tuple[str, ...] = ()
    """What is known not to work, or is refused."""
    apu: bool = False
    """CPU and GPU share one memory and one heat."""


_ROCM = "https://github.com/ROCm/TheRock/blob/main/SUPPORTED_GPUS.md"
_NO_LT = Variable("TORCH_BLAS_PREFER_HIPBLASLT", "0", "hipBLASLt has no kernels for this chip")
_OVERRIDE = "swaps the code object for another chip's without adding its instructions"

PRESETS: tuple[Preset, ...] = (
    Preset(
        "gfx1013",
        "AMD BC-250 (Cyan Skillfish)",
        ("gfx1013",),
        "fp16",
        "math16",
        "Vulkan (RADV)",
        85.0,
        "https://github.com/akandr/bc250-rocm",
        environment=(
            Variable("HSA_ENABLE_SDMA", "0", "copies over 16,384 bytes never finish otherwise", required=True),
            Variable("TORCH_BLAS_PREFER_HIPBLASLT", "0", "hipBLASLt does not exist for this chip", required=True),
        ),
        forbidden={
            "HSA_OVERRIDE_GFX_VERSION": "10.1.0 works only for tiny kernels, 10.3.0 and 11.0.0 fault on a BC-250"
        },
        capabilities=("vulkan",),
        refusals=(
            "any HSA_OVERRIDE_GFX_VERSION",
            "llama.cpp HIP with flash attention (host and device disagree on the tile shape)",
            "flash and memory-efficient attention, Composable Kernel, RCCL, bitsandbytes: not built for it",
            "serving while training: two models at once are 4 times slower",
            "a hot start: benches begin below 55 °C",
        ),
        apu=True,
    ),
    Preset(
        "rdna1",
        "RDNA 1 (RX 5000)",
        ("gfx1010", "gfx1011", "gfx1012"),
        "fp16",
        "math16",
        "Vulkan (RADV)",
        100.0,
        _ROCM,
        environment=(_NO_LT,),
        capabilities=("vulkan",),
        refusals=("hipBLASLt, rocWMMA, Composable Kernel", "an override to gfx1030 where torch has native kernels"),
    ),
    Preset(
        "rdna2",
        "RDNA 2 (RX 6000, Van Gogh, Rembrandt)",
        ("gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036"),
        "fp16",
        "math16",
        "Vulkan (RADV) or HIP",
        100.0,
        _ROCM,
        environment=(_NO_LT,),
        capabilities=("vulkan",),
        refusals=("hipBLASLt", "ROCm 7.x compiler crash on gfx1030: llama.cpp #27275"),
    ),
    Preset(
        "rdna3",
        "RDNA 3 (RX 7000, Phoenix)",
        ("gfx1100", "gfx1101", "gfx1102", "gfx1103"),
        "bf16",
        "flash",
        "Vulkan (RADV) or HIP",
        100.0,
        _ROCM,
        capabilities=("vulkan",),
    ),
    Preset(
        "rdna3.5",
        "RDNA 3.5 (Strix Point, Strix Halo)",
        ("gfx1150", "gfx1151", "gfx1152", "gfx1153"),
        "bf16",
        "math16",
        "Vulkan (RADV) or HIP",
        95.0,
        "https://github.com/kyuz0/amd-strix-halo-llm-finetuning",
        environment=(
            Variable(
                "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL", "1", "flash attention on gfx115x is behind this switch"
            ),
        ),
        capabilities=("vulkan",),
        refusals=(
            f"an override: gfx1151 is native in ROCm 7, and an override only {_OVERRIDE}",
            "wrong logits without a crash on HIP gfx1150/1151: llama.cpp #28211",
            "vLLM #46186",
        ),
        apu=True,
    ),
    Preset(
        "rdna4",
        "RDNA 4 (RX 9000)",
        ("gfx1200", "gfx1201"),
        "bf16",
        "flash",
        "Vulkan (RADV) or HIP",
        100.0,
        _ROCM,
        capabilities=("vulkan",),
    ),
    Preset(
        "gfx906",
        "Vega 20 (MI50, MI60, Radeon VII)",
        ("gfx906",),
        "fp16",
        "math16",
        "Vulkan (RADV), or HIP from b10929",
        100.0,
        _ROCM,
        environment=(_NO_LT,),
        capabilities=("vulkan",),
        refusals=(
            "hipBLASLt",
            "bitsandbytes wheels: invalid device function",
            "builds are published, nobody checks them",
        ),
    ),
    Preset(
        "cdna",
        "CDNA (MI100, MI200, MI300)",
        ("gfx908", "gfx90a", "gfx940", "gfx941", "gfx942", "gfx950"),
        "bf16",
        "flash",
        "HIP with MFMA",
        100.0,
        _ROCM,
        capabilities=("hip",),
        refusals=("Vulkan: these cards have no graphics queue",),
    ),
    Preset(
        "nvidia",
        "NVIDIA",
        (),
        "bf16",
        "flash",
        "Vulkan or CUDA",
        85.0,
        "https://pytorch.org/get-started/locally/",
        measured=True,
        capabilities=("vulkan",),
    ),
    Preset(
        "cpu",
        "CPU only",
        (),
        "fp32",
        "math32",
        "CPU",
        95.0,
        "https://pytorch.org/get-started/locally/",
        measured=True,
    ),
)
