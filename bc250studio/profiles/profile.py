"""The profile as a whole: read, merge, validate, write."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomlkit
from pydantic import Field, ValidationError

from bc250studio import paths
from bc250studio.errors import BadInput, clean, nearest
from bc250studio.profiles.adapter import Adapter
from bc250studio.profiles.ask import Ask
from bc250studio.profiles.base import Section
from bc250studio.profiles.data import Data
from bc250studio.profiles.export import Export
from bc250studio.profiles.kernels import Kernels
from bc250studio.profiles.model import Model
from bc250studio.profiles.proof import Proof
from bc250studio.profiles.serve import Serve
from bc250studio.profiles.thermal import Thermal
from bc250studio.profiles.train import Train


class Profile(Section):
    """A whole fine-tune: model, data, adapter, training, export, serving, proof."""

    title: str = ""
    """One line that says what this profile is for."""
    model: Model = Field(default_factory=Model)
    data: Data = Field(default_factory=Data)
    adapter: Adapter = Field(default_factory=Adapter)
    train: Train = Field(default_factory=Train)
    thermal: Thermal = Field(default_factory=Thermal)
    kernels: Kernels = Field(default_factory=Kernels)
    export: Export = Field(default_factory=Export)
    serve: Serve = Field(default_factory=Serve)
    proof: Proof = Field(default_factory=Proof)
    ask: Ask = Field(default_factory=Ask)


@dataclass(frozen=True)
class Resolved:
    """A profile with the name it goes by and where each value came from.

    ``origins`` maps ``section.key`` to ``default``, a file's name or ``command line``.
    """

    name: str
    profile: Profile
    origins: dict[str, str] = field(default_factory=dict)


def sections() -> dict[str, type[Section]]:
    """Section name -> its class, in the order they are written."""
    found: dict[str, type[Section]] = {}
    for name, info in Profile.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            found[name] = info.annotation
    return found


def available() -> dict[str, Path]:
    """Name -> file of every profile: those that ship, overlaid by the user's own."""
    found: dict[str, Path] = {}
    for folder in (paths.shipped("profiles"), paths.user_profiles_dir()):
        if folder.is_dir():
            for file in sorted(folder.glob("*.toml")):
                found[file.stem] = file
    return found


def locate(reference: str) -> Path:
    """The file of a profile given as a path or as the name of a shipped or saved one.

    Raises:
        BadInput: there is none; names the nearest spelling.
    """
    path = Path(reference).expanduser()
    if path.is_file():
        return path
    known = available()
    if reference in known:
        return known[reference]
    raise BadInput(
        f"No profile {clean(reference)!r}: not a file, and not among {', '.join(sorted(known))}."
        + nearest(path.stem, known)
    )


def load(reference: str, overrides: Sequence[str] | Mapping[str, Any] = ()) -> Resolved:
    """Read the profile ``reference`` and apply ``overrides`` (``section.key=value`` or a mapping).

    Relative data, model and gguf paths are taken from the profile file's folder when they exist there.

    Raises:
        BadInput: unreadable file, unknown key (with the nearest spelling), value out of range.
    """
    path = locate(reference)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"The profile {path} cannot be read: {error}.") from error
    return from_text(text, str(path), path.stem, overrides, folder=path.parent)


def from_text(
    text: str,
    where: str,
    name: str = "profile",
    overrides: Sequence[str] | Mapping[str, Any] = (),
    folder: Path | None = None,
) -> Resolved:
    """A profile from TOML text; ``where`` names it in errors. See :func:`load`."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{where} is not valid TOML: {error}.") from error
    origins = {f"{s}.{k}": "default" for s, c in sections().items() for k in c.model_fields}
    _check_keys(table, where)
    for section, values in table.items():
        if isinstance(values, dict):
            for key in values:
                origins[f"{section}.{key}"] = Path(where).name
    given = overrides.items() if isinstance(overrides, Mapping) else [parse_override(o) for o in overrides]
    for dotted, value in given:
        section, _, key = dotted.partition(".")
        _check_keys({section: {key: value}} if key else {section: value}, "--set")
        if key:
            table.setdefault(section, {})[key] = value
        else:
            table[section] = value
        origins[dotted] = "command line"
    if folder is not None:
        _anchor_paths(table, folder, origins)
    try:
        profile = Profile.model_validate(_loosen_numbers(table))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{where}: {key} = {clean(first.get('input'), 60)!r}: {first['msg']}.") from error
    return Resolved(name, profile, origins)


def dump(resolved: Resolved) -> str:
    """TOML text of the complete profile, each value with a comment that says where it came from."""
    document = tomlkit.document()
    document.add(tomlkit.comment(f"profile {resolved.name}, frozen and complete"))
    document.add("title", tomlkit.item(resolved.profile.title))
    for section in sections():
        table = tomlkit.table()
        values = getattr(resolved.profile, section)
        for key in type(values).model_fields:
            value = getattr(values, key)
            origin = resolved.origins.get(f"{section}.{key}", "default")
            if value is None:
                table.add(tomlkit.comment(f"{key} is not set"))
            else:
                table.add(key, tomlkit.item(value))
                table.value.item(key).comment(origin)  # type: ignore[union-attr]
        document.add(section, table)
    return tomlkit.dumps(document)


def describe(key: str) -> str:
    """The documentation of one key, for ``profiles show`` and the app's help."""
    section, _, name = key.partition(".")
    return (sections()[section].model_fields[name].description or "").replace("\n", " ")


def _check_keys(table: Mapping[str, Any], where: str) -> None:
    known = sections()
    for section, values in table.items():
        if section == "title":
            continue
        if section not in known:
            raise BadInput(f"{where}: unknown section [{clean(section, 60)}].{nearest(section, [*known, 'title'])}")
        if not isinstance(values, Mapping):
            raise BadInput(f"{where}: {section} must be a table; write [{section}] with keys below it.")
        fields = known[section].model_fields
        for key in values:
            if key not in fields:
                elsewhere = [f"{s}.{key}" for s, c in known.items() if key in c.model_fields]
                hint = f" Did you mean {elsewhere[0]!r}?" if elsewhere else nearest(key, fields)
                raise BadInput(f"{where}: unknown key {section}.{clean(key, 60)}.{hint}")


def parse_override(text: str) -> tuple[str, Any]:
    dotted, equals, raw = text.partition("=")
    if not equals:
        raise BadInput(f"--set {clean(text, 80)} needs the form section.key=value, such as train.steps=20.")
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    return dotted.strip(), value


def _loosen_numbers(table: Mapping[str, Any]) -> dict[str, Any]:
    """TOML writes 3 for a float field; strict validation would refuse it."""
    loosened: dict[str, Any] = {}
    for section, values in table.items():
        if not isinstance(values, Mapping):
            loosened[section] = values
            continue
        fields = sections()[section].model_fields
        loosened[section] = {
            key: float(value)
            if type(value) is int and "float" in str(fields[key].annotation)
            else {k: float(v) if type(v) is int else v for k, v in value.items()}
            if key == "alpha_pattern" and isinstance(value, Mapping)
            else value
            for key, value in values.items()
        }
    return loosened


def _anchor_paths(table: dict[str, Any], folder: Path, origins: Mapping[str, str]) -> None:
    for section, key in (
        ("data", "path"),
        ("data", "eval_path"),
        ("model", "base"),
        ("model", "gguf"),
        ("ask", "file"),
    ):
        value = table.get(section, {}).get(key)
        if isinstance(value, str) and value and origins.get(f"{section}.{key}") != "command line":
            candidate = folder / value
            if not Path(value).is_absolute() and candidate.exists():
                table[section][key] = str(candidate.resolve())
