"""Which rows are kept away from training: seeded, whole groups of equal prompts, the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def choose(keys: Sequence[int], fraction: float, seed: int) -> NDArray[np.bool_]:
    """True for the rows of the evaluation part: bool[rows].

    ``keys`` are digests of the rows' prompts; rows with equal keys stay together. Groups are taken in the order of
    a keyed hash until ``round(rows * fraction)`` rows (at least one) are reached; training always keeps a group.
    """
    chosen = np.zeros(len(keys), np.bool_)
    wanted = max(1, round(len(keys) * fraction)) if fraction > 0 and len(keys) > 1 else 0
    if not wanted:
        return chosen
    all_keys = np.array(keys, np.uint64)
    groups, counts = np.unique(all_keys, return_counts=True)
    if len(groups) < 2:
        return chosen
    salt = str(seed).encode()
    order = sorted(
        range(len(groups)), key=lambda g: hashlib.sha256(salt + int(groups[g]).to_bytes(8, "little")).digest()
    )
    picked: list[int] = []
    taken = 0
    for group in order[: len(groups) - 1]:
        if taken >= wanted:
            break
        if taken and taken + counts[group] > wanted * 1.5:  # one huge group must not become the whole evaluation
            continue
        picked.append(group)
        taken += int(counts[group])
    return np.isin(all_keys, groups[picked])
