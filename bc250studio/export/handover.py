"""The folder to give away: the files, a model card, an Ollama Modelfile, and the one line for llama-server."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bc250studio import paths
from bc250studio.errors import BadInput, JobFailed, clean
from bc250studio.export import ollama
from bc250studio.export.exported import Exported
from bc250studio.export.peft_adapter import CONFIG, WEIGHTS, read_config
from bc250studio.models.describe import Description, describe
from bc250studio.models.find import ModelSource
from bc250studio.models.gguf_file import GgufFile
from bc250studio.models.tokenizer import load_tokenizer

LINK_OVER_BYTES = 256 << 20


@dataclass(frozen=True)
class Facts:
    """What is known of the training: shown on the card where it is known, left out where not."""

    title: str
    train: dict[str, Any] = field(default_factory=dict)
    proof: dict[str, Any] = field(default_factory=dict)
    adapter: dict[str, Any] = field(default_factory=dict)
    data: str | None = None


def write(folder: Path, exported: Exported, trained: Path, source: ModelSource, base: Path, facts: Facts) -> list[str]:
    """Fill ``folder`` (new or empty); returns the names written. The folder appears only when it is complete.

    Raises:
        BadInput: the folder exists and holds something.
        JobFailed: no room on the disk.
    """
    folder = folder.expanduser().absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{clean(folder)} exists already; give a new or empty folder for the hand-over.")
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        paths.private_dir(scratch)
        _place(exported.path, scratch / exported.path.name)
        if exported.kind == "adapter":  # by name: a run keeps its optimiser's state beside it
            _place(trained / WEIGHTS, scratch / WEIGHTS)
            _adapter_config(trained, scratch, source)
        texts = _texts(exported, source, base, facts)
        for name, text in texts.items():
            paths.write_atomic(scratch / name, text)
        if folder.is_dir():
            folder.rmdir()
        scratch.rename(folder)
        paths.sync_dir(folder.parent)
    except OSError as error:
        raise JobFailed(
            f"The hand-over folder {clean(folder)} could not be written: {error.strerror or error}."
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return sorted(file.name for file in folder.iterdir())


def server_line(exported: Exported, base: Path) -> str:
    """The one line that serves the files from inside the folder."""
    if exported.kind == "merged":
        return f"llama-server -m {shlex.quote(exported.path.name)} --jinja --host 127.0.0.1 --port 8080"
    adapter = shlex.quote(exported.path.name)
    return f"llama-server -m {shlex.quote(base.name)} --lora {adapter} --jinja --host 127.0.0.1 --port 8080"


def _place(file: Path, target: Path) -> None:
    """A copy; a big file is a hard link where possible, so that the folder does not cost its room twice."""
    if file.stat().st_size > LINK_OVER_BYTES:
        try:
            os.link(file, target)
            return
        except OSError:
            pass
    shutil.copyfile(file, target)
    target.chmod(0o600)


def _adapter_config(trained: Path, scratch: Path, source: ModelSource) -> None:
    """PEFT's config without the path on this machine."""
    config = read_config(trained)
    config["base_model_name_or_path"] = public_name(source)
    paths.write_atomic(scratch / CONFIG, json.dumps(config, indent=2))


def public_name(source: ModelSource) -> str:
    """The base's name as others know it: a hub id, or the folder's last name instead of a path."""
    if source.kind == "demo":
        return "HuggingFaceTB/SmolLM2-135M-Instruct"
    return source.name if source.kind == "hub" else Path(source.name).name


def _texts(exported: Exported, source: ModelSource, base: Path, facts: Facts) -> dict[str, str]:
    description = describe(source)
    with GgufFile(base) as file:
        tokens = file.get("tokenizer.ggml.tokens") or []
        bos_id, adds_bos = (
            file.get("tokenizer.ggml.bos_token_id"),
            bool(file.get("tokenizer.ggml.add_bos_token", False)),
        )
    bos = str(tokens[bos_id]) if isinstance(bos_id, int) and 0 <= bos_id < len(tokens) else ""
    stops = [str(tokens[index]) for index in description.eos_ids if 0 <= index < len(tokens)]
    pieces = _pieces(source)
    adapter = exported.path.name if exported.kind == "adapter" else None
    model = f"./{base.name}" if adapter else f"./{exported.path.name}"
    where = f"Run inside this folder, with {base.name} beside these files." if adapter else "Run inside this folder."
    return {
        "README.md": card(exported, source, base, facts, description, pieces is not None),
        "Modelfile": ollama.modelfile(model, adapter, pieces, bos if adds_bos else "", stops),
        "serve.sh": f"#!/bin/sh\n# {where}\nexec {server_line(exported, base)}\n",
    }


def _pieces(source: ModelSource) -> ollama.Pieces | None:
    tokenizer = load_tokenizer(source)
    if not tokenizer.template:
        return None

    def render(chat: ollama.Chat, generation: bool) -> str:
        return tokenizer.render(list(chat), add_generation_prompt=generation)

    return ollama.pieces_of(render)


def card(
    exported: Exported, source: ModelSource, base: Path, facts: Facts, description: Description, has_template: bool
) -> str:
    """The model card: YAML head as the hub reads it, then what was done and what was measured."""
    head = ["---", f"base_model: {json.dumps(public_name(source))}"]
    if description.licence:
        head.append(f"license: {json.dumps(description.licence)}")
    head += [
        "library_name: " + ("peft" if exported.kind == "adapter" else "gguf"),
        "tags: [lora, gguf, llama.cpp]",
        "---",
    ]
    rows = [
        ("Base", public_name(source)),
        ("Licence of the base", description.licence or "not stated; ask its makers"),
        ("File", f"{exported.path.name}, {exported.size_bytes / 2**20:,.1f} MiB, sha256 `{exported.sha256}`"),
        ("Number types in it", ", ".join(f"{count} x {kind}" for kind, count in exported.types.items())),
        ("Data", facts.data),
        ("Data digest", facts.train.get("data_digest")),
        ("Adapter", ", ".join(f"{key} {value}" for key, value in facts.adapter.items()) or None),
        ("Steps", facts.train.get("steps")),
        ("Evaluation loss before", _number(facts.train.get("eval_loss_before"))),
        ("Evaluation loss after", _number(facts.train.get("eval_loss_after"))),
        ("Proof: mean KL to the trained model", _number(facts.proof.get("mean_kl"))),
        ("Proof: equal first choices", _number(facts.proof.get("top1"))),
        ("Proof: tokens compared", facts.proof.get("tokens")),
    ]
    table = ["| | |", "|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in rows if value not in (None, ""))]
    lines = [*head, "", f"# {_cell(facts.title)}", "", *table, "", "## Serve it", ""]
    if exported.kind == "adapter":
        lines += [f"Put `{base.name}` (the base it was trained and proven on) into this folder, then:", ""]
    lines += ["```sh", server_line(exported, base), "```", ""]
    if has_template:
        lines += [
            "With Ollama: `ollama create my-model -f Modelfile`; its TEMPLATE renders what the model's own does.",
            "",
        ]
    else:
        lines += [
            "The Modelfile has no TEMPLATE: this model's chat template has no exact form in Ollama. Use llama-server.",
            "",
        ]
    lines += [f"- {clean(note)}" for note in exported.notes]
    return "\n".join(lines).rstrip() + "\n"


def _cell(value: object) -> str:
    return clean(value, 200).replace("|", "\\|").replace("\n", " ")


def _number(value: object) -> str | None:
    return f"{value:.4g}" if isinstance(value, (int, float)) else None
