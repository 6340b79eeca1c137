"""From a planned pass to tensors: token ids, positions, row borders for attention, labelled positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bc250studio.train import layouts, loss, math_attention
from bc250studio.train.attention import Segments, Slots


@dataclass
class Batch:
    """One pass on its way through the model.

    ids, positions: int64 [1, P] (or [B, L] for padded batches, with ``mask`` bool [B, L]). ``index`` int64 [n]:
    flat positions whose hidden state predicts ``targets`` [n]; ``counted`` fp32 [n] is 0 for the entries that only
    fill the last loss chunk. ``all_positions``, ``real_tokens``, ``labelled``: what the three rates count.
    """

    ids: Tensor
    positions: Tensor
    segments: Segments | None
    mask: Tensor | None
    index: Tensor
    targets: Tensor
    counted: Tensor
    layout: int
    all_positions: int
    real_tokens: int
    labelled: int

    def to(self, device: torch.device) -> Batch:
        """The same on ``device``; one copy a tensor, not waited for."""
        if device.type == "cpu":
            return self

        def move(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.pin_memory().to(device, non_blocking=True)

        for name in ("ids", "positions", "mask", "index", "targets", "counted"):
            setattr(self, name, move(getattr(self, name)))
        s = self.segments
        if s is not None:
            s.queries, s.keys, s.key_index = move(s.queries), move(s.keys), move(s.key_index)
            if s.slots is not None:
                indices: list[Any] = [s.slots, *s.slots.rows.values()]
                for index in indices:
                    index.gather, index.spread, index.back = (
                        t.pin_memory().to(device, non_blocking=True) for t in (index.gather, index.spread, index.back)
                    )
        return self


class Feed:
    """Builds batches out of ``Rows`` for one set of ``Sizes``.

    ``way``: which attention (see attention.py). ``chunk``: loss chunk, in labelled positions. ``heads``: the numbers of
    query and of key heads, which the way ``math`` needs.
    """

    def __init__(
        self, rows: Any, sizes: layouts.Sizes, way: str, chunk: int, heads: frozenset[int] = frozenset()
    ) -> None:
        self.sizes, self.way, self.chunk, self.heads = sizes, way, chunk, heads
        self.ids = np.asarray(rows.ids)
        self.labels = np.asarray(rows.labelled)
        self.offsets = np.asarray(rows.offsets, dtype=np.int64)
        self.lengths = np.diff(self.offsets)
        # varlen: the number of borders stands still for a device graph; unused ones repeat the end.
        self.most_rows = sizes.most_rows + 2 + sizes.tokens // max(sizes.longest, 1)

    def labelled_of(self, rows: Sequence[int]) -> int:
        """Labelled tokens of these rows (a row's first token never counts: nothing predicts it)."""
        return sum(int(self.labels[self.offsets[r] + 1 : self.offsets[r + 1]].sum()) for r in rows)

    def batch(self, plan: layouts.Pass) -> Batch:
        """Tensors of one pass, on the CPU."""
        if self.sizes.kind == "padded":
            return self._padded(plan)
        prefix, fixed = self.sizes.prefix, self.sizes.kind == "fixed"
        rows = [(int(self.offsets[r]), int(self.offsets[r + 1])) for r in plan.rows]
        used = prefix + sum(e - s - prefix for s, e in rows)
        width = self.sizes.tokens if fixed else used
        ids = np.zeros(width, dtype=np.int64)
        positions = np.zeros(width, dtype=np.int64)
        sources: list[np.ndarray] = []
        targets: list[np.ndarray] = []
        if prefix:
            ids[:prefix] = self.ids[rows[0][0] : rows[0][0] + prefix]
            positions[:prefix] = np.arange(prefix)
        place = prefix
        starts = []
        for s, e in rows:
            own = e - s - prefix
            starts.append(place)
            ids[place : place + own] = self.ids[s + prefix : e]
            positions[place : place + own] = np.arange(prefix, prefix + own)
            wanted = np.flatnonzero(self.labels[s + prefix + 1 : e]) + 1  # offsets within the row's own part
            sources.append(place + wanted - 1)
            targets.append(self.ids[s + prefix + wanted])
            place += own
        if place < width:
            # The filler repeats a token of the pass: an id that certainly exists.
            ids[place:] = ids[0]
            positions[place:] = np.arange(width - place) % max(self.sizes.longest, 1)
        lengths = tuple(e - s - prefix for s, e in rows)
        segments = Segments(self.way, lengths, prefix, longest=self.sizes.longest)
        if self.way != "varlen" and plan.layout >= 0:
            segments.slots = self._slots(plan, starts, lengths, used)
        elif self.way == "varlen":
            self._borders(segments, lengths, prefix, width, fixed)
        return self._finish(
            ids[None],
            positions[None],
            segments,
            None,
            sources,
            targets,
            plan.layout,
            width,
            sum(e - s for s, e in rows),
        )

    def _slots(self, plan: layouts.Pass, starts: list[int], own: tuple[int, ...], used: int) -> Slots:
        layout = self.sizes.layouts[plan.layout]
        prefix, tokens = self.sizes.prefix, self.sizes.tokens
        unused = used if used < tokens else 0
        gather = np.full(layout.elements, unused, dtype=np.int64)
        spread = gather.copy()
        begins: list[int] = []
        total = 0
        for count, rung in layout.groups:
            begins += [total + k * rung for k in range(count)]
            total += count * rung
        places = layouts.assign(plan.rows, self.lengths, layout)
        taken = np.zeros(layout.elements, dtype=bool)
        back = np.zeros(tokens, dtype=np.int64)
        for order, (slot, start, length) in enumerate(zip(places, starts, own, strict=True)):
            begin = begins[slot]
            gather[begin : begin + prefix] = np.arange(prefix)
            if order == 0:
                spread[begin : begin + prefix] = np.arange(prefix)
                back[:prefix] = np.arange(begin, begin + prefix)
            body = slice(begin + prefix, begin + prefix + length)
            gather[body] = spread[body] = np.arange(start, start + length)
            back[start : start + length] = np.arange(begin + prefix, begin + prefix + length)
            taken[begin : begin + prefix + length] = True
        if used < tokens:
            # Padding at the end of a slot: behind every real query, so its gradients are exactly zero.
            back[used:] = int(np.flatnonzero(~taken)[-1])
        slots = Slots(layout.groups, *(torch.from_numpy(x) for x in (gather, spread, back)))
        if self.way in ("math", "math32"):
            slots.rows = {heads: _rows(layout, gather, spread, back, heads) for heads in self.heads}
        return slots

    def _borders(self, segments: Segments, own: tuple[int, ...], prefix: int, width: int, fixed: bool) -> None:
        """Row borders for one varlen call; queries of a row are its own positions, keys the prefix as well."""
        parts = [*([prefix] if prefix else []), *own]
        left = width - sum(parts)
        longest = max(self.sizes.longest, 1)
        filler = [min(longest, left - k) for k in range(0, left, longest)]
        queries = np.cumsum([0, *parts, *filler])
        count = (self.most_rows if fixed else len(queries)) + 1
        if len(queries) < count:
            queries = np.concatenate((queries, np.full(count - len(queries), width)))
        segments.queries = torch.from_numpy(queries.astype(np.int32))
        if prefix:
            keys = [prefix, *(n + prefix for n in own), *filler]
            index = [np.arange(prefix)]
            start = prefix
            for n in own:
                index += [np.arange(prefix), np.arange(start, start + n)]
                start += n
            index.append(np.arange(start, width))
            flat = np.concatenate(index)
            size = width + prefix * self.most_rows if fixed else len(flat)
            borders = np.cumsum([0, *keys])
            borders = np.concatenate((borders, np.full(count - len(borders), borders[-1])))
            segments.keys = torch.from_numpy(borders.astype(np.int32))
            segments.key_index = torch.from_numpy(np.concatenate((flat, np.zeros(size - len(flat), dtype=np.int64))))

    def _padded(self, plan: layouts.Pass) -> Batch:
        rows = [(int(self.offsets[r]), int(self.offsets[r + 1])) for r in plan.rows]
        width = max(e - s for s, e in rows)
        ids = np.zeros((len(rows), width), dtype=np.int64)
        mask = np.zeros((len(rows), width), dtype=bool)
        sources, targets = [], []
        for i, (s, e) in enumerate(rows):
            ids[i, : e - s] = self.ids[s:e]
            mask[i, : e - s] = True
            wanted = np.flatnonzero(self.labels[s + 1 : e]) + 1
            sources.append(i * width + wanted - 1)
            targets.append(self.ids[s + wanted])
        positions = np.broadcast_to(np.arange(width), ids.shape).copy()
        return self._finish(
            ids, positions, None, torch.from_numpy(mask), sources, targets, -1, ids.size, sum(e - s for s, e in rows)
        )

    def _finish(
        self,
        ids: np.ndarray,
        positions: np.ndarray,
        segments: Segments | None,
        mask: Tensor | None,
        sources: list[np.ndarray],
        targets: list[np.ndarray],
        layout: int,
        width: int,
        real: int,
    ) -> Batch:
        index = np.concatenate(sources) if sources else np.zeros(0, dtype=np.int64)
        labelled = len(index)
        size = loss.padded(labelled, self.chunk)
        # Filling entries read position 0 and write behind the last one (see passes.py).
        full_index = np.full(size, ids.size, dtype=np.int64)
        full_targets = np.zeros(size, dtype=np.int64)
        counted = np.zeros(size, dtype=np.float32)
        full_index[:labelled], full_targets[:labelled], counted[:labelled] = index, np.concatenate(targets), 1.0
        return Batch(
            torch.from_numpy(ids),
            torch.from_numpy(positions),
            segments,
            mask,
            torch.from_numpy(full_index),
            torch.from_numpy(full_targets),
            torch.from_numpy(counted),
            layout,
            width,
            real,
            labelled,
        )


def _rows(
    layout: layouts.Layout, gather: np.ndarray, spread: np.ndarray, back: np.ndarray, heads: int
) -> math_attention.Rows:
    """Slot elements and positions as rows of [positions * heads, size]; a slot's heads lie one after the other."""
    head = np.arange(heads)
    wide: list[list[np.ndarray]] = [[], []]
    # number of the row that holds head 0 of a slot element, and how far apart its heads are
    first = np.empty(len(gather), dtype=np.int64)
    step = np.empty(len(gather), dtype=np.int64)
    start = 0
    for count, rung in layout.groups:
        stop = start + count * rung
        for parts, index in zip(wide, (gather, spread), strict=True):
            slots = index[start:stop].reshape(count, 1, rung)
            parts.append((slots * heads + head[None, :, None]).reshape(-1))
        element = np.arange(count * rung)
        first[start:stop] = start * heads + element // rung * rung * heads + element % rung
        step[start:stop] = rung
        start = stop
    home = first[back][:, None] + step[back][:, None] * head
    arrays = (np.concatenate(wide[0]), np.concatenate(wide[1]), home.reshape(-1))
    return math_attention.Rows(*(torch.from_numpy(x.astype(np.int32)) for x in arrays))


def shared_prefix(rows: Any) -> int:
    """Tokens at the beginning that all rows share and none learns, short of anything that differs.

    Chat templates put the same system message before every row; its hidden states are the same in every row, so a
    pass computes them once. The token after the prefix is not labelled either: its prediction would belong to the
    shared part. 0 when it is not worth the trouble (under 8 tokens).
    """
    offsets = np.asarray(rows.offsets, dtype=np.int64)
    if len(offsets) < 3:
        return 0
    ids, labels = np.asarray(rows.ids), np.asarray(rows.labelled)
    shortest = int(np.diff(offsets).min())
    first = ids[offsets[0] : offsets[0] + shortest]
    limit = shortest - 1  # every row keeps a token of its own
    starts = offsets[:-1]
    for k in range(limit):
        if (ids[starts + k] != first[k]).any() or labels[starts + k + 1].any():
            limit = k
            break
    return limit if limit >= 8 else 0
