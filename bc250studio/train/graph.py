"""One pass as a device graph: recorded once per layout, replayed for every pass of that layout.

A 42-layer pass is some thousand kernel launches; at 2,048 positions the host needs longer to launch them than a GPU
to run them. Because sizes stand still (layouts.py), forward and backward are recorded
(``torch.cuda.CUDAGraph``, a HIP graph on ROCm) and replayed with new contents in the same buffers. Between the two lies
the loss, launched eagerly: its number of chunks follows the labelled tokens, and it is a few dozen launches.

What cannot be recorded (a wait for the device inside a model's code, a random number saved for recomputation) falls
back to eager launches, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bc250studio.errors import clean
from bc250studio.train import attention, passes
from bc250studio.train.feed import Batch
from bc250studio.train.loss import Head
from bc250studio.train.parameters import FlatParameters

_WARM_UPS = 2
"""Eager passes before recording: kernels are compiled and libraries take their workspaces."""


class Recorded:
    """Forward and backward of one layout, and the buffers they read and write."""

    def __init__(self, batch: Batch, hidden: Tensor, gradient: Tensor, forward: Any, backward: Any) -> None:
        self.batch, self.hidden, self.gradient = batch, hidden, gradient
        self.forward, self.backward = forward, backward


class Passes:
    """Forward and backward of passes, recorded where possible. ``wanted``: the profile's train.graph."""

    def __init__(
        self,
        body: Any,
        head: Head,
        flat: FlatParameters,
        chunk: int,
        wanted: str,
        standing: bool,
        note: Callable[[str], None],
    ) -> None:
        self.body, self.head, self.flat, self.chunk, self.note = body, head, flat, chunk, note
        self.device = flat.gradient.device
        self.recorded: dict[int, Recorded] = {}
        self.why_not = why_not_recorded(self.device, wanted, standing)
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    def forward_backward(self, batch: Batch, factor: float) -> Tensor:
        """Add the pass's gradients to the flat gradient; returns the summed loss (device scalar)."""
        if self.why_not is not None:
            return passes.forward_backward(self.body, self.head, batch, self.chunk, factor)
        known = self.recorded.get(batch.layout)
        if known is None:
            known = self._record(batch)
            if known is None:
                return passes.forward_backward(self.body, self.head, batch, self.chunk, factor)
        _refill(known.batch, batch)
        known.forward.replay()
        total = passes.loss_and_gradient(known.hidden, self.head, batch, self.chunk, factor, known.gradient)
        known.backward.replay()
        return total

    def forget(self) -> None:
        """Drop what is recorded: the plan behind it has changed. The allocator may use its memory again."""
        self.recorded.clear()
        self._pool = self._stream = None

    def warm_up(self, batch: Batch) -> None:
        """Compile and record what this kind of pass needs, before anything is timed; gradients stay as they are."""
        if self.why_not is None:
            if batch.layout not in self.recorded:
                self._record(batch)
            return
        kept = self.flat.gradient.clone()
        passes.forward_backward(self.body, self.head, batch, self.chunk, 0.0)
        self.flat.gradient.copy_(kept)

    def _record(self, batch: Batch) -> Recorded | None:
        kept = self.flat.gradient.clone()  # warm-up passes add to it
        try:
            return self._capture(_copied(batch))
        except torch.OutOfMemoryError:
            raise  # another plan may fit; see Trainer.step
        except Exception as error:  # whatever a model's code does that a graph cannot hold
            self.why_not = f"{type(error).__name__}: {clean(str(error).splitlines()[0] if str(error) else '', 200)}"
            self.recorded.clear()
            self.note(
                f"The pass cannot be recorded as a device graph ({self.why_not}); kernels are launched one by one."
            )
            return None
        finally:
            torch.cuda.synchronize(self.device)
            self.flat.gradient.copy_(kept)

    def _capture(self, batch: Batch) -> Recorded:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)
            # Warm-up and recording share one pool, so that the warm-up's blocks are used again: the allocator's
            # cache is never emptied (on gfx1013 freed addresses keep old translations).
            self._pool = torch.cuda.MemPool()
        stream, width = self._stream, self.head.weight.shape[1]
        gradient = torch.zeros((batch.ids.numel() + 1, width), dtype=self.head.weight.dtype, device=self.device)
        view = gradient[:-1].view(*batch.ids.shape, width)
        if batch.segments is not None:
            attention.prepare_masks(batch.segments, self.body, self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream), attention.use(batch.segments):
            with torch.cuda.use_mem_pool(self._pool):
                for _ in range(_WARM_UPS):
                    hidden = passes.hidden_states(self.body, batch)
                    torch.autograd.backward(hidden, view)
                    del hidden
            torch.cuda.synchronize(self.device)
            forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
            with _recording(forward, self._pool.id):
                hidden = passes.hidden_states(self.body, batch)
            with _recording(backward, self._pool.id):
                torch.autograd.backward(hidden, view)
        torch.cuda.current_stream(self.device).wait_stream(stream)
        recorded = Recorded(batch, hidden.detach(), gradient, forward, backward)
        self.recorded[batch.layout] = recorded
        return recorded


class _recording:
    """Record what is launched on the current stream; ends the recording also when it fails.

    torch's own context manager empties the allocator's cache first, which must not happen on gfx1013.
    """

    def __init__(self, graph: Any, pool: Any) -> None:
        self.graph, self.pool = graph, pool

    def __enter__(self) -> None:
        self.graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")

    def __exit__(self, kind: Any, *rest: Any) -> None:
        try:
            self.graph.capture_end()
        except RuntimeError:
            if kind is None:
                raise


def why_not_recorded(device: torch.device, wanted: str, standing: bool) -> str | None:
    """None when passes may be recorded; else the reason. ``standing``: sizes are the same in every pass."""
    if wanted == "off":
        return "train.graph is off"
    if device.type != "cuda":
        return "only a GPU has device graphs"
    if not standing:
        return "the sizes change from pass to pass"
    if not hasattr(torch.cuda, "MemPool"):
        return f"torch {torch.__version__} has no memory pools of one's own"
    return None


def _tensors(batch: Batch) -> list[Tensor | None]:
    s = batch.segments
    slots = s.slots if s is not None else None
    return [
        batch.ids,
        batch.positions,
        *((s.queries, s.keys, s.key_index) if s is not None else ()),
        *(t for index in _indices(slots) for t in (index.gather, index.spread, index.back)),
    ]


def _indices(slots: Any) -> list[Any]:
    return [] if slots is None else [slots, *slots.rows.values()]


def _copied(batch: Batch) -> Batch:
    """A batch of the same shape in buffers of its own, which a recording reads from then on."""
    from copy import copy

    own = copy(batch)
    own.ids, own.positions = batch.ids.clone(), batch.positions.clone()
    if batch.segments is not None:
        s = copy(batch.segments)
        s.masks = {}
        s.queries, s.keys, s.key_index = (
            t.clone() if t is not None else None for t in (s.queries, s.keys, s.key_index)
        )
        if s.slots is not None:
            s.slots = copy(s.slots)
            s.slots.rows = {heads: copy(rows) for heads, rows in s.slots.rows.items()}
            for index in _indices(s.slots):
                index.gather, index.spread, index.back = (t.clone() for t in (index.gather, index.spread, index.back))
        own.segments = s
    return own


def _refill(own: Batch, batch: Batch) -> None:
    for target, source in zip(_tensors(own), _tensors(batch), strict=True):
        if target is not None and source is not None:
            target.copy_(source, non_blocking=True)
