"""What a board can do at best: compute units, clock, memory, and the roofline of a matrix product.

Figures are ceilings for planning and for "share of roofline"; none is a measurement of ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from bc250studio.errors import BadInput

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
"""Bytes of one element by our name of the number type."""

LANES_PER_CU = 64
"""FP32 lanes of one RDNA compute unit; each does one fused multiply-add (2 FLOP) a clock."""

GFX1013_BANDWIDTH_GB_S = 432.0
"""Read bandwidth somebody measured on a BC-250 (akandr/bc250-rocm); 256-bit GDDR6 gives 448 on paper."""


@dataclass(frozen=True)
class Chip:
    """One GPU as a roofline.

    ``compute_units`` are CUs (not WGPs), ``clock_mhz`` the shader clock under load, ``bandwidth_gb_s``
    read bandwidth in 10^9 bytes a second.
    """

    name: str
    compute_units: int
    clock_mhz: float
    bandwidth_gb_s: float

    @property
    def peak_tflops(self) -> float:
        """FP32 peak, also the peak of 16-bit products with FP32 accumulation.

        RDNA 1 has no dot instructions (gfx1013's are gfx1010's): with FP32 accumulation the inner loop is
        ``v_fma_mix_f32`` or ``v_fma_f32``, so 16-bit inputs bring no higher peak. 40 CU at 2 GHz: 10.24.
        """
        return self.compute_units * LANES_PER_CU * 2 * self.clock_mhz * 1e6 / 1e12

    @property
    def words(self) -> str:
        """``40 CU at 2000 MHz (10.24 TFLOPS)``."""
        return f"{self.compute_units} CU at {self.clock_mhz:.0f} MHz ({self.peak_tflops:.2f} TFLOPS)"

    def bound_s(self, m: int, n: int, batch: int, k: int, dtype: str) -> float:
        """Least time in seconds of one product: arithmetic or memory, whichever takes longer.

        Each operand and the result cross memory once: flops = 2*B*M*N*K, bytes = B*(MK + KN + MN)*size.
        """
        flops = 2.0 * batch * m * n * k
        moved = batch * (m * k + k * n + m * n) * BYTES[dtype]
        return max(flops / (self.peak_tflops * 1e12), moved / (self.bandwidth_gb_s * 1e9))


def bc250(compute_units: int = 40, clock_mhz: float = 2000.0) -> Chip:
    """A BC-250 with so many units unlocked (24 stock, 40 physical) at this shader clock.

    Raises:
        BadInput: a number of units the chip cannot have, or a clock of zero.
    """
    if not 2 <= compute_units <= 40:
        raise BadInput(
            f"A BC-250 has 24 to 40 compute units, not {compute_units}; give the number your driver reports."
        )
    if clock_mhz <= 0:
        raise BadInput(f"A shader clock of {clock_mhz} MHz makes no roofline; 2000 is usual under load.")
    return Chip("gfx1013", compute_units, clock_mhz, GFX1013_BANDWIDTH_GB_S)
