"""What the engine must know of an architecture, found by looking and by trying, never by a list of names.

Whether rows may share a pass is decided by a trial: two short rows together and alone must give the same
loss. So a model with recurrent layers, attention sinks or its own idea of a mask is recognised by what it does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bc250studio.errors import clean
from bc250studio.train import attention, layouts
from bc250studio.train.feed import Feed
from bc250studio.train.layer_kernels import triton_works
from bc250studio.train.loss import Head, head_of
from bc250studio.train.passes import forward_loss

TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""Relative difference of two losses that rounding may explain, per type of the base."""


class Parts:
    """A causal model taken apart: ``model`` (transformers'), ``body`` (up to the last norm), ``head``."""

    def __init__(self, model: Any) -> None:
        self.model = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.body = self.model.base_model
        self.head: Head = head_of(self.model, fused=triton_works(next(self.model.parameters()).device) is None)
        self.own_attention = self.model.config._attn_implementation or "eager"

    @property
    def heads(self) -> frozenset[int]:
        """Numbers of query and of key heads."""
        config = self.model.config.get_text_config()
        found = (getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads"))
        return frozenset(n for n in found if isinstance(n, int))

    @property
    def layers(self) -> list[Any]:
        """Decoder layers, in order; empty when the body keeps them elsewhere."""
        return list(getattr(self.body, "layers", []))

    def attend_with(self, name: str) -> None:
        """Which attention the layers look up: ours while packed, the model's own otherwise."""
        self.model.set_attn_implementation(name)


@torch.no_grad()
def own_losses(parts: Parts, rows: list[np.ndarray]) -> list[float]:
    """Summed cross-entropy of each row by the model's own forward and logits."""
    device = parts.head.weight.device
    sums = []
    for ids in rows:
        tokens = torch.from_numpy(ids.astype(np.int64))[None].to(device)
        logits = parts.model(input_ids=tokens, use_cache=False).logits.float()
        sums.append(float(torch.nn.functional.cross_entropy(logits[0, :-1], tokens[0, 1:], reduction="sum")))
    return sums


def why_not_packed(parts: Parts, rows: Any, way: str, sizes: layouts.Sizes) -> str | None:
    """None when two rows in one pass give the losses of the rows alone; else the reason, for the user."""
    model_type = clean(parts.model.config.model_type)
    dtype = parts.head.weight.dtype
    pieces = [np.asarray(rows.row(i)[0]) for i in range(min(len(rows), 2))]
    pieces = [piece[: 48 - 11 * i] for i, piece in enumerate([*pieces, *pieces][:2])]
    sample = _Sample(pieces)
    was_training = parts.model.training
    parts.model.eval()
    try:
        parts.attend_with(parts.own_attention)
        alone = sum(own_losses(parts, pieces))
        parts.attend_with(attention.register())
        tokens = max(sizes.tokens, int(sample.lengths.sum()) + 1)
        slots = way in ("rungs", "math", "math32")
        trial = layouts.choose(sample.lengths, tokens, sizes.kind, slots=slots)
        feed = Feed(sample, trial, way, 64, parts.heads)
        batches = [
            feed.batch(p).to(parts.head.weight.device) for p in layouts.pack(np.arange(2), sample.lengths, trial)
        ]
        if len(batches) != 1:
            return "two short rows did not fit one pass"
        together = float(forward_loss(parts.body, parts.head, batches[0], 64))
    except (RuntimeError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
        return f"{model_type} cannot use our attention: {clean(error, 160)}"
    finally:
        parts.attend_with(parts.own_attention)
        parts.model.train(was_training)
    difference = abs(together - alone) / max(abs(alone), 1e-9)
    if not difference <= TOLERANCE[dtype]:
        return (
            f"rows of {model_type} see each other when they share a pass "
            f"(loss {together:.4f} together, {alone:.4f} alone)"
        )
    return None


class _Sample:
    """Two short rows in the shape of ``data.Rows``, every token but the first labelled."""

    def __init__(self, pieces: list[np.ndarray]) -> None:
        self.lengths = np.array([len(p) for p in pieces], dtype=np.int64)
        self.offsets = np.concatenate(([0], np.cumsum(self.lengths)))
        self.ids = np.concatenate(pieces).astype(np.int32)
        self.labelled = np.ones(len(self.ids), dtype=bool)
        self.labelled[self.offsets[:-1]] = False

    def __len__(self) -> int:
        return len(self.lengths)
