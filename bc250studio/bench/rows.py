"""The rows a training bench works on: a dataset, row lengths with random ids, or full random rows.

numpy only. All sides get the same ``Rows``; the first ones are worked on, the last ones are held out
and only evaluated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bc250studio.errors import BadInput, clean

if TYPE_CHECKING:
    from bc250studio.data.rows import Rows
    from bc250studio.models.find import ModelSource


@dataclass(frozen=True)
class BenchRows:
    """Rows with the indices to train on (in the order given) and those held out for a loss."""

    rows: Rows
    work: list[int]
    held_out: list[int]
    regime: str
    """What they are, in words for tables."""
    full: bool = False
    """Every row fills a whole pass."""

    def facts(self) -> dict[str, Any]:
        """Counts for the record."""
        lengths = [len(self.rows.row(index)[0]) for index in self.work]
        labelled = sum(int(self.rows.row(index)[1].sum()) for index in self.work)
        return {
            "rows": len(self.work),
            "held_out_rows": len(self.held_out),
            "real_tokens": sum(lengths),
            "mean_tokens": round(sum(lengths) / max(len(lengths), 1), 1),
            "longest": max(lengths, default=0),
            "labelled_share": round(labelled / max(sum(lengths), 1), 3),
        }


def read_lengths(path: Path) -> list[tuple[int, int]]:
    """A JSON list of [prompt tokens, all tokens] a row.

    Raises:
        BadInput: no such file, no such list, or a pair that cannot be a row (its number).
    """
    try:
        pairs = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"The lengths file {path} cannot be read as JSON ({clean(error, 120)}).") from error
    if not isinstance(pairs, list) or not pairs:
        raise BadInput(f"The lengths file {path} must hold a list of [prompt tokens, all tokens], one pair a row.")
    rows: list[tuple[int, int]] = []
    for number, pair in enumerate(pairs, 1):
        good = isinstance(pair, list) and len(pair) == 2 and all(type(value) is int for value in pair)
        if not good or not 1 <= pair[0] < pair[1] <= 1_000_000:
            raise BadInput(
                f"Row {number} of {path} is {clean(json.dumps(pair), 60)}: it must be [prompt tokens, all tokens] with "
                "1 <= prompt < all <= 1,000,000."
            )
        rows.append((pair[0], pair[1]))
    return rows


def build(lengths: list[tuple[int, int]], vocabulary: int, seed: int) -> Rows:
    """Rows of random ids with those [prompt, all] lengths; everything after the prompt is labelled."""
    from bc250studio.data.rows import Rows

    generator = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum([total for _, total in lengths])]).astype(np.int64)
    ids = generator.integers(0, vocabulary, size=int(offsets[-1]), dtype=np.int32)
    labelled = np.zeros(int(offsets[-1]), dtype=bool)
    for (prompt, total), start in zip(lengths, offsets, strict=False):
        labelled[start + prompt : start + total] = True
    return Rows(ids=ids, labelled=labelled, offsets=offsets)


def _split(rows: Rows, count: int, held_out: int, longest: int) -> tuple[list[int], list[int]]:
    usable = [index for index, length in enumerate(rows.lengths.tolist()) if length <= longest]
    held_out = min(held_out, max(len(usable) - 1, 0))
    work = usable[: len(usable) - held_out][:count]
    return work, usable[len(usable) - held_out :]


def from_lengths(path: Path, vocabulary: int, count: int, tokens: int, seed: int, held_out: int = 8) -> BenchRows:
    """Real row lengths with random ids, shuffled once by ``seed``; rows longer than a pass are cut to it."""
    lengths = [(min(prompt, tokens - 1), min(total, tokens)) for prompt, total in read_lengths(path)]
    order = np.random.default_rng(seed).permutation(len(lengths))
    rows = build([lengths[index] for index in order], vocabulary, seed)
    work, last = _split(rows, count, held_out, tokens)
    return BenchRows(rows, work, last, f"rows with the lengths of {path.name}, random ids")


def full_rows(vocabulary: int, count: int, tokens: int, seed: int, held_out: int = 2) -> BenchRows:
    """Random rows of exactly ``tokens`` positions, every position labelled but the first."""
    rows = build([(1, tokens)] * (count + held_out), vocabulary, seed)
    everything = list(range(count + held_out))
    return BenchRows(rows, everything[:count], everything[count:], f"full random rows of {tokens:,} tokens", full=True)


def from_data(path: str, source: ModelSource, count: int, tokens: int, held_out: int = 8) -> BenchRows:
    """Rows of a dataset, rendered with the model's own template, in file order."""
    from bc250studio import data
    from bc250studio.profiles import Profile

    profile = Profile.model_validate(
        {
            "model": {"base": source.name},
            "data": {"path": path, "eval_fraction": 0.0, "max_length": min(tokens, 1024)},
        }
    )
    prepared = data.prepare(profile, source)
    work, last = _split(prepared.train, count, held_out, tokens)
    if not work:
        raise BadInput(f"{clean(path)} has no row that fits {tokens:,} tokens; give a larger --tokens or other data.")
    return BenchRows(prepared.train, work, last, f"{len(work)} rows of {Path(path).name}")


def take(rows: Rows, indices: Sequence[int]) -> Rows:
    """These rows alone, in this order."""
    from bc250studio.data.rows import Rows

    parts = [rows.row(index) for index in indices]
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids, _ in parts])]).astype(np.int64)
    return Rows(np.concatenate([ids for ids, _ in parts]), np.concatenate([kept for _, kept in parts]), offsets)
