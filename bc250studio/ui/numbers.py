"""Numbers as a person reads them: durations, counts, rates, and the value that is not there."""

from __future__ import annotations

import math
import time
from typing import Any

NA = "n/a"


def finite(value: Any) -> float | None:
    """The value as a float, or None for everything that is no finite number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def number(value: Any, digits: int = 3, unit: str = "") -> str:
    """``digits`` significant digits, thin groups, ``n/a`` when absent."""
    real = finite(value)
    if real is None:
        return NA
    if isinstance(value, int):
        text = f"{value:,}"
    elif real == 0:
        text = "0"
    elif (real == int(real) and abs(real) >= 100) or abs(real) >= 10**digits:
        text = f"{real:,.0f}"
    elif abs(real) < 1e-3:
        text = f"{real:.{digits - 1}e}"
    else:
        text = f"{real:.{max(0, digits - 1 - math.floor(math.log10(abs(real))))}f}"
    return f"{text} {unit}" if unit else text


def fixed(value: Any, places: int = 3) -> str:
    """A fixed number of decimals (one less from 10 on), so that a column does not dance."""
    real = finite(value)
    return NA if real is None else f"{real:.{places - 1 if abs(real) >= 10 else places}f}"


def duration(seconds: Any) -> str:
    """``8 s``, ``2 min 10 s``, ``3 h 05 min``, ``2 d 4 h``."""
    real = finite(seconds)
    if real is None or real < 0:
        return NA
    whole = round(real)
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def age(seconds: Any) -> str:
    """How old, coarse enough to stay the same for a while."""
    real = finite(seconds)
    if real is None:
        return NA
    if real < 60:
        return "now"
    if real < 3600:
        return f"{int(real // 60)} min"
    if real < 86400:
        return f"{int(real // 3600)} h"
    return f"{int(real // 86400)} d"


def clock(t: Any, form: str = "%H:%M:%S") -> str:
    """A Unix time as this machine's time of day; as many blanks when it is none."""
    real = finite(t)
    try:
        return time.strftime(form, time.localtime(real)) if real is not None else " " * 8
    except (OverflowError, ValueError, OSError):
        return " " * 8


def ago(seconds: Any) -> str:
    """How long ago, in a sentence."""
    text = age(seconds)
    return {"now": "just now", NA: "never"}.get(text, f"{text} ago")


def size(count: Any) -> str:
    """Bytes in binary units."""
    real = finite(count)
    if real is None:
        return NA
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(real) < 1024 or unit == "GiB":
            return f"{real:.0f} {unit}" if unit == "B" or real >= 100 else f"{real:.1f} {unit}"
        real /= 1024
    return NA


def big(count: Any) -> str:
    """Parameters and tokens: ``135 M``, ``1.2 B``, ``840``."""
    real = finite(count)
    if real is None:
        return NA
    for factor, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(real) >= factor:
            scaled = real / factor
            return f"{scaled:.0f} {unit}" if scaled >= 100 else f"{scaled:.1f} {unit}"
    return f"{real:.0f}"


def bar(share: Any, width: int, ascii_only: bool = False) -> str:
    """A progress bar of exactly ``width`` characters."""
    real = min(1.0, max(0.0, finite(share) or 0.0))
    full = round(real * width)
    done, rest = ("#", "-") if ascii_only else ("━", "─")
    return done * full + rest * (width - full)
