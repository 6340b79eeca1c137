"""``kernels plan``: one Tensile configuration per type and layout, with the designs and sizes worth measuring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bc250studio import paths
from bc250studio.kernels import designs
from bc250studio.kernels.chip import Chip
from bc250studio.kernels.designs import Design
from bc250studio.kernels.products import Product, ShapeList, distinct
from bc250studio.kernels.tensile import GFX

MOST_DESIGNS = 32
WIDEN_BELOW = 0.60
"""Shapes under this share of their roofline get a second, wider pass."""
LEAST_SHARE = 1e-6
ASSEMBLY_S = 1.0
"""Host seconds to write and assemble one kernel on a few slow cores."""
CHECK_S = 0.1
WINDOW_S = 0.03

DATA_TYPES = {"fp32": ("s", "s", "s", False), "fp16": ("h", "h", "s", True), "bf16": ("b", "b", "s", True)}


@dataclass(frozen=True)
class Part:
    """One Tensile run: a type, a layout, the sizes and the designs."""

    dtype: str
    layout: str
    products: tuple[Product, ...]
    designs: tuple[Design, ...]
    number: int = 1

    @property
    def name(self) -> str:
        """``fp16-tn``, or ``fp16-tn-2`` for a second pass."""
        return f"{self.dtype}-{self.layout.lower()}" + (f"-{self.number}" if self.number > 1 else "")

    def seconds(self, chip: Chip) -> float:
        """Estimated time: assembly of every design, then each design over each size."""
        runs = 0.0
        for product in self.products:
            for design in self.designs:
                runs += max(WINDOW_S, 12 * design.seconds(product, chip)) + CHECK_S
        return ASSEMBLY_S * len(self.designs) + runs


@dataclass
class Plan:
    """Parts in the order they are run, and what was left out."""

    model: str
    chip: Chip
    parts: list[Part]
    left_out: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON and the table."""
        return {
            "model": self.model,
            "chip": self.chip.words,
            "seconds": sum(part.seconds(self.chip) for part in self.parts),
            "left_out": self.left_out,
            "parts": [
                {
                    "name": part.name,
                    "sizes": [[p.m, p.n, p.batch, p.k] for p in part.products],
                    "designs": [d.name for d in part.designs],
                    "seconds": part.seconds(self.chip),
                }
                for part in self.parts
            ],
        }


def plan(shapes: ShapeList, chip: Chip, most: int = MOST_DESIGNS) -> Plan:
    """Parts for everything in the list that Tensile can tune; what the run never uses is not in the list at all."""
    total = shapes.flops or 1
    parts: list[Part] = []
    left_out: list[str] = []
    by_class: dict[tuple[str, str], list[Product]] = {}
    for product in distinct(shapes.products):
        if product.layout == "TT":
            left_out.append(f"{product.name}: layout TT is left to the fallback")
        elif product.flops / total < LEAST_SHARE:
            left_out.append(f"{product.name}: under a millionth of the work")
        else:
            by_class.setdefault((product.dtype, product.layout), []).append(product)
    for (dtype, layout), products in by_class.items():
        kept, clash = _one_batch(products)
        left_out += clash
        parts.append(Part(dtype, layout, tuple(kept), tuple(designs.choose(kept, chip, most))))
    return Plan(shapes.model, chip, parts, left_out)


def widen(
    first: Plan, measured: Mapping[str, Mapping[tuple[int, int, int, int], float]], most: int = MOST_DESIGNS
) -> Plan:
    """A second pass over the shapes that stayed under 60 % of roofline, with designs not tried before.

    ``measured``: part name -> (M, N, B, K) -> best GFLOPS.
    """
    parts = []
    for part in first.parts:
        slow = []
        for product in part.products:
            best = measured.get(part.name, {}).get((product.m, product.n, product.batch, product.k))
            bound_s = first.chip.bound_s(product.m, product.n, product.batch, product.k, product.dtype)
            roofline = product.flops / product.count / bound_s / 1e9
            if best is not None and best < WIDEN_BELOW * roofline:
                slow.append(product)
        if slow:
            more = designs.choose(slow, first.chip, most, frozenset(part.designs))
            parts.append(Part(part.dtype, part.layout, tuple(slow), tuple(more), part.number + 1))
    return Plan(first.model, first.chip, parts)


