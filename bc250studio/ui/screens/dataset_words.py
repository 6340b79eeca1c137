"""What a look and `data check` found, as text for the dataset screen and the review."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from textual.content import Content

from bc250studio.errors import clean
from bc250studio.ui.dataset_look import Look
from bc250studio.ui.numbers import duration, number, size
from bc250studio.ui.stage_words import table

BLOCKS = " ▁▂▃▄▅▆▇█"
LABEL = 9
SHOWN_DROPPED = 8


def look_text(found: Look) -> Content:
    """One or two lines under the field: format, columns, size; or why it cannot be learnt."""
    if found.refusal:
        return Content.styled(clean(found.refusal, 400), "bold $error")
    if found.recognition.question:
        return Content.styled(clean(found.recognition.question, 400), "$warning")
    many = f" in {found.files} files" if found.files > 1 else ""
    pairs = [f"{ours} from {clean(name, 30)}" for ours, name in found.recognition.columns.items() if ours != name]
    columns = f" · {', '.join(pairs)}" if pairs else ""
    return Content.assemble((found.recognition.format, "bold"), f" rows{many}, {size(found.size_bytes)}{columns}")


def check_text(found: Any) -> Content:
    """A table of verdicts with reasons first, then tokens, packing, time, notes."""
    if not isinstance(found, Mapping):
        return Content(clean(found, 2000))
    rows = table(found, "rows")
    columns = ", ".join(f"{clean(k, 20)} from {clean(v, 30)}" for k, v in table(found, "columns").items() if k != v)
    count = found.get("files")
    where = f" in {number(count)} file{'' if count == 1 else 's'}"
    parts: list[Any] = [
        (f"{clean(found.get('format') or '?', 30)} rows", "bold"),
        f"{where}{': ' + columns if columns else ''}\n\n",
    ]
    cut = f"at {number(found.get('max_length'))} tokens (data.max_length)" if rows.get("cut") else ""
    for name, style, why in (("used", "$success", ""), ("cut", "$warning", cut), ("dropped", "$error", "")):
        value = rows.get(name) or 0
        parts.append(
            (f"{'rows' if name == 'used' else '':<{LABEL}}{number(value):>9}  {name:<8}", style if value else "dim")
        )
        parts.append(f" {why}\n")
    for reason, value in table(found, "reasons").items():
        parts.append(f"{'':<{LABEL}}{number(value):>9}    {clean(reason, 80)}\n")
    parts.append(f"{'':<{LABEL}}{number(rows.get('total')):>9}  in all\n")
    tokens = table(found, "tokens")
    if tokens.get("all"):
        parts += _tokens(found, tokens)
    dropped = _list(found, "dropped_rows")
    if dropped:
        parts.append((f"\nfirst {min(SHOWN_DROPPED, len(dropped))} of the dropped rows\n", "bold"))
    for row in dropped[:SHOWN_DROPPED]:
        detail = f" ({clean(row.get('detail'), 100)})" if row.get("detail") else ""
        parts.append((f"  {clean(row.get('where') or '', 60)}: {clean(row.get('reason') or '', 100)}{detail}\n", "dim"))
    notes = found.get("notes")
    parts += [(f"! {clean(note, 300)}\n", "$warning") for note in (notes if isinstance(notes, list) else [])]
    return Content.assemble(*parts)


def _tokens(found: Mapping[str, Any], tokens: Mapping[str, Any]) -> list[Any]:
    packing, time, split = table(found, "packing"), table(found, "time"), table(found, "split")
    seconds = time.get("seconds_per_epoch")
    took = f"about {duration(seconds)} an epoch, at the rate of {clean(time.get('from_run') or 'a run', 40)}"
    counts = [int(bucket.get("count") or 0) for bucket in _list(found, "histogram")]
    most = max(counts, default=0) or 1
    bars = "".join(BLOCKS[-(-8 * count // most)] for count in counts)

    def line(name: str, value: Any, text: str) -> str:
        return f"{name:<{LABEL}}{number(value):>9}  {text}\n"

    share, least, half = tokens.get("labelled_percent"), tokens.get("shortest"), tokens.get("p50")
    full, padded = packing.get("fill_percent"), packing.get("padded_fill_percent")
    lines = [
        line("tokens", tokens.get("all"), f"of which {number(tokens.get('labelled'))} are learnt ({number(share)} %)"),
        line("length", tokens.get("longest"), f"at most, {number(least)} at least, half up to {number(half)}  {bars}"),
        line(
            "passes", packing.get("passes"), f"an epoch, {number(full)} % full when packed ({number(padded)} % padded)"
        ),
    ]
    if split:
        held = number(split.get("evaluation"))
        lines.append(line("split", split.get("train"), f"rows to learn from, {held} kept for evaluation"))
    unknown = f"not known: {clean(time.get('why') or 'no run yet', 120)}"
    return ["\n", *lines, f"{'time':<{LABEL}}{took if seconds else unknown}\n"]


def _list(record: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = record.get(key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
