"""[export]: the files that leave the run."""

from __future__ import annotations

from typing import Literal

from bc250studio.profiles.base import Section


class Export(Section):
    """[export]"""

    kind: Literal["auto", "adapter", "merged"] = "auto"
    """A small adapter beside the base, or one merged file; auto takes the adapter where it is exact."""
    quantisation: str = "auto"
    """Type of a merged file (f32, f16, bf16, q8_0, q4_k_m ...); auto keeps the base file's type."""
    adapter_type: Literal["f32", "f16", "bf16", "q8_0"] = "f32"
    """Number type inside the adapter file."""
    imatrix: str | None = None
    """Importance matrix for low-bit types."""