def config(part: Part, schedule: str, kernel_time: bool = True) -> dict[str, Any]:
    """The Tensile configuration of a part (field names: research note on Tensile 4.44, docs/kernels.md).

    ``kernel_time``: device events, or the host's clock over at least a hundred enqueues where events lie.
    """
    data, destination, compute, accumulate = DATA_TYPES[part.dtype]
    return {
        "GlobalParameters": {
            "MinimumRequiredVersion": "4.9.0",
            "Architecture": GFX,
            "PerformanceMetric": "DeviceEfficiency",
            "HardwareMonitor": False,
            "KernelTime": kernel_time,
            "PreciseKernelTime": True,
            "NumBenchmarks": 1,
            "NumWarmups": 1,
            "SyncsPerBenchmark": 1,
            "EnqueuesPerSync": 10 if kernel_time else 100,
            "SleepPercent": 50,
            "NumElementsToValidate": 128,
            "ExitOnFails": 0,
            "DataInitTypeAB": 3,
            "DataInitTypeC": 3,
            "DataInitTypeAlpha": 1,
            "DataInitTypeBeta": 0,
            "CEqualD": True,
            "PristineOnGPU": False,
            "CSVExportWinner": False,
            "CSVMergeSameProblemID": False,
            "PrintSolutionRejectionReason": True,
            "ForceRedoBenchmarkProblems": False,
            "ForceRedoLibraryLogic": True,
            "ShortNames": False,
        },
        "BenchmarkProblems": [
            [
                {
                    "OperationType": "GEMM",
                    "DataType": data,
                    "DestDataType": destination,
                    "ComputeDataType": compute,
                    "HighPrecisionAccumulate": accumulate,
                    "TransposeA": part.layout[0] == "T",
                    "TransposeB": part.layout[1] == "T",
                    "UseBeta": True,
                    "Batched": True,
                    "StridedBatched": True,
                },
                {
                    "InitialSolutionParameters": None,
                    "BenchmarkCommonParameters": [
                        {"KernelLanguage": ["Assembly"]},
                        {"WavefrontSize": [designs.WAVE]},
                        {"EdgeType": ["ShiftPtr"]},
                        {"LoopTail": [True]},
                        {"PrefetchGlobalRead": [1]},
                        {"PrefetchLocalRead": [1]},
                        {"StaggerU": [32]},
                        {"ExpandPointerSwap": [False]},
                        {"GlobalSplitUAlgorithm": ["SingleBuffer"]},
                    ],
                    "ForkParameters": [{"Groups": [[design.parameters() for design in part.designs]]}],
                    "BenchmarkForkParameters": None,
                    "JoinParameters": None,
                    "BenchmarkJoinParameters": None,
                    "BenchmarkFinalParameters": [
                        {"ProblemSizes": [{"Exact": [p.m, p.n, p.batch, p.k]} for p in part.products]}
                    ],
                },
            ]
        ],
        "LibraryLogic": {
            "ScheduleName": schedule,
            "DeviceNames": ["Device 13fe"],
            "ArchitectureName": GFX,
        },
    }


def write(found: Plan, folder: Path, schedule: str, kernel_time: bool = True) -> list[Path]:
    """One ``PART.yaml`` a part in ``folder``."""
    paths.private_dir(folder)
    files = []
    for part in found.parts:
        file = folder / f"{part.name}.yaml"
        text = yaml.safe_dump(config(part, schedule, kernel_time), sort_keys=False, default_flow_style=None, width=118)
        paths.write_atomic(file, f"# {part.name}: written by bc250studio kernels plan for {found.model}\n{text}")
        files.append(file)
    return files


def _one_batch(products: Sequence[Product]) -> tuple[list[Product], list[str]]:
    """Nearest-size tables know no batch count: of sizes that differ in it alone, the dearest is tuned."""
    kept: dict[tuple[int, int, int], Product] = {}
    clash = []
    for product in sorted(products, key=lambda p: -p.flops):
        key = (product.m, product.n, product.k)
        if key in kept:
            clash.append(f"{product.name}: the kernel of batch {kept[key].batch} serves it")
        else:
            kept[key] = product
    return list(kept.values()), clash
