"""What `data check` and `data preview` found, as text for the dataset screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from textual.content import Content

from bc250studio.errors import clean


def check_text(found: Any) -> Content:
    """The verdict, then every figure the check gives."""
    if not isinstance(found, Mapping):
        return Content(clean(found, 2000))
    parts: list[Any] = []
    for key, value in found.items():
        if isinstance(value, Mapping):
            inner = " · ".join(f"{clean(k, 40)} {clean(v, 60)}" for k, v in list(value.items())[:8])
            parts += [(f"{clean(key, 24):<18}", "dim"), f"{inner}\n"]
        elif isinstance(value, list):
            parts += [(f"{clean(key, 24):<18}", "dim"), f"{len(value)}\n"]
            parts += [f"  {clean(item, 160)}\n" for item in value[:6]]
        else:
            parts += [(f"{clean(key, 24):<18}", "dim"), f"{clean(value, 200)}\n"]
    return Content.assemble(*parts)


def preview_text(rows: Any) -> Content:
    """Rows with the learnt parts standing out."""
    return Content(clean(rows, 4000))
