"""What was made of a file, in numbers: the same table for `data check`, the app's dataset screen and a run's record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bc250studio.data.files import Dataset
from bc250studio.data.mask import Masker
from bc250studio.data.recognise import Recognition
from bc250studio.data.walk import Tally
from bc250studio.errors import clean

_BUCKETS = 12


def build(
    dataset: Dataset,
    recognition: Recognition,
    tally: Tally,
    *,
    masker: Masker | None,
    max_length: int,
    tokens_per_pass: int,
) -> dict[str, Any]:
    """The report as plain data. Token figures are there only when a model's tokenizer was at hand."""
    report: dict[str, Any] = {
        "path": dataset.name,
        "files": len(dataset.files),
        "format": recognition.format,
        "columns": recognition.columns,
        "unused_columns": recognition.unused,
        "rows": {"total": tally.total, "used": tally.used, "cut": tally.cut, "dropped": tally.dropped},
        "reasons": dict(tally.reasons.most_common()),
        "dropped_rows": tally.dropped_rows,
        "cut_rows": tally.cut_rows,
        "notes": list(dict.fromkeys(dataset.notes)),
    }
    if recognition.unused:
        report["notes"].append(f"Columns nobody reads: {', '.join(clean(n, 40) for n in recognition.unused[:8])}.")
    if masker is not None:
        lengths = np.array(tally.lengths, np.int64)
        report["examples"] = len(lengths)
        report["max_length"] = max_length
        report["thinking"] = masker.thinking
        report["template"] = masker.tokenizer.template_from
        report["tokens"] = tokens(lengths, np.array(tally.labelled, np.int64))
        report["histogram"] = histogram(np.array(tally.full_lengths, np.int64))
        report["packing"] = packing(lengths, tokens_per_pass)
        report["notes"] += [f"{count:,} × {text}." for text, count in masker.notes.items()]
        if masker.thinking is not None:
            switch = "on" if masker.thinking else "off"
            report["notes"].append(f"Thinking is {switch}: rows are rendered so, and serving asks for the same.")
        if masker.tokenizer.template_from == "plain":
            report["notes"].append(
                "The model has no chat template; a plain one (User: … / Assistant: …) is used and goes into the export."
            )
    return report


def tokens(lengths: NDArray[np.int64], labelled: NDArray[np.int64]) -> dict[str, Any]:
    """Sums and percentiles of token counts of what is learnt, after cutting."""
    if len(lengths) == 0:
        return {"all": 0, "labelled": 0}
    p50, p90, p99 = (int(v) for v in np.percentile(lengths, [50, 90, 99], method="higher"))
    return {
        "all": int(lengths.sum()),
        "labelled": int(labelled.sum()),
        "labelled_percent": round(100 * float(labelled.sum()) / float(lengths.sum()), 1),
        "shortest": int(lengths.min()),
        "mean": round(float(lengths.mean()), 1),
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "longest": int(lengths.max()),
    }


def histogram(lengths: NDArray[np.int64]) -> list[dict[str, int]]:
    """Examples by length before cutting: buckets of equal width, ends included (`from` <= tokens <= `to`)."""
    if len(lengths) == 0:
        return []
    shortest, longest = int(lengths.min()) - 1, int(np.percentile(lengths, 99.5, method="higher"))
    width = max(1, -(-(longest - shortest) // _BUCKETS))
    step = 10 ** max(len(str(width)) - 1, 0)
    width = -(-width // step) * step
    begin = shortest // width * width
    edges = list(range(begin, longest + width, width))
    counts, _ = np.histogram(np.minimum(lengths - 1, edges[-1] - 1), bins=edges)
    rows = [{"from": a + 1, "to": b, "count": int(n)} for a, b, n in zip(edges, edges[1:], counts, strict=False)]
    rows[-1]["to"] = max(rows[-1]["to"], int(lengths.max()))
    return rows


def packing(lengths: NDArray[np.int64], tokens_per_pass: int) -> dict[str, Any]:
    """How full passes get when rows are laid side by side, and when they are padded to the longest of the pass.

    Rows go, longest first, into the fullest pass that has room (best fit decreasing); a row longer than a pass
    has one of its own.
    """
    if len(lengths) == 0:
        return {"tokens_per_pass": tokens_per_pass, "passes": 0, "fill_percent": 0.0}
    passes = _best_fit(np.sort(lengths)[::-1], tokens_per_pass)
    total = int(lengths.sum())
    return {
        "tokens_per_pass": tokens_per_pass,
        "passes": passes,
        "fill_percent": round(100 * total / (passes * max(tokens_per_pass, int(lengths.max()))), 1)
        if int(lengths.max()) > tokens_per_pass
        else round(100 * total / (passes * tokens_per_pass), 1),
        "padded_fill_percent": round(_padded_fill(lengths, tokens_per_pass), 1),
        "tokens_per_epoch": total,
    }


def _best_fit(lengths: Sequence[int] | NDArray[np.int64], room: int) -> int:
    """Number of passes; rooms are counted by size, so a million rows take a second."""
    free = np.zeros(room + 1, np.int64)
    passes = 0
    for length in lengths:
        size = int(length)
        if size >= room:
            passes += 1
            continue
        fits = np.flatnonzero(free[size:])
        if len(fits):
            slot = size + int(fits[0])
            free[slot] -= 1
        else:
            slot = room
            passes += 1
        free[slot - size] += 1
    return passes


def _padded_fill(lengths: NDArray[np.int64], room: int) -> float:
    """Share of real tokens when rows of mixed lengths are padded to the longest of their batch (file order)."""
    positions = 0
    longest = count = 0
    for length in lengths:
        size = int(length)
        if count and max(longest, size) * (count + 1) > room:
            positions += longest * count
            longest = count = 0
        longest, count = max(longest, size), count + 1
    positions += longest * count
    return 100 * float(lengths.sum()) / max(positions, 1)
