"""The recipes a training bench compares against, built from PEFT as their users would build them.

`reference`: PEFT as it comes, layer checkpointing, the model's own loss, padded batches of 4.
`plain`: the same without recomputing. `post`: the reference post's fastest recipe: padded by 8 in
file order, layer checkpointing, loss in checkpointed chunks of 1,024 labelled positions. All: LoRA
r=16, alpha 32 on all linears, fp32 adapters, fused AdamW, gradients clipped at 1. With ``--kind full``
the same three without PEFT: every weight is trained, by plain transformers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from bc250studio.bench.protocol import Turn
from bc250studio.bench.recipes_model import Base, MemoryPeak, free

if TYPE_CHECKING:
    from bc250studio.data.rows import Rows

RANK, ALPHA, CLIP = 16, 32.0, 1.0
LEARNING_RATE = {"lora": 2e-4, "full": 2e-5}
LOSS_SCALE = 2.0**10
"""Static scale of fp16 losses; the baselines need no search for it, which favours them."""


@dataclass(frozen=True)
class Recipe:
    """One way to take a LoRA step with PEFT."""

    name: str
    batch: int
    checkpointing: bool
    loss: str
    """``model``: logits of all positions, the model's own loss; ``chunks``: labelled positions, checkpointed chunks."""
    chunk: int = 1024

    def words(self, kind: str = "lora") -> str:
        """One line for tables."""
        loss = "the model's own loss" if self.loss == "model" else f"checkpointed loss chunks of {self.chunk:,}"
        whose = "PEFT" if kind == "lora" else "transformers"
        again = "layer checkpointing" if self.checkpointing else "no recompute"
        return f"{whose}, padded by {self.batch}, {again}, {loss}"


RECIPES = {
    "reference": Recipe("reference", batch=4, checkpointing=True, loss="model"),
    "plain": Recipe("plain", batch=4, checkpointing=False, loss="model"),
    "post": Recipe("post", batch=8, checkpointing=True, loss="chunks"),
}


