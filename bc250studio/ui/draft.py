"""A fine-tune being put together: a profile to start from and what was changed since.

The screens of "New fine-tune" all write into one draft, so going back never loses input.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bc250studio import paths, profiles
from bc250studio.errors import BadInput
from bc250studio.jobs import JobFolder
from bc250studio.profiles.profile import sections


@dataclass
class Draft:
    """``text`` is TOML, ``changes`` maps ``section.key`` to the value that replaces it."""

    name: str
    text: str
    where: str
    folder: Path | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    typed: dict[str, str] = field(default_factory=dict)
    """What stands in a field but does not fit; kept so that going back and forth loses nothing."""
    _known: tuple[str, profiles.Resolved] | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def from_profile(cls, reference: str, name: str = "") -> Draft:
        """Start from a shipped or saved profile, or a profile's file, perhaps under another name.

        Raises:
            BadInput: there is none, or it is not valid.
        """
        file = profiles.locate(reference)
        profiles.load(reference)
        return cls(name or file.stem, file.read_text("utf-8"), str(file), file.parent)

    @classmethod
    def from_run(cls, job: JobFolder) -> Draft:
        """Start from the frozen copy a run keeps, which is what it really did."""
        resolved = job.profile()
        return cls(resolved.name, profiles.dump(resolved), str(job.path / "profile.toml"))

    @classmethod
    def empty(cls) -> Draft:
        """Start from the defaults."""
        return cls("my-fine-tune", "", "new profile")

    def resolved(self) -> profiles.Resolved:
        """The profile as it stands.

        Raises:
            BadInput: a value does not fit; the sentence names it.
        """
        key = f"{self.name}\0{self.changes!r}"
        if self._known is None or self._known[0] != key:
            self._known = (key, profiles.from_text(self.text, self.where, self.name, self.changes, self.folder))
        return self._known[1]

    def value(self, key: str) -> Any:
        """The value of ``section.key`` as it stands."""
        section, _, name = key.partition(".")
        return getattr(getattr(self.resolved().profile, section), name)

    def put(self, key: str, value: Any) -> None:
        """Change one value, or leave everything as it was.

        Raises:
            BadInput: it does not fit; the draft is unchanged.
        """
        before = dict(self.changes)
        self.changes[key] = value
        try:
            self.resolved()
        except BadInput:
            self.changes = before
            raise

    def put_text(self, key: str, text: str) -> None:
        """Change one value from what was typed: TOML where it reads as such, else plain text; empty unsets."""
        text = text.strip()
        if text == shown(self.value(key)):
            return
        if not text:
            self.put(key, None if _optional(key) else default_of(key))
            return
        try:
            value: Any = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        if _takes_text(key) and not isinstance(value, (str, list)):
            value = text
        self.put(key, value)

    def file(self) -> Path:
        """The draft as a file that the command-line twin can read; replaced at every call.

        Raises:
            BadInput: a value does not fit.
        """
        folder = paths.private_dir(paths.cache_dir() / "drafts")
        file = folder / f"draft-{os.getpid()}.toml"
        paths.write_atomic(file, profiles.dump(self.resolved()))
        return file

    def not_default(self) -> Mapping[str, tuple[Any, str]]:
        """Everything that differs from the defaults: key -> (value, where it came from)."""
        resolved, plain = self.resolved(), profiles.Profile()
        found = {}
        for section in sections():
            mine, default = getattr(resolved.profile, section), getattr(plain, section)
            for key in type(mine).model_fields:
                if getattr(mine, key) != getattr(default, key):
                    origin = (
                        "this draft" if f"{section}.{key}" in self.changes else resolved.origins[f"{section}.{key}"]
                    )
                    found[f"{section}.{key}"] = (getattr(mine, key), origin)
        return found

    # Unfinished drafts outlive the app, a cut line and a reboot

    def keep(self) -> None:
        """Remember it as the unfinished draft; one that changed nothing is not worth it."""
        if self.changes:
            folder = str(self.folder) if self.folder else None
            table = {
                "name": self.name,
                "text": self.text,
                "where": self.where,
                "folder": folder,
                "changes": self.changes,
            }
            paths.private_dir(paths.state_dir())
            paths.write_atomic(_kept(), json.dumps(table))

    @classmethod
    def kept(cls) -> Draft | None:
        """The unfinished draft, if there is a readable one."""
        try:
            table = json.loads(_kept().read_text("utf-8"))
            folder = Path(table["folder"]) if table["folder"] else None
            draft = cls(str(table["name"]), str(table["text"]), str(table["where"]), folder, dict(table["changes"]))
            draft.resolved()
        except (OSError, ValueError, KeyError, TypeError, BadInput):
            return None
        return draft

    @staticmethod
    def forget() -> None:
        """It was started, queued, saved, or given up."""
        _kept().unlink(missing_ok=True)

    def save(self, name: str, replace: bool = False) -> Path:
        """Write it as one of the user's profiles.

        Raises:
            BadInput: no usable name, or one that exists and ``replace`` is false.
        """
        name = name.strip()
        if not name or name.startswith(".") or any(c in name for c in "/\\\0\n"):
            raise BadInput("A profile's name is a plain word, such as my-fine-tune.")
        file = paths.private_dir(paths.user_profiles_dir()) / f"{name}.toml"
        if file.exists() and not replace:
            raise BadInput(f"A profile {name!r} exists already; choose another name.")
        resolved = self.resolved()
        paths.write_atomic(file, profiles.dump(profiles.Resolved(name, resolved.profile, resolved.origins)))
        self.name = name
        return file


def _kept() -> Path:
    return paths.state_dir() / "draft.json"


def shown(value: Any) -> str:
    """A value as it stands in an input field."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, dict)):
        import tomlkit

        return tomlkit.item(value).as_string().strip() if value else ""
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _annotation(key: str) -> str:
    section, _, name = key.partition(".")
    return str(sections()[section].model_fields[name].annotation)


def _optional(key: str) -> bool:
    return "None" in _annotation(key)


def _takes_text(key: str) -> bool:
    return "str" in _annotation(key) and "int" not in _annotation(key)


def default_of(key: str) -> Any:
    """What ``section.key`` is when nobody says anything."""
    section, _, name = key.partition(".")
    return sections()[section].model_fields[name].get_default(call_default_factory=True)
