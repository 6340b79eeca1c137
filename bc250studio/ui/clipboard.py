"""The clipboard of the machine the user sits at, through the terminal."""

from __future__ import annotations

from textual.app import App


def copy(app: App[None], text: str) -> None:
    """By OSC 52, inside tmux also wrapped so that it passes on to the terminal around it."""
    from bc250studio.serve.reach import osc52

    app._clipboard = text  # pasting inside the app works with every terminal
    if app._driver is not None:
        app._driver.write(osc52(text))
