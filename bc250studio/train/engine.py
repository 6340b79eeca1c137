"""The training loop, top to bottom.

    plan    which rows go into which pass of which step is known before the first step (layouts.py)
    feed    a pass becomes tensors: ids, positions, row borders, labelled positions (feed.py)
    pass    the model's own layers over packed rows, loss in chunks, gradients back (passes.py)
    step    unscale, clip, AdamW, cast (optimiser.py)

Types, and why:
    base weights, activations   fp32 on the CPU, fp16 on gfx1013 (its bf16 is emulated), bf16 elsewhere
    adapter weights, AdamW      fp32: an update of 1e-4 of a weight vanishes in 16 bits
    their copy for products     the base's type, made once a step: no activation is ever converted
    gradients of adapters       products in the base's type, summed in fp32 over passes
    logits, softmax, loss       fp32: sums over a vocabulary
    fp16 gradients              scaled by a power of two that follows overflow (LossScale)

``Trainer`` knows no job folder: model, rows and settings in, steps out. The runner adds files, thermal
pauses and control; the bench adds timing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from bc250studio.errors import BadInput, clean
from bc250studio.train import adapters, attention, layer_kernels, layouts, recompute, schedule
from bc250studio.train.families import Parts, why_not_packed
from bc250studio.train.feed import Batch, Feed, shared_prefix
from bc250studio.train.graph import Passes
from bc250studio.train.optimiser import Optimiser
from bc250studio.train.parameters import FlatParameters
from bc250studio.train.passes import forward_loss, hidden_states

_T = TypeVar("_T")

SLOTTED = ("rungs", "math", "math32")
"""Ways of attention that gather rows into slots."""


@dataclass(frozen=True)
class Step:
    """One optimiser step, done. ``loss``: mean over its labelled tokens, before the update; ``number`` from 1.

    ``seconds`` covers feeding, passes and update; evaluation, saving and pausing lie between steps. The three
    counts divided by ``seconds`` are the three rates.
    """

    number: int
    of: int
    epoch: float
    loss: float
    learning_rate: float
    gradient_norm: float
    all_positions: int
    real_tokens: int
    labelled_tokens: int
    seconds: float
    skipped: bool
    rows: tuple[int, ...]


class Trainer:
    """Model + rows + settings -> steps.

    ``model``: a frozen transformers causal model from ``models.load`` (it is changed in place). ``rows``:
    ``data.Rows``. ``train``, ``adapter``: the profile's sections. ``sizes``: ``fixed`` (GPU) or ``free`` (CPU),
    None chooses by device. ``recompute_plan``: a word per layer, for a run that goes on with a lighter plan.
    ``note`` is told in a sentence what was decided and why.
    """

    def __init__(
        self,
        model: Any,
        rows: Any,
        train: Any,
        adapter: Any,
        *,
        start_from: Path | None = None,
        sizes: str | None = None,
        recompute_plan: list[str] | None = None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.train, self.rows, self.note = train, rows, note
        self.base_dtype: torch.dtype = model.get_output_embeddings().weight.dtype
        self.device: torch.device = model.get_output_embeddings().weight.device
        self.full = adapter.kind == "full"
        if self.full:
            if self.base_dtype is not torch.float32 and not train.allow_bf16_full:
                raise BadInput(
                    "Full training in 16 bits loses small updates; set model.precision to fp32, "
                    "or train.allow_bf16_full if you accept that."
                )
            model.requires_grad_(True)
            self.model = model
        else:
            self.model = adapters.attach(model, adapter, train.seed, start_from)
        self.parts = Parts(self.model)
        self.flat = FlatParameters(self.model, self.base_dtype)
        self.recompute = recompute.choose(train.recompute, len(self.parts.layers), self.device)
        self.kernels = layer_kernels.install(self.model, train.layer_kernels, self.device)
        self.dropout = adapter.dropout > 0 and not self.full
        recompute.apply(self.parts.layers, self.recompute, self.dropout)
        self.tokens = min(train.tokens_per_pass, train.tokens_per_step)
        self.way, self.sizes = self._choose_sizes(rows, sizes, adapter)
        self.feed = Feed(rows, self.sizes, self.way, train.loss_chunk, self.parts.heads)
        self.plan = layouts.steps(
            self.feed.lengths,
            self.sizes,
            max(1, train.tokens_per_step // self.tokens),
            train.seed,
            train.epochs,
            train.steps,
        )
        self._ready: tuple[Any, list[Batch]] | None = None
        self.optimiser = Optimiser(
            self.flat, train.weight_decay, train.clip, fp16=self.base_dtype is torch.float16 and not self.full
        )
        self.passes = Passes(
            self.parts.body,
            self.parts.head,
            self.flat,
            train.loss_chunk,
            train.graph,
            self.sizes.kind == "fixed",
            note,
        )
        self.done = 0
        """Optimiser steps behind us: with the seed, all there is to say about where in the data we are."""
        if recompute_plan is not None:
            self._recompute_by(recompute_plan)
        elif train.recompute == "auto" and self.device.type == "cuda" and recompute.has_budget(train):
            self._recompute_by(self._fitting_plan())

    # -- the loop ----------------------------------------------------------------------------------------------

    def steps(self) -> Iterator[Step]:
        """Train from ``done`` to the end of the plan, one ``Step`` at a time.

        Between two steps the caller may evaluate, save, pause or stop; the model is in training mode again
        for the next one.
        """
        if self.device.type == "cuda":
            self._within_memory(self._warm_up)
        while self.done < len(self.plan):
            yield self.step()

    def _warm_up(self) -> None:
        """Compile kernels and record device graphs of every layout to come, outside any step's time."""
        first = {p.layout: p for step in reversed(self.plan[self.done :]) for p in step}
        # Dropout in the warm-up must not move the random numbers of the run: resuming would draw others.
        with torch.random.fork_rng(devices=[self.device]):
            self.model.train()
            for planned in first.values():
                self.passes.warm_up(self.feed.batch(planned).to(self.device))

    def step(self) -> Step:
        """One optimiser step. When memory runs out, the next recompute plan takes the same rows again.

        Raises:
            OutOfMemory: no plan is left, or (ROCm) memory that was freed must not be used again in this process.
        """
        return self._within_memory(self._step)

    def _step(self) -> Step:
        started = time.perf_counter()
        self.model.train()
        passes = self.plan[self.done]
        rows = tuple(row for p in passes for row in p.rows)
        # Every labelled token of the step weighs the same, however its rows fell into passes.
        labelled = self.feed.labelled_of(rows)
        rate = schedule.learning_rate(
            self.done, len(self.plan), self.train.learning_rate, self.train.schedule, self.train.warmup
        )
        self.flat.zero_gradient()
        loss = torch.zeros((), dtype=torch.float32, device=self.device)
        positions = real = 0
        for batch in self._batches(passes):
            loss += self.passes.forward_backward(batch, self.optimiser.scale.value / max(labelled, 1))
            positions += batch.all_positions
            real += batch.real_tokens
        queued = self.optimiser.queue(rate, loss / max(labelled, 1))
        self.done += 1
        if self.device.type == "cuda" and self.done < len(self.plan):
            # While the device works on this step, the host makes the next one ready.
            self._ready = (self.plan[self.done], list(self._batches(self.plan[self.done])))
        outcome = self.optimiser.read(queued)  # the one place where the host waits
        return Step(
            number=self.done,
            of=len(self.plan),
            epoch=self._epochs() * self.done / len(self.plan),
            loss=outcome.loss,
            learning_rate=rate,
            gradient_norm=outcome.norm,
            all_positions=positions,
            real_tokens=real,
            labelled_tokens=labelled,
            seconds=time.perf_counter() - started,
            skipped=outcome.skipped,
            rows=rows,
        )

    def steps_per_epoch(self) -> int:
        """Optimiser steps in which every row is seen once, whatever the plan's own length."""
        passes = max(1, self.train.tokens_per_step // self.tokens)
        return len(layouts.steps(self.feed.lengths, self.sizes, passes, self.train.seed, 1.0, None))

    def _epochs(self) -> float:
        """Times the plan takes the rows."""
        known = self.__dict__.get("_counted")
        if known is None or known[0] is not self.plan:
            rows = sum(len(p.rows) for step in self.plan for p in step)
            known = self.__dict__["_counted"] = (self.plan, rows / max(len(self.feed.lengths), 1))
        return float(known[1])

    def _batches(self, passes: tuple[layouts.Pass, ...]) -> Iterator[Batch]:
        if self._ready is not None and self._ready[0] is passes:
            yield from self._ready[1]
            self._ready = None
        else:
            for planned in passes:
                yield self.feed.batch(planned).to(self.device)

    def evaluate(self, rows: Any) -> tuple[float, int]:
        """(mean loss over labelled tokens, how many) of other rows, in the same passes, without gradients."""
        prefix = shared_prefix(rows) if self.sizes.prefix else 0
        lengths = np.diff(np.asarray(rows.offsets, dtype=np.int64))
        tokens = max(self.tokens, int(lengths.max(initial=0)))
        sizes = layouts.choose(lengths, tokens, self.sizes.kind, prefix, slots=self.way in SLOTTED)
        feed = Feed(rows, sizes, self.way, self.train.loss_chunk, self.parts.heads)
        self.model.eval()
        total, labelled = 0.0, 0
        for planned in layouts.pack(np.arange(len(lengths)), feed.lengths, sizes):
            batch = feed.batch(planned).to(self.device)
            total += float(forward_loss(self.parts.body, self.parts.head, batch, self.train.loss_chunk))
            labelled += batch.labelled
        if labelled == 0:
            raise BadInput("No token of the evaluation rows is labelled; there is no loss to measure.")
        return total / labelled, labelled

    # -- memory ------------------------------------------------------------------------------------------------

    def _recompute_by(self, plan: list[str]) -> None:
        self.recompute = plan
        recompute.apply(self.parts.layers, plan, self.dropout)
        self.note(f"Recompute plan: {recompute.words(plan)}.")

    def _fitting_plan(self) -> list[str]:
        batch = self.feed.batch(self.plan[0][0]).to(self.device)

        def forward() -> None:
            with attention.use(batch.segments), torch.enable_grad():
                hidden_states(self.parts.body, batch)

        self.model.train()
        try:
            with torch.random.fork_rng(devices=[self.device]):
                kept = recompute.measure(self.parts.layers, forward, self.flat.tensors)
        except (RuntimeError, KeyError, IndexError) as error:
            self.note(f"What the layers keep cannot be measured ({clean(error, 120)}); all of them take light.")
            return ["light"] * len(self.parts.layers)
        return recompute.fit(kept, recompute.room(kept, self.parts.head, batch.all_positions, self.train))

    def _within_memory(self, work: Callable[[], _T]) -> _T:
        """Do ``work``; when memory runs out, do it again with a lighter plan and the same random numbers."""
        while True:
            random = torch.get_rng_state()
            on_device = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
            try:
                return work()
            except (RuntimeError, MemoryError) as error:
                if not recompute.ran_out(error):
                    raise
                failed = (str(error) or "the process may have no more").splitlines()[0]
            # Outside the handler: the exception's frames keep the failed pass's tensors alive.
            self._lighten(failed)
            torch.set_rng_state(random)
            if on_device is not None:
                torch.cuda.set_rng_state(on_device, self.device)

    def _lighten(self, failed: str) -> None:
        plan = recompute.lighter(self.recompute) if self.parts.layers else None
        self._ready = None
        self.passes.forget()
        if plan is None:
            raise recompute.OutOfMemory(
                f"Memory ran out in step {self.done + 1} although every layer is computed again "
                f"({clean(failed, 200)}); lower train.tokens_per_pass or train.loss_chunk.",
                None,
            )
        if self.device.type == "cuda" and torch.version.hip is not None:
            raise recompute.OutOfMemory(
                f"Memory ran out in step {self.done + 1}; it goes on from its last checkpoint, computing more again.",
                plan,
            )
        self.note(f"Memory ran out in step {self.done + 1}; the same rows are taken again with a lighter plan.")
        self._recompute_by(plan)

    # -- decisions made once -----------------------------------------------------------------------------------

    def _choose_sizes(self, rows: Any, wanted: str | None, adapter: Any) -> tuple[str, layouts.Sizes]:
        kind = wanted or ("fixed" if self.device.type == "cuda" else "free")
        lengths = np.diff(np.asarray(rows.offsets, dtype=np.int64))
        capped = bool(getattr(self.parts.model.config, "attn_logit_softcapping", None))
        way = attention_way(self.train.attention, kind, self.device, capped, self.note)
        reason = None if self.train.packing else "train.packing is off"
        if reason is None:
            reason = why_not_packed(self.parts, rows, way, layouts.Sizes(kind, self.tokens))
        if reason is not None:
            self.note(f"Rows are not packed: {reason}. They go through in padded batches of similar length.")
            return "own", layouts.choose(lengths, self.tokens, "padded")
        # Dropout would draw one mask for all copies of a shared beginning.
        prefix = shared_prefix(rows) if adapter.dropout == 0 else 0
        sizes = layouts.choose(lengths, self.tokens, kind, prefix, self.train.seed, slots=way in SLOTTED)
        self.parts.attend_with(attention.register())
        self.note(
            f"Rows are packed into passes of {self.tokens:,} positions ({kind} sizes, attention: {way})"
            + (f"; the {prefix} tokens that all rows begin with are computed once a pass." if prefix else ".")
        )
        return way, sizes


def attention_way(wanted: str, kind: str, device: torch.device, capped: bool, note: Callable[[str], None]) -> str:
    """The profile's ``train.attention`` as a way of attention.py, for this device.

    ``capped``: the model caps its scores (Gemma 2), which no fused kernel does.
    """
    if kind == "free":
        return "rows"
    if capped and wanted not in ("math16", "math32"):
        if wanted != "auto":
            note(f"attention = {wanted} cannot cap scores as this model does; math16 is used.")
        return "math"
    if wanted in ("math16", "math32"):
        return "math32" if wanted == "math32" else "math"
    if wanted in ("auto", "varlen"):
        reason = attention.varlen_available(device)
        if reason is None:
            return "varlen"
        if wanted == "varlen":
            note(f"attention = varlen is not possible here: {reason}. Length rungs are used.")
    if device.type == "cuda" and torch.version.hip is not None and wanted != "flash":
        return "math"
    return "rungs"
