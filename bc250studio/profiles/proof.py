"""[proof]: when is what answers the thing that was trained?"""

from __future__ import annotations

from pydantic import Field

from bc250studio.profiles.base import Section


class Proof(Section):
    """[proof]"""

    tokens: int = Field(256, ge=16)
    """Held-out tokens compared."""
    max_kl: float | None = Field(None, gt=0)
    """Largest mean KL divergence in nats; empty means 0.002 on an f16 or f32 base, 0.01 on others."""
    min_top1: float = Field(0.97, ge=0.0, le=1.0)
    """Smallest share of equal first choices, where the reference's lead is over 0.1 nat."""
