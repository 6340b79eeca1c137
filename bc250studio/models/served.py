"""The GGUF file of the base that will be served: the one the user has, one on this machine, or a converted one.

Whatever it is, it must be the model that is trained: architecture, sizes, vocabulary and chat template are compared
and a difference is refused with what differs, before anything is trained on the wrong pair.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bc250studio import paths
from bc250studio.errors import BadInput, clean
from bc250studio.jobs.progress import Progress, silent
from bc250studio.models.describe import Description, describe
from bc250studio.models.find import ModelSource
from bc250studio.models.gguf_file import GgufFile

if TYPE_CHECKING:
    from bc250studio.profiles import Resolved


def served_base(resolved: Resolved, source: ModelSource, progress: Progress = silent) -> Path:
    """The base's GGUF file for a run: ``model.gguf``, the source's own, an earlier conversion, or a new one.

    Raises:
        BadInput: the file is not there, not a model, or another model than the one trained.
        JobFailed: the conversion failed (the converter's last lines are in the sentence).
    """
    given = resolved.profile.model.gguf
    if given:
        path = Path(given).expanduser()
        if not path.is_file():
            raise BadInput(f"model.gguf = {clean(given, 200)!r}: there is no such file.")
    elif source.gguf is not None:
        path = source.gguf
    else:
        from bc250studio.models import convert

        path = convert.converted(source, progress=progress)
    if not (source.gguf is not None and path == source.gguf and not source.has_config):
        check_same_model(path, source)
    return path


def conversions_dir() -> Path:
    """Where converted bases are kept, one folder for each model."""
    return paths.data_dir() / "models"


def check_same_model(gguf: Path, source: ModelSource) -> None:
    """Refuse a GGUF file that is not the model of ``source``.

    Raises:
        BadInput: lists everything that differs.
    """
    with GgufFile(gguf) as file:
        differences = compare(file, describe(source))
    if differences:
        raise BadInput(
            f"{clean(gguf)} is not the model that is trained ({clean(source.name, 100)}): {'; '.join(differences)}. "
            "Give the right file as model.gguf, or leave it empty to have it converted."
        )


def compare(file: GgufFile, wanted: Description) -> list[str]:
    """What differs between a GGUF file and the trained model, in words; empty when nothing does."""
    kind = file.get("general.type", "model")
    if kind != "model":
        return [f"it is a file of the type {clean(kind, 40)}"]
    embedding = file.tensors.get("token_embd.weight")
    pairs = [
        ("architecture", file.arch, wanted.gguf_arch),
        ("layers", file.arch_get("block_count"), wanted.layers),
        ("hidden size", file.arch_get("embedding_length"), wanted.hidden),
        ("attention heads", file.arch_get("attention.head_count"), wanted.heads),
        (
            "key/value heads",
            file.arch_get("attention.head_count_kv", file.arch_get("attention.head_count")),
            wanted.kv_heads,
        ),
        ("tokens in the vocabulary", embedding.shape[0] if embedding else None, wanted.vocab),
    ]
    return [f"{name} {clean(have, 40)} instead of {clean(want, 40)}" for name, have, want in pairs if have != want]
