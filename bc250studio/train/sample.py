"""What the model says so far: a short greedy answer to one held-out prompt, made at every evaluation."""

from __future__ import annotations

from typing import Any

import torch

from bc250studio.models.tokenizer import Tokenizer
from bc250studio.train import attention
from bc250studio.train.engine import Trainer

NEW_TOKENS = 32
LONGEST_PROMPT = 256
"""Tokens; a sample must cost seconds, not minutes."""


class Sampler:
    """One prompt, chosen once: the first held-out chat that is short enough. ``prompt`` is None without any."""

    def __init__(self, tokenizer: Tokenizer, chats: list[list[dict[str, Any]]], thinking: bool | None) -> None:
        self.tokenizer = tokenizer
        self.prompt: str | None = None
        self.ids: list[int] = []
        for chat in chats:
            asked = chat[:-1]
            if not asked or asked[-1].get("role") == "assistant":
                continue
            ids = tokenizer.encode(tokenizer.render(asked, add_generation_prompt=True, thinking=thinking))
            if 0 < len(ids) <= LONGEST_PROMPT:
                self.prompt, self.ids = str(asked[-1].get("content") or ""), ids
                return

    @torch.no_grad()
    def answer(self, trainer: Trainer, eos_ids: list[int], new_tokens: int = NEW_TOKENS) -> str:
        """Greedy, without a cache: the model's own attention over all tokens so far. Draws no random number."""
        parts = trainer.parts
        was_training = trainer.model.training
        packed = trainer.way != "own"
        trainer.model.eval()
        ids = list(self.ids)
        try:
            if packed:
                parts.attend_with(parts.own_attention)
            for _ in range(new_tokens):
                tokens = torch.tensor([ids], device=trainer.device)
                hidden = parts.body(input_ids=tokens, use_cache=False).last_hidden_state[:, -1]
                chosen = int(parts.model.get_output_embeddings()(hidden).argmax())
                if chosen in eos_ids:
                    break
                ids.append(chosen)
        finally:
            if packed:
                parts.attend_with(attention.register())
            trainer.model.train(was_training)
        return self.tokenizer.decode(ids[len(self.ids) :])
