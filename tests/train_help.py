"""Small models and rows for the tests of training: random weights, no files, no tokenizer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers

from bc250studio.data.rows import Rows
from bc250studio.profiles.adapter import Adapter
from bc250studio.profiles.train import Train
from bc250studio.train.engine import Trainer
from tests.tiny import FAMILIES

VOCABULARY = 300


def model_of(family: str = "llama", seed: int = 0, **overrides: Any) -> Any:
    """A random two-layer model of ``family``, frozen, fp32."""
    class_name, extra = FAMILIES[family]
    config = getattr(transformers, class_name)(
        **{
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 512,
            "tie_word_embeddings": False,
            "pad_token_id": 0,
            **extra,
            **overrides,
        }
    )
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
            elif "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.normal_(0, 0.1)
    model.requires_grad_(False)
    return model.eval()


def rows_of(lengths: list[int], prefix: int = 0, seed: int = 0, prompt: int = 3) -> Rows:
    """Random rows; the first ``prefix`` tokens are the same in all, ``prompt`` more are not labelled."""
    random = np.random.default_rng(seed)
    shared = [int(i) for i in random.integers(1, VOCABULARY, prefix)]
    rows = []
    for length in lengths:
        own = [int(i) for i in random.integers(1, VOCABULARY, length - prefix)]
        # the first own token differs from row to row, so that the shared part is exactly ``prefix`` long
        own[0] = 1 + len(rows) % (VOCABULARY - 1)
        rows.append((shared + own, [k >= max(prefix + prompt, 1) for k in range(length)]))
    return Rows.of(rows)


def trainer_of(
    model: Any, rows: Rows, sizes: str = "free", adapter: dict[str, Any] | None = None, **train: Any
) -> Trainer:
    """A trainer with small passes."""
    settings = {"tokens_per_step": 256, "tokens_per_pass": 256, "learning_rate": 1e-3, "loss_chunk": 16, **train}
    return Trainer(model, rows, Train(**settings), Adapter(**{"rank": 4, "alpha": 8.0, **(adapter or {})}), sizes=sizes)


def scatter_b(trainer: Trainer, seed: int = 0) -> None:
    """Random values in every lora_B, so that gradients of A are not zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in trainer.flat.state().items():
            if "lora_B" in name:
                value.copy_(torch.randn(value.shape, generator=generator) * 0.05)
    trainer.flat.refresh()


def row_by_row(trainer: Trainer, rows: Rows) -> tuple[float, dict[str, torch.Tensor]]:
    """Mean loss and gradients over all labelled tokens by the model's own forward, one row at a time."""
    parts = trainer.parts
    parts.attend_with(parts.own_attention)
    labelled = sum(int(labels.sum()) for _, labels in rows)
    trainer.flat.zero_gradient()
    total = 0.0
    for ids, labels in rows:
        tokens = torch.from_numpy(ids.astype(np.int64))[None]
        logits = parts.model(input_ids=tokens, use_cache=False).logits[0, :-1]
        wanted = torch.from_numpy(labels[1:].copy())
        loss = torch.nn.functional.cross_entropy(logits[wanted], tokens[0, 1:][wanted], reduction="sum") / labelled
        loss.backward()
        total += float(loss.detach())
    return total, {name: g.clone() for name, g in trainer.flat.gradients().items()}


def packed(trainer: Trainer) -> tuple[float, dict[str, torch.Tensor]]:
    """Mean loss and gradients of the first step as the engine computes them."""
    from bc250studio.train import attention

    trainer.parts.attend_with(attention.register() if trainer.sizes.kind != "padded" else trainer.parts.own_attention)
    passes = trainer.plan[0]
    labelled = trainer.feed.labelled_of([row for p in passes for row in p.rows])
    trainer.flat.zero_gradient()
    total = 0.0
    for p in passes:
        total += float(trainer.passes.forward_backward(trainer.feed.batch(p), 1.0 / labelled))
    return total / labelled, {name: g.clone() for name, g in trainer.flat.gradients().items()}


def assert_close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], relative: float) -> None:
    """Every gradient matches, relative to the largest entry of its matrix."""
    assert one.keys() == other.keys()
    for name, gradient in one.items():
        size = float(other[name].abs().max())
        difference = float((gradient - other[name]).abs().max())
        assert difference <= relative * max(size, 1e-6), f"{name}: {difference} of {size}"
