"""What `data check` and `data preview` found, as text for the dataset screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from textual.content import Content

from bc250studio.errors import clean
from bc250studio.ui.numbers import duration, number
from bc250studio.ui.stage_words import table

BLOCKS = " ▁▂▃▄▅▆▇█"


def check_text(found: Any) -> Content:
    """Counts with reasons first, then tokens, packing, time, notes."""
    if not isinstance(found, Mapping):
        return Content(clean(found, 2000))
    rows, tokens = table(found, "rows"), table(found, "tokens")
    columns = ", ".join(f"{clean(k, 20)} from {clean(v, 30)}" for k, v in table(found, "columns").items() if k != v)
    parts: list[Any] = [
        (f"{clean(found.get('format') or '?', 30)} rows", "bold"),
        f" in {number(found.get('files'))} file(s){': ' + columns if columns else ''}\n",
        (f"✓ {number(rows.get('used'))} used", "$success"),
        f" of {number(rows.get('total'))} · ",
        (f"{number(rows.get('cut'))} cut at {number(found.get('max_length'))}", "$warning" if rows.get("cut") else ""),
        " · ",
        (f"{number(rows.get('dropped'))} dropped\n", "$error" if rows.get("dropped") else ""),
    ]
    parts += [f"    {number(count)} × {clean(reason, 100)}\n" for reason, count in table(found, "reasons").items()]
    for row in _list(found, "dropped_rows")[:8]:
        detail = f" ({clean(row.get('detail'), 100)})" if row.get("detail") else ""
        parts.append(
            (f"    {clean(row.get('where') or '', 60)}: {clean(row.get('reason') or '', 100)}{detail}\n", "dim")
        )
    if tokens:
        parts += _tokens(found, tokens)
    parts += [(f"! {clean(note, 300)}\n", "$warning") for note in found.get("notes") or []]
    return Content.assemble(*parts)


def _tokens(found: Mapping[str, Any], tokens: Mapping[str, Any]) -> list[Any]:
    packing, time = table(found, "packing"), table(found, "time")
    seconds = time.get("seconds_per_epoch")
    took = f"about {duration(seconds)} an epoch" if seconds else f"unknown: {clean(time.get('why') or '', 120)}"
    counts = [int(bucket.get("count") or 0) for bucket in _list(found, "histogram")]
    most = max(counts, default=0) or 1
    bars = "".join(BLOCKS[-(-8 * count // most)] for count in counts)
    return [
        (
            f"tokens {number(tokens.get('all'), 9)}, learnt {number(tokens.get('labelled'), 9)} "
            f"({number(tokens.get('labelled_percent'))} %)\n"
        ),
        (
            f"length {number(tokens.get('shortest'))} to {number(tokens.get('longest'))}, "
            f"half up to {number(tokens.get('p50'))}  {bars}\n"
        ),
        (
            f"packed {number(packing.get('fill_percent'))} % full, {number(packing.get('passes'))} passes an epoch "
            f"(padded it would be {number(packing.get('padded_fill_percent'))} %)\n"
        ),
        f"time   {took}\n",
    ]


def preview_text(rows: Any) -> Content:
    """Rows as the model sees them; what is learnt stands out and stands between brackets."""
    parts: list[Any] = []
    for row in rows if isinstance(rows, list) else []:
        if not isinstance(row, Mapping):
            continue
        title = row.get("title") or f"{row.get('where') or ''} {number(row.get('tokens'))} tokens"
        parts.append((f"\n{clean(title, 120)}\n", "bold"))
        for segment in _list(row, "segments"):
            text = clean(segment.get("text") or "", 4000)
            parts.append((f"⟦{text}⟧", "$success bold") if segment.get("learnt") else (text, "dim"))
        parts.append("\n")
    return Content.assemble(*parts) if parts else Content("No further row.")


def _list(record: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = record.get(key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
