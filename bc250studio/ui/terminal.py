"""What the app says to the terminal itself beside the picture: its title, its clipboard, desktop notifications."""

from __future__ import annotations

import os

from textual.app import App

from bc250studio.errors import clean
from bc250studio.terminal_codes import osc52, through_tmux

SAVE_TITLE, RESTORE_TITLE = "\x1b[22;0t", "\x1b[23;0t"


class TerminalApp(App[None]):
    """An app that may send sequences past the compositor, through the driver's own queue."""

    _window_title = ""

    def write_escape(self, sequence: str) -> None:
        """Send it as it is."""
        if self._driver is not None:
            self._driver.write(sequence)
            self._driver.flush()

    def set_window_title(self, text: str) -> None:
        """Terminal title, sent only when it changes; the one before is kept by the terminal."""
        if text != self._window_title and not self.is_headless and not self.is_web:
            if not self._window_title:
                self.write_escape(SAVE_TITLE)
            self._window_title = text
            self.write_escape(f"\x1b]0;{clean(text, 80)}\x07")

    def restore_window_title(self) -> None:
        """The title from before the app."""
        if self._window_title:
            self.write_escape(RESTORE_TITLE)

    def copy_to_clipboard(self, text: str) -> None:
        """OSC 52, and the app's own clipboard for pasting inside it."""
        self._clipboard = text
        for sequence in osc52(text):
            self.write_escape(sequence)

    def notify_desktop(self, kind: str, line: str) -> None:
        """OSC 9 carries a text, OSC 777 a title and a text, whose fields a semicolon would split."""
        line = clean(line, 300).replace("\n", " ")
        osc = f"777;notify;bc250studio;{line.replace(';', ',')}" if kind == "777" else f"9;{line}"
        sequence = f"\x1b]{osc}\x07"
        self.write_escape(through_tmux(sequence) if "TMUX" in os.environ else sequence)
