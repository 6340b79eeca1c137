"""Which models lie on this machine: the demo, those used before, the hub cache, and the usual folders.

A walk that must end soon: three levels deep, nothing hidden, and over after two seconds or 4,000 folders,
whatever the disk is. Runs in a thread.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bc250studio.errors import StudioError, clean, nearest
from bc250studio.models import describe, find

USUAL = (
    "~/models", "~/Models", "~/llm", "~/.cache/llama.cpp", "~/.lmstudio/models", "~/.cache/lm-studio/models",
    "/models", "/mnt/models", "/srv/models", "/opt/models",
)  # fmt: skip
DEPTH = 3
LONGEST_S = 2.0
MOST_FOLDERS = 4000
NOT_MODELS = re.compile(r"mmproj|lora|adapter|vocab|imatrix", re.I)
LATER_SHARD = re.compile(r"-0*(?!1-)\d+-of-\d+\.gguf$")


@dataclass(frozen=True)
class LocalModel:
    """One line of the list. ``problem`` is a sentence when it is here but cannot be used."""

    base: str
    where: str
    size_bytes: int | None = None
    parameters: int | None = None
    architecture: str = ""
    problem: str = ""


def named(bases: Iterable[tuple[str, str]]) -> list[LocalModel]:
    """The demo, then models that profiles and earlier runs name, each described once."""
    found: dict[str, str] = {find.DEMO: "comes as a package"}
    for base, where in bases:
        found.setdefault(base, where)
    return [described(base, where) for base, where in found.items()]


def on_disk(folders: Iterable[str | Path], clock: Callable[[], float] = time.monotonic) -> list[LocalModel]:
    """The hub cache's models, then what lies in the usual places and in ``folders``."""
    found: dict[str, str] = dict.fromkeys(find.cached(), "hub cache")
    ends = clock() + LONGEST_S
    places = [Path(place).expanduser() for place in (*folders, *USUAL)]
    for base in _walk(places, lambda: clock() > ends):
        found.setdefault(str(base), clean(_short(base.parent), 60))
    return [described(base, where) for base, where in found.items()]


def described(base: str, where: str) -> LocalModel:
    """``base`` with its size, parameters and architecture; why not, when it is not here or not a model."""
    try:
        source = find.find(base)
        facts = describe.describe(source)
    except (StudioError, OSError) as error:
        return LocalModel(base, where, problem=clean(error, 300))
    return LocalModel(base, where, weight_bytes(source), facts.parameters, clean(facts.model_type, 16))


def weight_bytes(source: find.ModelSource) -> int | None:
    """Bytes of the weights as they lie on disk; links of the hub cache are followed."""
    files = [source.gguf] if source.gguf and not source.has_config else list(source.folder.glob("*.safetensors"))
    files = files or list(source.folder.glob("*.bin"))
    try:
        return sum(file.stat().st_size for file in files) or None
    except OSError:
        return None


def spelling(base: str, known: Iterable[str]) -> str:
    """`` Did you mean ...?`` among ``known``, by whole names and by their last parts, and among the folder's files."""
    names = list(known)
    hint = nearest(base, names)
    if not hint:
        last = {name.rstrip("/").rsplit("/", 1)[-1]: name for name in names}
        match = nearest(base.rstrip("/").rsplit("/", 1)[-1], last)
        word = match.removeprefix(" Did you mean '").removesuffix("'?")
        hint = f" Did you mean {last[word]!r}?" if word in last else ""
    parent = Path(base).expanduser().parent
    if not hint and "/" in base and parent.is_dir():
        try:
            beside = [str(parent / entry.name) for entry in os.scandir(parent)]
        except OSError:
            beside = []
        hint = nearest(str(Path(base).expanduser()), beside)
    return hint


def _walk(places: Iterable[Path], over: Callable[[], bool]) -> Iterator[Path]:
    """Model folders and lone GGUF files below ``places``; the folders of the hub cache are not walked again."""
    seen: set[str] = set()
    waiting = [(place, 0) for place in places]
    while waiting and not over() and len(seen) < MOST_FOLDERS:
        folder, depth = waiting.pop(0)
        real = os.path.realpath(folder)
        if real in seen:
            continue
        seen.add(real)
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            names = {entry.name for entry in entries}
            if "config.json" in names and any(name.endswith((".safetensors", ".bin")) for name in names):
                yield folder
                continue
            for entry in entries:
                if entry.name.startswith(".") or entry.name.startswith("models--"):
                    continue
                if entry.is_dir():
                    if depth < DEPTH:
                        waiting.append((Path(entry.path), depth + 1))
                elif entry.name.endswith(".gguf") and not (
                    NOT_MODELS.search(entry.name) or LATER_SHARD.search(entry.name)
                ):
                    yield Path(entry.path)
        except OSError:
            continue


def present_folder() -> Path:
    """Where the app was started; home when that folder is gone."""
    try:
        return Path.cwd()
    except OSError:
        return Path.home()


def _short(path: Path) -> str:
    """The path, the home folder written as ~."""
    home = str(Path.home())
    text = str(path)
    return "~" + text[len(home) :] if home != "/" and text.startswith(home + "/") else text
