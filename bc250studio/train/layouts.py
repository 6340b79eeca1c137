"""Which rows go into which pass, so that few sizes ever occur. No torch here: numbers in, a plan out.

A pass has exactly ``tokens`` positions. Rows lie in it end to end; what is left over is one masked filler.
For attention each row also takes a *slot*: a length from a short fixed ladder (a *rung*), so that rows of one
rung share one batched call. Every rung has one fixed number of slots, and a *layout* says which rungs are
present. Hence at most 16 sizes of each attention product, one size of every other product, and at most
8 layouts, each of which can be recorded as a device graph.

Three kinds of plan: ``fixed`` as above, ``free`` (rows end to end, no filler, any sizes: the CPU's way) and
``padded`` (length-sorted batches, for models whose rows cannot share a pass).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bc250studio.errors import BadInput

MOST_RUNGS = 16
MOST_LAYOUTS = 8
WINDOW = 256
"""Rows looked at when a pass is filled; they are shuffled before, so order stays random at this scale."""
GROUP_COST = 1 << 18
"""What one more batched call is worth in scores of a head: its launches against larger slots (H200, gfx1013 alike)."""


@dataclass(frozen=True)
class Layout:
    """Slots of one pass: (slots, rung) with rising rungs."""

    groups: tuple[tuple[int, int], ...]

    @property
    def rungs(self) -> tuple[int, ...]:
        """Slot lengths, rising."""
        return tuple(rung for _, rung in self.groups)

    @property
    def elements(self) -> int:
        """Slot elements S: what q, k and v are gathered into."""
        return sum(count * rung for count, rung in self.groups)

    @property
    def area(self) -> int:
        """Scores an attention head computes in a pass."""
        return sum(count * rung * rung for count, rung in self.groups)


@dataclass(frozen=True)
class Sizes:
    """What stands still in a run. ``prefix``: beginning shared by all rows, computed once a pass."""

    kind: str
    tokens: int
    prefix: int = 0
    layouts: tuple[Layout, ...] = ()
    longest: int = 0
    most_rows: int = 0
    """Without layouts: rows a pass holds at most, so that the number of borders stands still; 0 has no limit."""


@dataclass(frozen=True)
class Pass:
    """Rows that go through the model together; ``layout`` is an index into ``Sizes.layouts`` (-1: none)."""

    rows: tuple[int, ...]
    layout: int = -1


def ladder(tokens: int) -> tuple[int, ...]:
    """Rungs for passes of ``tokens``: steps of 64 to 512, then equal steps; at most 16, the last is ``tokens``.

    It depends on nothing but ``tokens``, so kernels tuned for it serve every dataset.

    >>> ladder(2048)
    (64, 128, 192, 256, 320, 384, 448, 512, 704, 896, 1088, 1280, 1472, 1664, 1856, 2048)
    """
    low = [rung for rung in range(64, 513, 64) if rung < tokens]
    room = MOST_RUNGS - len(low)
    base = low[-1] if low else 0
    step = max(-(-(tokens - base) // room // 64) * 64, 64)
    high = list(range(base + step, tokens, step))
    return (*[*low, *high][: MOST_RUNGS - 1], tokens)


def choose(lengths: np.ndarray, tokens: int, kind: str, prefix: int = 0, seed: int = 0, slots: bool = True) -> Sizes:
    """Sizes for rows of ``lengths`` tokens each, shared prefix included.

    Layouts for ``fixed`` come from the histogram of lengths: rungs that a usual pass needs are in every layout,
    each taller one has a layout of its own. How many rungs there are, and how often one must be needed to count as
    usual, is found by packing a sample with each choice: the cheapest attention among those within 2 % of the best
    fill. ``slots`` False: attention needs no slots (varlen), only a largest number of rows.

    Raises:
        BadInput: a row is longer than a pass.
    """
    if len(lengths) == 0:
        raise BadInput("There are no rows to train on.")
    longest = int(lengths.max())
    if longest > tokens:
        raise BadInput(
            f"The longest row has {longest:,} tokens but a pass holds {tokens:,}; "
            f"raise train.tokens_per_pass or lower data.max_length."
        )
    if kind != "fixed":
        return Sizes(kind, tokens, prefix, (), longest)
    sample = lengths[np.random.default_rng([seed, 1]).permutation(len(lengths))[:2048]]
    if not slots:
        passes = pack(np.arange(len(sample)), sample, Sizes(kind, tokens, prefix, (), longest))
        most = max(len(p.rows) for p in passes)
        return Sizes(kind, tokens, prefix, (), longest, most + most // 4)
    tried: list[tuple[float, float, Sizes]] = []
    for thinned in (1, 2, 3, 4):
        for usual in (0.05, 0.15, 0.3, 0.6, 1.0):
            rungs = ladder(tokens)[::-1][::thinned][::-1]  # the tallest, which holds any row, always stays
            sizes = Sizes(kind, tokens, prefix, _layouts(sample, lengths, rungs, prefix, usual), longest)
            if any(sizes.layouts == other.layouts for _, _, other in tried):
                continue
            passes = pack(np.arange(len(sample)), sample, sizes)
            whole = passes[:-1] or passes  # the last pass of an epoch is seldom full
            used = [sizes.layouts[p.layout] for p in whole]
            cost = sum(layout.area + GROUP_COST * len(layout.groups) for layout in used)
            tried.append((fill(whole, sample, sizes), cost / max(sum(len(p.rows) for p in whole), 1), sizes))
    best = max(filled for filled, _, _ in tried)
    return min((t for t in tried if t[0] >= best - 0.02), key=lambda t: t[1])[2]


def _layouts(
    sample: np.ndarray, lengths: np.ndarray, rungs: tuple[int, ...], prefix: int, usual: float
) -> tuple[Layout, ...]:
    tokens = rungs[-1]
    full = int(lengths.max()) == tokens
    if full and int(lengths.min()) == tokens:
        return (Layout(((1, tokens),)),)
    # Rows that fill a pass alone have a layout without spare slots; the others need one unused position.
    shorter = sample[sample < tokens]
    top = rungs[bisect.bisect_left(rungs, int(lengths[lengths < tokens].max()))]
    own = max(float((shorter - prefix).mean()), 1.0)
    places = np.searchsorted(rungs, shorter)
    expected = np.bincount(places, minlength=len(rungs)) / max(len(shorter), 1) * tokens / own
    common = [i for i, rung in enumerate(rungs) if expected[i] >= usual and rung <= top]
    # A rung below the tallest common one that is seldom needed: its rows take the next one up.
    tallest_common = rungs[common[-1]] if common else 0
    rare = [i for i, rung in enumerate(rungs) if tallest_common < rung <= top and (expected[i] > 0 or rung == top)]
    room = MOST_LAYOUTS - 1 - full - (0 if common else -1)
    if len(rare) > room:
        keep = np.unique(np.linspace(0, len(rare) - 1, room).round().astype(int))
        rare = [rare[k] for k in keep]
    gathered = 0.0
    slots: dict[int, int] = {}
    for i in range(len(rungs)):
        gathered += float(expected[i])
        if i in common:
            slots[i] = max(1, int(np.ceil(gathered + 0.5 * np.sqrt(gathered))))
            gathered = 0.0
    base = tuple((slots[i], rungs[i]) for i in common)
    found = [base] if base else []
    found += [(*base, (1, rungs[i])) for i in rare]
    # One slot more of the smallest rung stays empty in every pass: padding that unused positions can point at.
    layouts = [Layout(((g[0][0] + 1, g[0][1]), *g[1:])) for g in found]
    if full:
        layouts.append(Layout(((1, tokens),)))
    return tuple(layouts)


def pack(order: np.ndarray, lengths: np.ndarray, sizes: Sizes) -> list[Pass]:
    """Fill passes from rows in ``order``. The oldest waiting row always goes into the next pass."""
    if sizes.kind == "padded":
        return _padded(order, lengths, sizes)
    own = [int(n) - sizes.prefix for n in lengths]
    stream = iter(int(i) for i in order)
    waiting: list[int] = []
    passes: list[Pass] = []
    while True:
        while len(waiting) < WINDOW and (row := next(stream, None)) is not None:
            waiting.append(row)
        if not waiting:
            return passes
        best = max((_fill(waiting, own, sizes, i) for i in _candidates(waiting, own, sizes)), key=lambda p: p[0])
        passes.append(best[1])
        taken = set(best[1].rows)
        waiting = [row for row in waiting if row not in taken]


def _candidates(waiting: Sequence[int], own: Sequence[int], sizes: Sizes) -> Iterator[int]:
    """Layouts worth trying: those that admit the oldest row; of the taller ones only what some row needs."""
    if not sizes.layouts:
        yield -1
        return
    needed: set[int] = set()
    for row in waiting:
        length = own[row] + sizes.prefix
        for i, layout in enumerate(sizes.layouts):
            if _admits(layout, length, sizes.tokens):
                needed.add(i)
                break
        if len(needed) > 2:
            break
    oldest = own[waiting[0]] + sizes.prefix
    for i, layout in enumerate(sizes.layouts):
        if i in needed and _admits(layout, oldest, sizes.tokens):
            yield i


def _admits(layout: Layout, length: int, tokens: int) -> bool:
    if length == tokens:
        return layout.groups == ((1, tokens),)
    return length <= layout.rungs[-1] and layout.groups != ((1, tokens),)


def _fill(waiting: Sequence[int], own: Sequence[int], sizes: Sizes, layout: int) -> tuple[int, Pass]:
    free: list[int] = []
    rungs: tuple[int, ...] = ()
    if layout >= 0:
        groups = sizes.layouts[layout].groups
        rungs = sizes.layouts[layout].rungs
        free = [count for count, _ in groups]
        if groups == ((1, sizes.tokens),):
            row = next(row for row in waiting if own[row] + sizes.prefix == sizes.tokens)
            return sizes.tokens, Pass((row,), layout)
        free[0] -= 1  # the slot that stays empty
    # One position stays unused where padding needs a place to point at.
    room = sizes.tokens - sizes.prefix - (1 if layout >= 0 else 0)
    whole = room
    taken = []
    for row in waiting:
        need = own[row]
        if need > room:
            continue
        if free:
            place = bisect.bisect_left(rungs, need + sizes.prefix)
            while place < len(rungs) and not free[place]:
                place += 1
            if place == len(rungs):
                continue
            free[place] -= 1
        room -= need
        taken.append(row)
        if room < 4 or len(taken) == sizes.most_rows:
            break
    return whole - room, Pass(tuple(taken), layout)


def assign(rows: Sequence[int], lengths: np.ndarray, layout: Layout) -> list[int]:
    """Slot number (counted through the groups) of each row, by the rule ``pack`` used."""
    starts, total = [], 0
    for count, _ in layout.groups:
        starts.append(total)
        total += count
    used = [0] * len(layout.groups)
    spare = 0 if len(rows) == total else 1
    places = []
    for row in rows:
        place = bisect.bisect_left(layout.rungs, int(lengths[row]))
        while used[place] >= layout.groups[place][0] - (spare if place == 0 else 0):
            place += 1
        places.append(starts[place] + used[place])
        used[place] += 1
    return places


def _padded(order: np.ndarray, lengths: np.ndarray, sizes: Sizes) -> list[Pass]:
    """Batches of rows of similar length: each window is sorted, cut by padded size, and its batches shuffled."""
    passes: list[Pass] = []
    for start in range(0, len(order), WINDOW):
        window = sorted((int(i) for i in order[start : start + WINDOW]), key=lambda i: (int(lengths[i]), i))
        batches: list[list[int]] = [[]]
        for row in reversed(window):  # the longest of a batch comes first and sets its width
            width = int(lengths[batches[-1][0]]) if batches[-1] else int(lengths[row])
            if batches[-1] and width * (len(batches[-1]) + 1) > sizes.tokens:
                batches.append([])
            batches[-1].append(row)
        mixed = np.random.default_rng([len(order), start]).permutation(len(batches))
        passes += [Pass(tuple(batches[i])) for i in mixed]
    return passes


def epoch(lengths: np.ndarray, sizes: Sizes, seed: int, number: int, share: float = 1.0) -> list[Pass]:
    """Passes of epoch ``number``: rows shuffled by (seed, number), packed; ``share`` < 1 takes the first part."""
    order = np.random.default_rng([seed, number]).permutation(len(lengths))
    return pack(order[: max(1, round(share * len(order)))], lengths, sizes)


def steps(
    lengths: np.ndarray, sizes: Sizes, passes_per_step: int, seed: int, epochs: float, wanted: int | None
) -> list[tuple[Pass, ...]]:
    """Every optimiser step of a run as its passes; known before the first, so a run can resume anywhere.

    The last step of an epoch may hold fewer passes; its weight follows its labelled tokens.
    ``wanted`` steps when given, else ``epochs`` (a fraction takes part of the rows).
    """
    plan: list[tuple[Pass, ...]] = []
    number = 0
    while (len(plan) < wanted) if wanted is not None else (number < epochs):
        share = 1.0 if wanted is not None else min(1.0, epochs - number)
        passes = epoch(lengths, sizes, seed, number, share)
        plan += [tuple(passes[i : i + passes_per_step]) for i in range(0, len(passes), passes_per_step)]
        number += 1
    return plan[:wanted] if wanted is not None else plan


def fill(passes: Sequence[Pass], lengths: np.ndarray, sizes: Sizes) -> float:
    """Share of the positions that real tokens take (a shared prefix counted once a pass)."""
    used = sum(sum(int(lengths[r]) - sizes.prefix for r in p.rows) + sizes.prefix for p in passes)
    return used / max(len(passes) * sizes.tokens, 1)
