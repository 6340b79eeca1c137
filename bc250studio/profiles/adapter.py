"""[adapter]: what is trained on top of the frozen base."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bc250studio.profiles.base import Section


class Adapter(Section):
    """[adapter]"""

    kind: Literal["lora", "full"] = "lora"
    """A LoRA adapter, or all weights of the model."""
    rank: int = Field(16, ge=1, le=1024)
    """Rank of the two small matrices beside each linear layer."""
    alpha: float = Field(32.0, gt=0)
    """Scale of the adapter: alpha / rank (alpha / sqrt(rank) with rslora)."""
    dropout: float = Field(0.0, ge=0.0, lt=1.0)
    """Share of the adapter's input dropped while training."""
    targets: str | list[str] = "all-linear"
    """Layers that get an adapter: `all-linear` or a list of names such as ["q_proj", "v_proj"]."""
    rslora: bool = False
    """Rank-stabilised scale."""
    dora: bool = False
    """DoRA: trains magnitudes too. It cannot be served as an adapter, only merged."""
    rank_pattern: dict[str, int] = Field(default_factory=dict)
    """Another rank for layers whose name matches."""
    alpha_pattern: dict[str, float] = Field(default_factory=dict)
    """Another alpha for layers whose name matches."""
    modules_to_save: list[str] = Field(default_factory=list)
    """Whole modules trained and stored beside the adapter. Cannot be served as an adapter."""
    start_from: str | None = None
    """Go on from an earlier adapter: its folder, or a run's name."""
