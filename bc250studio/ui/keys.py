"""The user's own keys: ``[ui] keymap`` in settings.toml maps a binding's id to keys."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from textual.binding import Binding
from textual.dom import DOMNode

from bc250studio.errors import clean, nearest


def known_ids() -> set[str]:
    """The id of every binding of the app. Imports all screens, so it is only asked when there is a keymap."""
    from bc250studio.ui import screens, widgets

    found: set[str] = set()
    for package in (screens, widgets):
        for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for value in vars(importlib.import_module(info.name)).values():
                found |= ids_of(value)
    return found


def ids_of(owner: object) -> set[str]:
    """The binding ids that a screen, widget or app class declares."""
    if not (isinstance(owner, type) and issubclass(owner, DOMNode)):
        return set()
    return {binding.id for binding in owner.BINDINGS if isinstance(binding, Binding) and binding.id}


def problems(keymap: Mapping[str, str], ids: set[str]) -> list[str]:
    """Sentences about ids that do not exist."""
    return [
        f"settings.toml: ui.keymap: there is no key called {clean(name, 40)!r}.{nearest(name, ids)}"
        for name in keymap
        if name not in ids
    ]
