"""Sequences that speak to the terminal itself, for the app and the command line."""

from __future__ import annotations

import base64
import os


def osc52(text: str) -> list[str]:
    """The terminal sequences that put ``text`` on the clipboard of the machine the user sits at.

    tmux takes it for itself where ``set-clipboard`` is on, and hands it through to the terminal around it only when it
    is wrapped (``allow-passthrough``); which of the two holds cannot be asked, so inside tmux both are sent.
    """
    plain = f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\x07"
    return [plain, through_tmux(plain)] if os.environ.get("TMUX") else [plain]


def through_tmux(sequence: str) -> str:
    """For the terminal around tmux (its allow-passthrough)."""
    return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"
