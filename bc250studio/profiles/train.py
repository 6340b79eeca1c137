"""[train]: the steps."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bc250studio.profiles.base import Section


class Train(Section):
    """[train]"""

    epochs: float = Field(3.0, gt=0)
    """Times every row is seen; ignored when `steps` is given."""
    steps: int | None = Field(None, ge=1)
    """Optimiser steps; empty follows from `epochs`."""
    tokens_per_step: int = Field(2048, ge=16)
    """Positions that go into one optimiser step (several passes when larger than `tokens_per_pass`)."""
    tokens_per_pass: int = Field(2048, ge=16)
    """Positions that go through the model at once; memory follows it."""
    learning_rate: float = Field(2e-4, gt=0)
    """Peak learning rate."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the learning rate falls after the warm-up."""
    warmup: float = Field(0.05, ge=0.0, lt=1.0)
    """Share of the steps in which the learning rate rises."""
    weight_decay: float = Field(0.0, ge=0.0)
    """AdamW's weight decay."""
    clip: float = Field(1.0, ge=0.0)
    """Largest gradient norm; 0 turns clipping off."""
    seed: int = 0
    """Order of the rows, adapter start values, dropout."""
    eval_every: int = Field(0, ge=0)
    """Steps between evaluations; 0 evaluates before and after only."""
    checkpoint_every: int = Field(100, ge=0)
    """Steps between checkpoints; 0 writes the last one only."""
    keep_checkpoints: int = Field(2, ge=1)
    """How many checkpoints stay on disk beside the best one."""
    early_stop_patience: int = Field(0, ge=0)
    """Stop after this many evaluations without a better loss; 0 never stops early."""
    early_stop_min_delta: float = Field(0.0, ge=0.0)
    """How much lower the loss must be to count as better."""
    memory_budget_gib: float | None = Field(None, gt=0)
    """Device memory the run may use; empty takes what the device has."""
    recompute: Literal["auto", "none", "light", "layer"] = "auto"
    """What is computed again in the backward pass to save memory."""
    attention: Literal["auto", "math16", "math32", "flash", "varlen"] = "auto"
    """Which attention kernel."""
    packing: bool = True
    """Several rows in one pass, without padding and without seeing each other."""
    graph: Literal["auto", "off"] = "auto"
    """Record a pass once as a device graph and replay it."""
    loss_chunk: int = Field(1024, ge=16)
    """Labelled positions whose logits exist at the same time."""
    layer_kernels: Literal["auto", "own", "liger", "off"] = "auto"
    """Norm, rotary and gated activation: Liger's where Triton works, our own light ones, or the model's."""
    allow_bf16_full: bool = False
    """Full training with bf16 weights although small updates are lost."""
    device_memory_fraction: float | None = Field(None, gt=0, le=1)
    """Cap of the caching allocator as a share of the device; empty follows `memory_budget_gib`."""
