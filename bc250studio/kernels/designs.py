"""Designs of a matrix kernel (tile, work group, depth) and a small model of the chip that ranks them for a size.

The model knows registers, LDS, tiles against compute units, and the share of the inner loop that multiplies.
It only decides what is worth measuring; the board decides what is fast. Limits: 256 vector registers a thread,
64 KiB of LDS a work group, wave32, no matrix and no dot instructions (gfx1013 = gfx1010 for the assembler).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from bc250studio.kernels.chip import BYTES, Chip
from bc250studio.kernels.products import Product

MOST_VGPRS = 256
LDS_BYTES = 65536
WAVE = 32
SIMDS_PER_CU = 2
L2_BYTES_PER_CLOCK = 512
"""Half of RDNA 1's 16 slices of 64 bytes: what kernels reach, not the paper."""
LEAST_K_A_SPLIT = 256
SAME_TILE = 3
"""Designs of one tile and group that may be chosen before others have had their turn."""
OTHER_VGPRS = 46
"""Addresses, loop counters and scratch besides accumulators and operands, as Tensile's assembly shows."""


@dataclass(frozen=True)
class Design:
    """One kernel: each thread computes ``tile`` elements, ``group`` threads a macro tile, ``depth`` of K at a time."""

    tile: tuple[int, int]
    group: tuple[int, int]
    depth: int
    vector: int
    split: int = 1
    mapping: int = 8

    @property
    def macro(self) -> tuple[int, int]:
        """Rows and columns of the result one work group computes."""
        return self.tile[0] * self.group[0], self.tile[1] * self.group[1]

    @property
    def threads(self) -> int:
        """Threads of a work group."""
        return self.group[0] * self.group[1]

    @property
    def name(self) -> str:
        """``128x64x16 tile 8x4 split 2``."""
        split = f" split {self.split}" if self.split > 1 else ""
        return f"{self.macro[0]}x{self.macro[1]}x{self.depth} tile {self.tile[0]}x{self.tile[1]}{split}"

    def parameters(self) -> dict[str, object]:
        """Its entry in Tensile's fork group."""
        return {
            "ThreadTile": list(self.tile),
            "WorkGroup": [*self.group, 1],
            "DepthU": self.depth,
            "VectorWidth": self.vector,
            "GlobalReadVectorWidth": self.vector,
            "GlobalSplitU": self.split,
            "WorkGroupMapping": self.mapping,
        }

    def vgprs(self, dtype: str) -> int:
        """Vector registers a thread needs: FP32 accumulators, two sets of operands, one set of loads, the rest."""
        a, b = self.tile
        size = BYTES[dtype]
        operands = 2 * math.ceil((a + b) * size / 4)
        loads = math.ceil((self.macro[0] + self.macro[1]) * self.depth * size / 4 / self.threads)
        converted = (a + b) if dtype == "bf16" else 0
        return a * b + operands + loads + converted + OTHER_VGPRS

    def lds_bytes(self, dtype: str) -> int:
        """LDS of a work group, two buffers (one is read while the other is filled), rounded to a power of two."""
        one = (self.macro[0] + self.macro[1]) * self.depth * BYTES[dtype]
        return 2 ** math.ceil(math.log2(max(one, 1))) + one

    def fault(self, dtype: str, layout: str) -> str:
        """Why this kernel cannot exist, or an empty string."""
        if self.tile[0] % self.vector or self.tile[1] % self.vector:
            return "the tile is no multiple of the vector"
        if self.threads % WAVE or not WAVE <= self.threads <= 256:
            return "the group is no whole number of waves of 32, at most 256 threads"
        if self.vgprs(dtype) > MOST_VGPRS:
            return f"{self.vgprs(dtype)} registers"
        if self.lds_bytes(dtype) > LDS_BYTES:
            return f"{self.lds_bytes(dtype)} bytes of LDS"
        if self.vector * BYTES[dtype] > 16:
            return "a load of more than four registers"
        if dtype != "fp32" and self.vector * BYTES[dtype] < 4:
            return "a 16-bit load of less than a register"
        # The rows that lie one behind the other in memory are read in vectors by whole groups of threads.
        for side, transposed in ((0, layout[0] == "T"), (1, layout[1] == "N")):
            along, across = (self.depth, self.macro[side]) if transposed else (self.macro[side], self.depth)
            if along % self.vector:
                return "a row is no multiple of the vector"
            total = along * across
            if total % (self.threads * self.vector):
                return "loads do not divide among the threads"
            lanes = along // self.vector
            if lanes > self.threads or self.threads % lanes:
                return "a row does not divide among the threads"
        return ""

    def seconds(self, product: Product, chip: Chip) -> float:
        """Estimated time of one product: rounds of tiles over the compute units, or memory, whichever is longer."""
        a, b = self.tile
        tiles = math.ceil(product.m / self.macro[0]) * math.ceil(product.n / self.macro[1]) * product.batch * self.split
        depth = math.ceil(product.k / self.split / self.depth) * self.depth
        waves = self.threads // WAVE
        resident = max(
            1, min(20 * SIMDS_PER_CU // waves, 1024 // self.vgprs(product.dtype) * SIMDS_PER_CU // max(waves, 1))
        )
        resident = min(resident, max(1, 2 * LDS_BYTES // self.lds_bytes(product.dtype)))
        # One multiply-add a lane and clock; operands come from LDS (b128 reads), 16-bit bf16 is unpacked first.
        reads = (a + b) * BYTES[product.dtype] / 16 * 2.2
        unpack = (a + b) if product.dtype == "bf16" else 0
        busy = a * b / (a * b + reads + unpack + 1.5)
        per_cu = math.ceil(tiles / chip.compute_units)
        together = min(resident, per_cu)
        hidden = min(1.0, 0.45 + 0.14 * together * waves / SIMDS_PER_CU)
        lane_s = 1 / (64 * chip.clock_mhz * 1e6)
        tile_s = self.macro[0] * self.macro[1] * depth * lane_s / (busy * hidden)
        prologue_s = 1.5e-6 * math.ceil(per_cu / together)
        compute_s = per_cu * tile_s + prologue_s
        # Every tile reads its own rows and columns through the L2 cache.
        through_l2 = tiles * (self.macro[0] + self.macro[1]) * depth * BYTES[product.dtype]
        compute_s = max(compute_s, through_l2 / (L2_BYTES_PER_CLOCK * chip.clock_mhz * 1e6))
        moved = product.bytes_held() + (product.m * product.n * product.batch * 4 * self.split if self.split > 1 else 0)
        return max(compute_s, moved / (chip.bandwidth_gb_s * 1e9)) + (4e-6 if self.split > 1 else 0)


_TILES = (
    (2, 2),
    (4, 2),
    (2, 4),
    (4, 4),
    (8, 2),
    (2, 8),
    (8, 4),
    (4, 8),
    (6, 4),
    (8, 6),
    (6, 8),
    (8, 8),
    (12, 8),
    (8, 12),
    (16, 8),
)
_GROUPS = ((8, 4), (4, 8), (8, 8), (16, 4), (4, 16), (16, 8), (8, 16), (16, 16), (32, 4), (32, 8), (8, 32))
_DEPTHS = (8, 16, 32)
_SPLITS = (1, 2, 4, 8, 16, 32)


@cache
def candidates(dtype: str, layout: str) -> tuple[Design, ...]:
    """Every design of the search space that can exist for a type and layout."""
    return tuple(design for design in _space() if not design.fault(dtype, layout))


def _space() -> Iterator[Design]:
    for tile in _TILES:
        for group in _GROUPS:
            for depth in _DEPTHS:
                for vector in (1, 2, 4, 8):
                    for split in _SPLITS:
                        yield Design(tile, group, depth, vector, split)


def choose(
    products: Sequence[Product], chip: Chip, most: int = 32, tried: frozenset[Design] = frozenset()
) -> list[Design]:
    """At most ``most`` designs for these sizes (one type, one layout), none of them ``tried``.

    Each size votes in turn, the dearest first, for its best design not yet taken; so every size has candidates and
    dear ones have the most. Designs that differ only in the vector count as one.
    """
    if not products:
        return []
    pool = [d for d in candidates(products[0].dtype, products[0].layout) if d not in tried]
    ranked: dict[int, list[Design]] = {}
    for index, product in enumerate(products):
        useful = [d for d in pool if _useful(d, product)] or pool
        best: dict[tuple[object, ...], tuple[float, Design]] = {}
        for design in useful:
            key = (design.tile, design.group, design.depth, design.split)
            time_s = design.seconds(product, chip) * (1 - 0.01 * math.log2(design.vector))
            if key not in best or time_s < best[key][0]:
                best[key] = (time_s, design)
        ranked[index] = [d for _, d in sorted(best.values(), key=lambda pair: (pair[0], pair[1].name))]
    order = sorted(range(len(products)), key=lambda i: -products[i].flops)
    chosen: dict[Design, None] = {}
    for limit in (SAME_TILE, len(pool)):
        queues = {index: list(ranked[index]) for index in order}
        while len(chosen) < most and any(queues.values()):
            for index in order:
                _vote(queues[index], chosen, limit)
                if len(chosen) >= most:
                    break
    return list(chosen)


def _vote(queue: list[Design], chosen: dict[Design, None], limit: int) -> None:
    """Take a size's best design that is new, and of whose tile and group fewer than ``limit`` are in."""
    while queue:
        design = queue.pop(0)
        alike = sum((d.tile, d.group) == (design.tile, design.group) for d in chosen)
        if design not in chosen and alike < limit:
            chosen[design] = None
            return


def _useful(design: Design, product: Product) -> bool:
    """Tensile's own rule (MinKForGSU): a kernel that splits K refuses sizes with under 256 of K for each part."""
    return design.split == 1 or product.k >= LEAST_K_A_SPLIT * design.split
