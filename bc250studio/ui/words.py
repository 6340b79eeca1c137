"""Words and glyphs for how things stand; colour is never the only sign."""

from __future__ import annotations

from bc250studio.errors import clean
from bc250studio.jobs import Standing
from bc250studio.ui.numbers import duration

GLYPHS = {
    "live": "▶", "done": "✓", "failed": "✗", "stopped": "■", "lost": "?", "machine restarted": "?",
    "stuck": "!", "created": "·", "passed": "✓", "running": "▶", "waiting": "·",
}  # fmt: skip
STYLES = {
    "live": "$primary", "running": "$primary", "done": "$success", "passed": "$success", "failed": "$error",
    "stuck": "$error", "lost": "$warning", "machine restarted": "$warning", "stopped": "$warning",
}  # fmt: skip
STALE_S = 5.0


def verdict_text(standing: Standing) -> str:
    """Glyph and word, with the age of the news when it is old."""
    word = standing.phase if standing.verdict == "live" else standing.verdict
    text = f"{GLYPHS.get(standing.verdict, '·')} {word}"
    if standing.live and standing.age_s > STALE_S:
        text += f" (news {duration(standing.age_s)} old)"
    return text


def hanging(label: str, text: str, width: int) -> str:
    """``label`` and ``text`` wrapped to ``width`` columns, further lines set in under the text."""
    import textwrap

    indent = " " * len(label)
    lines = textwrap.wrap(text, max(20, width), initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    return label + "\n".join(lines)[len(label) :]


def short_base(base: object) -> str:
    """A model's name without where it lies."""
    return clean(str(base or "").rstrip("/").rsplit("/", 1)[-1].removeprefix("demo:"), 40)
