"""Errors a user can act on: one sentence that says what happened, where, and what to do.

The exit code travels with the error, so the command line and the app never have to guess what a
failure means: 1 the job failed, 2 bad input or usage, 3 a proof failed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class StudioError(Exception):
    """The base of every error that is meant for the user; ``str(error)`` is a whole sentence."""

    exit_code = 1


class JobFailed(StudioError):
    """Work that was accepted could not be finished."""

    exit_code = 1


class BadInput(StudioError):
    """What the user gave cannot be used: a file, a key, a number, an option."""

    exit_code = 2


class ProofFailed(StudioError):
    """What answers is not what was trained (or a kernel computes wrongly)."""

    exit_code = 3


def clean(text: object, limit: int | None = None) -> str:
    """Foreign text made safe to print: control characters, terminal escapes and bidi overrides go.

    Newlines and tabs stay. ``limit`` cuts to that many characters, with an ellipsis.
    """
    safe = _CONTROL.sub("", str(text).replace("\r\n", "\n"))
    if limit is not None and len(safe) > limit:
        return safe[: max(limit - 1, 0)] + "…"
    return safe


def nearest(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` for a misspelt name, or an empty string when nothing is close."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {match[0]!r}?" if match else ""