def chunked_loss(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, chunk: int) -> torch.Tensor:
    """Summed cross-entropy of ``hidden`` [n, d] against ``labels`` [n]; each chunk's logits remade in backward."""
    from torch.utils.checkpoint import checkpoint

    def part(h: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy((h @ w.t()).float(), y, reduction="sum")

    total = torch.zeros((), device=hidden.device)
    for start in range(0, labels.numel(), chunk):
        end = start + chunk
        total = total + checkpoint(part, hidden[start:end], weight, labels[start:end], use_reentrant=False)
    return total


class PeftSide:
    """A PEFT recipe as a side of the protocol. Not thread-safe; open, use, close."""

    def __init__(
        self,
        recipe: Recipe,
        base: Base,
        rows: Rows,
        full_rows: bool,
        seed: int = 0,
        warmup_steps: int = 2,
        math_only: bool = False,
        kind: str = "lora",
    ) -> None:
        self.recipe, self.base, self.rows, self.seed, self.warmup_steps = recipe, base, rows, seed, warmup_steps
        # Full rows: one row a step, as the post measured them.
        self.batch = 1 if full_rows else recipe.batch
        self.name = recipe.name
        self.math_only, self.kind = math_only, kind
        self.model: Any = None
        self._memory = MemoryPeak(base.device)

    def words(self) -> str:
        return self.recipe.words(self.kind) + (", attention by torch's math kernel" if self.math_only else "")

    @contextmanager
    def _attention(self) -> Iterator[None]:
        """Every fused attention off where the regime has none; 16 bits stay 16 bits, as in the post."""
        if not self.math_only:
            yield
            return
        from torch.nn.attention import SDPBackend, sdpa_kernel

        before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
        try:
            with sdpa_kernel([SDPBackend.MATH]):
                yield
        finally:
            torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)

    def open(self) -> None:
        """Build model and optimiser."""
        free(self.base.device)
        self._memory.start()
        full = self.kind == "full"
        self.model = self.base.copy(own_weights=True) if full else peft_model(self.base, self.seed)
        if self.recipe.checkpointing:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            self.model.enable_input_require_grads()
        self.model.train()
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimiser = torch.optim.AdamW(self.parameters, lr=LEARNING_RATE[self.kind], weight_decay=0.0, fused=True)
        self.scale = LOSS_SCALE if self.base.dtype == "fp16" else 1.0

    def close(self) -> None:
        self.model = self.optimiser = None
        self.parameters = []
        free(self.base.device)

    def _batch(self, indices: Sequence[int]) -> tuple[dict[str, torch.Tensor], list[int], list[int]]:
        """Rows padded to the longest: inputs on the device, flat labelled positions and their labels."""
        parts = [self.rows.row(index) for index in indices]
        longest = max(len(ids) for ids, _ in parts)
        ids = torch.zeros(len(parts), longest, dtype=torch.long)
        labels = torch.full((len(parts), longest), -100, dtype=torch.long)
        mask = torch.zeros(len(parts), longest, dtype=torch.long)
        where: list[int] = []
        wanted: list[int] = []
        for number, (row, labelled) in enumerate(parts):
            tokens = torch.from_numpy(row.astype("int64"))
            ids[number, : len(row)] = tokens
            mask[number, : len(row)] = 1
            keep = torch.from_numpy(labelled.astype("bool"))
            labels[number, : len(row)] = torch.where(keep, tokens, -100)
            positions = keep.nonzero()[:, 0]
            where.extend((number * longest + positions - 1).tolist())
            wanted.extend(tokens[positions].tolist())
        device = self.base.device
        inputs = {"input_ids": ids.to(device), "labels": labels.to(device), "attention_mask": mask.to(device)}
        return inputs, where, wanted

    def _loss(self, indices: Sequence[int]) -> tuple[torch.Tensor, int]:
        """Mean loss over the labelled positions of these rows, and how many they are."""
        inputs, where, wanted = self._batch(indices)
        if self.recipe.loss == "model":
            return self.model(**inputs).loss, len(where)
        inner = self.model if self.kind == "full" else self.model.base_model.model
        out = inner.model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        hidden = out.last_hidden_state
        flat = hidden.reshape(-1, hidden.shape[-1])
        device = self.base.device
        chosen = flat.index_select(0, torch.tensor(where, device=device))
        labels = torch.tensor(wanted, device=device)
        total = chunked_loss(chosen, inner.get_output_embeddings().weight, labels, self.recipe.chunk)
        return total / max(len(wanted), 1), len(where)

    def _step(self, groups: Sequence[Sequence[int]]) -> torch.Tensor:
        """One optimiser step over ``groups`` (batches); returns the mean loss over their labelled positions."""
        counts = [sum(int(self.rows.row(index)[1].sum()) for index in group) for group in groups]
        total = torch.zeros((), device=self.base.device)
        for group, count in zip(groups, counts, strict=True):
            share = count / sum(counts)
            with self._attention():
                loss, _ = self._loss(group)
                (loss * (share * self.scale)).backward()
            total += loss.detach().float() * share
        if self.scale != 1.0:
            torch._foreach_mul_([parameter.grad for parameter in self.parameters], 1.0 / self.scale)
        torch.nn.utils.clip_grad_norm_(self.parameters, CLIP)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return total

    def batches(self, indices: Sequence[int]) -> list[list[int]]:
        """Rows in the order given, cut into batches."""
        return [list(indices[start : start + self.batch]) for start in range(0, len(indices), self.batch)]

    def equal_steps(self, groups: Sequence[Sequence[int]]) -> list[float]:
        """One optimiser step a group of rows, in padded batches; the loss of each group before its step."""
        return [float(self._step(self.batches(group))) for group in groups]

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Launch operation by operation: a PEFT recipe always does."""
        yield

    def evaluate(self, indices: Sequence[int]) -> float:
        """Mean loss over the labelled positions of these rows, without a step."""
        total, count = 0.0, 0
        self.model.eval()
        with torch.no_grad(), self._attention():
            for group in self.batches(indices):
                loss, labelled = self._loss(group)
                total, count = total + float(loss) * labelled, count + labelled
        self.model.train()
        return total / count

    def warm_up(self, indices: Sequence[int]) -> None:
        """A few steps outside the clock, on the longest batches, which fixes the allocator's pools.

        A CPU has no pools: one step on the shortest batch loads its libraries.
        """
        by_length = sorted(self.batches(indices), key=lambda group: -max(len(self.rows.row(i)[0]) for i in group))
        chosen = (by_length * self.warmup_steps)[: self.warmup_steps]
        if self.base.device.type == "cpu":
            chosen = by_length[-1:]
        for group in chosen:
            self._step([group])

    def turn(self, indices: Sequence[int]) -> Turn:
        """Train once over these rows: batches made, moved and stepped inside the clock."""
        batches = self.batches(indices)
        lengths = [[len(self.rows.row(index)[0]) for index in group] for group in batches]
        labelled = sum(int(self.rows.row(index)[1].sum()) for index in indices)
        losses: list[torch.Tensor] = []
        synchronise(self.base.device)
        start, cpu = time.perf_counter(), time.process_time()
        for group in batches:
            losses.append(self._step([group]))
        synchronise(self.base.device)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        peak, reserved = self._memory.take()
        self._memory.start()
        return Turn(
            seconds=seconds,
            cpu_seconds=cpu,
            steps=len(batches),
            all_positions=sum(max(group) * len(group) for group in lengths),
            real_tokens=sum(sum(group) for group in lengths),
            labelled_tokens=labelled,
            peak_gib=peak,
            reserved_gib=reserved,
            first_loss=float(losses[0]),
            last_loss=float(losses[-1]),
        )


def peft_model(base: Base, seed: int) -> Any:
    """PEFT's LoRA on all linears over the shared base, adapters in fp32, started from ``seed``."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", lora_dropout=0.0, task_type="CAUSAL_LM")
    model = get_peft_model(base.copy(), config)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return model


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
