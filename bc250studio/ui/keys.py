"""The user's own keys: ``[ui] keymap`` in settings.toml maps a binding's id to keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from textual.binding import Binding

from bc250studio.errors import nearest


def known_ids(screens: Iterable[type]) -> set[str]:
    """Every binding id of these classes."""
    return {
        binding.id for screen in screens for binding in getattr(screen, "BINDINGS", ()) if isinstance(binding, Binding)
        and binding.id
    }  # fmt: skip


def problems(keymap: Mapping[str, str], ids: set[str]) -> list[str]:
    """Sentences about ids that do not exist."""
    return [f"settings.toml: ui.keymap: no binding {name!r}.{nearest(name, ids)}" for name in keymap if name not in ids]
