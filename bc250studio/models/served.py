"""The GGUF file of the base that will be served: the one the user has, one on this machine, or a converted one.

Whatever it is, it must be the model that is trained: architecture, sizes, vocabulary and chat template are compared
and a difference is refused with what differs, before anything is trained on the wrong pair.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from bc250studio.errors import BadInput, clean
from bc250studio.jobs.progress import Progress, silent
from bc250studio.models import convert
from bc250studio.models.describe import Description, describe
from bc250studio.models.find import ModelSource
from bc250studio.models.gguf_file import GgufFile

_PREFERRED = ("f16", "bf16", "f32", "q8_0", "q6_k", "q5_k_m", "q5_k_s", "q4_k_m", "q4_k_s", "q4_0", "q3_k_m", "q2_k")

if TYPE_CHECKING:
    from bc250studio.profiles import Resolved


def served_base(resolved: Resolved, source: ModelSource, progress: Progress = silent) -> Path:
    """The base's GGUF file for a run: ``model.gguf``, the source's own, one from the hub's cache, or a conversion.

    Raises:
        BadInput: the file is not there, not a model, or another model than the one trained.
        JobFailed: the conversion failed (the converter's last line is in the sentence).
    """
    return base_for(source, resolved.profile.model.gguf, progress)


def base_for(source: ModelSource, given: str | None = None, progress: Progress = silent) -> Path:
    """The same without a profile; ``given`` is the file the user named."""
    if given:
        path = Path(given).expanduser()
        if not path.is_file():
            raise BadInput(f"model.gguf = {clean(given, 200)!r}: there is no such file.")
    elif source.gguf is not None:
        path = source.gguf
    else:
        found = from_hub_cache(source)
        if found is None:
            return convert.converted(source, best_type(source), progress)
        path = found
    if source.has_config or path != source.gguf:
        check_same_model(path, source)
    return path


def best_type(source: ModelSource) -> str:
    """f32 only for small models that are stored so; else f16, which every backend computes with."""
    small = describe(source).parameters < 300_000_000
    return "f32" if small and str(describe(source).config.get("dtype", "")).endswith("float32") else "f16"


def from_hub_cache(source: ModelSource) -> Path | None:
    """A GGUF file of a hub model that lies in the hub's cache already: ``NAME-GGUF`` beside ``NAME``."""
    if source.kind != "hub":
        return None
    root = source.folder.parent.parent.parent
    wanted = f"models--{source.name.replace('/', '--')}-GGUF".lower()
    files = [
        file
        for repository in root.glob("models--*")
        if repository.name.lower() == wanted
        for file in repository.glob("snapshots/*/*.gguf")
    ]
    return choose([(file, file.stat().st_size) for file in files])


def choose(files: list[tuple[Path, int]], limit_bytes: int | None = None) -> Path | None:
    """The most exact file that fits: f16 before bf16 and f32, then q8_0, then fewer and fewer bits.

    Vision projectors, vocabularies and later parts of split files do not count.
    """
    ranked = []
    for path, size in files:
        name = path.name.lower()
        part = re.search(r"-(\d{5})-of-\d{5}\.gguf$", name)
        if re.search(r"mmproj|vocab|lora|imatrix", name) or (part and part[1] != "00001"):
            continue
        if limit_bytes is not None and size > limit_bytes:
            continue
        kind = next(
            (rank for rank, label in enumerate(_PREFERRED) if re.search(rf"(^|[-._]){label}([-._]|$)", name)), 99
        )
        ranked.append((kind, -size, str(path)))
    return Path(min(ranked)[2]) if ranked else None


def check_same_model(gguf: Path, source: ModelSource) -> None:
    """Refuse a GGUF file that is not the model of ``source``.

    Raises:
        BadInput: lists everything that differs.
    """
    with GgufFile(gguf) as file:
        differences = compare(file, describe(source)) or compare_tokenizers(file, source)
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


def compare_tokenizers(file: GgufFile, source: ModelSource) -> list[str]:
    """What differs between the file's tokenizer and chat template and the trained model's, in words.

    Tokens are compared by id where both name one (files pad their lists); templates by what they render.
    """
    found = []
    ours = _tokens(source.folder / "tokenizer.json")
    theirs = file.get("tokenizer.ggml.tokens") or []
    for index, token in enumerate(theirs):
        if index in ours and ours[index] != token and not re.fullmatch(r"\[PAD\d+\]", str(token)):
            found.append(f"token {index} is {clean(token, 30)!r} instead of {clean(ours[index], 30)!r}")
            break
    template = file.get("tokenizer.chat_template")
    if source.has_config and not found and isinstance(template, str):
        from bc250studio.models.tokenizer import load_tokenizer

        trained = load_tokenizer(source).served_template
        if trained and _normal(trained) != _normal(template) and not _render_alike(trained, template, file):
            found.append("another chat template")
    return found


def _tokens(path: Path) -> dict[int, str]:
    """id -> token of a tokenizer.json; empty where it has none or another form."""
    try:
        table = json.loads(path.read_text("utf-8"))
        vocabulary = table["model"]["vocab"]
        if isinstance(vocabulary, dict):
            tokens = {int(index): str(token) for token, index in vocabulary.items()}
        else:
            tokens = {index: str(entry[0]) for index, entry in enumerate(vocabulary)}
        tokens |= {int(entry["id"]): str(entry["content"]) for entry in table.get("added_tokens", [])}
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return {}
    return tokens


def _normal(template: str) -> str:
    return template.replace("\r\n", "\n").strip()


def _render_alike(one: str, other: str, file: GgufFile) -> bool:
    """Do two templates give the same text for a few chats? (Community files often carry tidied templates.)"""
    from transformers.utils.chat_template_utils import render_jinja_template

    tokens = file.get("tokenizer.ggml.tokens") or []

    def special(key: str) -> str:
        index = file.get(f"tokenizer.ggml.{key}_token_id")
        return str(tokens[index]) if isinstance(index, int) and 0 <= index < len(tokens) else ""

    for chat in _CHATS:
        texts = []
        for template in (one, other):
            try:
                rendered, _ = render_jinja_template(
                    [chat],
                    chat_template=template,
                    add_generation_prompt=chat[-1]["role"] == "user",
                    bos_token=special("bos"),
                    eos_token=special("eos"),
                )
                texts.append(rendered[0])
            except Exception as error:  # templates are programs of others: they may raise anything
                texts.append(type(error).__name__)
        if texts[0] != texts[1]:
            return False
    return True


_CHATS = (
    [{"role": "user", "content": "How hot is it?"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How hot is it?"},
        {"role": "assistant", "content": " 61 °C\n"},
        {"role": "user", "content": "And now?"},
    ],
    [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}],
)
