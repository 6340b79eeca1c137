"""From a profile to the passes whose products count: the engine's own sizes (train/layouts.py), over the real rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from bc250studio.errors import BadInput
from bc250studio.kernels.shapes import Step, chunks
from bc250studio.profiles import Resolved
from bc250studio.train import layouts

SAMPLE_PASSES = 64


def steps(resolved: Resolved) -> list[Step]:
    """The passes of one epoch of this profile (at most 64 of them), equal ones counted together.

    Rows are prepared as for training, so rungs, slots and loss chunks are those the run will use. A profile of
    which nothing is packed (``train.packing = false``) has no sizes that stand still.

    Raises:
        BadInput: data or model cannot be found, or rows are not packed.
    """
    if not resolved.profile.train.packing:
        raise BadInput(
            f"The profile {resolved.name} does not pack its rows, so its sizes never stand still; "
            "set train.packing = true."
        )
    from bc250studio import data
    from bc250studio.models import find

    source = find.find(resolved.profile.model.base, resolved.profile.model.revision)
    rows = data.prepare(resolved.profile, source).train  # type: ignore[attr-defined]
    return steps_of_rows(resolved, rows)


def steps_of_rows(resolved: Resolved, rows: Any) -> list[Step]:
    """See :func:`steps`; ``rows`` are ``data.Rows``."""
    profile = resolved.profile
    lengths = np.diff(np.asarray(rows.offsets, dtype=np.int64))
    tokens = min(profile.train.tokens_per_pass, profile.train.tokens_per_step)
    prefix = shared_prefix(rows) if profile.adapter.dropout == 0 else 0
    sizes = layouts.choose(lengths, tokens, "fixed", prefix, profile.train.seed)
    passes = layouts.epoch(lengths, sizes, profile.train.seed, 0)[:SAMPLE_PASSES]
    labels = np.asarray(rows.labelled)
    first = Step(
        tokens=tokens,
        rank=profile.adapter.rank,
        dtype=_dtype(profile),
        full=profile.adapter.kind == "full",
        targets=None if isinstance(profile.adapter.targets, str) else tuple(profile.adapter.targets),
        ranks=tuple(sorted(profile.adapter.rank_pattern.items())),
        recompute="layer" if profile.train.recompute == "layer" else "light",
        loss_chunk=profile.train.loss_chunk,
    )
    from dataclasses import replace

    counted: Counter[Step] = Counter()
    for planned in passes:
        labelled = sum(int(labels[rows.offsets[r] + 1 : rows.offsets[r + 1]].sum()) for r in planned.rows)
        whole = sum(size * count for size, count in chunks(labelled, first.loss_chunk))
        groups = sizes.layouts[planned.layout].groups
        counted[replace(first, segments=groups, labelled=whole)] += 1
    return [replace(step, passes=count) for step, count in counted.items()]


def shared_prefix(rows: Any) -> int:
    """The engine's rule for a beginning that all rows share; 0 where torch, which its module needs, is absent."""
    try:
        from bc250studio.train.feed import shared_prefix as rule
    except ImportError:
        return 0
    return int(rule(rows))


def _dtype(profile: Any) -> str:
    wanted = profile.model.precision
    if wanted != "auto":
        return str(wanted)
    return "fp32" if profile.adapter.kind == "full" or profile.model.device == "cpu" else "fp16"
