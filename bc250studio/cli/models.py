"""bc250studio models list|show|fit|get: the models on this machine, what they are, and how to fetch one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bc250studio.cli import models_fit
from bc250studio.cli.common import Bar, emit, narrate, table
from bc250studio.errors import BadInput, clean


def add(parser: argparse.ArgumentParser) -> None:
    """One sub-parser an action; each sets ``act``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|show|fit|get")
    listing = actions.add_parser("list", help="models that need no download", allow_abbrev=False)
    listing.add_argument("folder", nargs="*", help="also look in these folders")
    listing.add_argument("--json", action="store_true")
    listing.set_defaults(act=_list)
    show = actions.add_parser("show", help="shapes, tokenizer, template, licence", allow_abbrev=False)
    show.add_argument("model", help="demo:smollm2-135m, a folder, a .gguf file or a hub id")
    show.add_argument("--revision", help="branch, tag or commit of a hub model")
    show.add_argument("--template", action="store_true", help="print the chat template")
    show.add_argument("--json", action="store_true")
    show.set_defaults(act=_show)
    get = actions.add_parser("get", help="fetch a model from the hub", allow_abbrev=False)
    get.add_argument("model", help="hub id such as Qwen/Qwen3-0.6B")
    get.add_argument("--revision", help="branch, tag or commit")
    get.add_argument("--json", action="store_true")
    get.set_defaults(act=_get)
    models_fit.add(actions)


def run(args: argparse.Namespace) -> int:
    """Dispatch to the action."""
    return int(args.act(args))


def _list(args: argparse.Namespace) -> int:
    from bc250studio.models.find import known

    names = known()
    for folder in args.folder:
        root = Path(folder).expanduser()
        if not root.is_dir():
            raise BadInput(f"{clean(folder, 200)} is not a folder.")
        names += [str(p.parent) for p in sorted(root.rglob("config.json")) if _is_model(p.parent)]
        names += [str(p) for p in sorted(root.rglob("*.gguf"))]
    entries = [entry for name in names if (entry := _entry(name)) is not None]
    head = ["model", "type", "parameters", "context", "licence"]
    rows = [
        [e["name"], e["model_type"], _count(e["parameters"]), f"{e['context']:,}", e["licence"] or "-"] for e in entries
    ]
    emit(entries, args.json, table(head, rows) if rows else "No models here; `bc250studio models get ID` fetches one.")
    return 0


def _is_model(folder: Path) -> bool:
    return any(folder.glob("*.safetensors")) or any(folder.glob("*.gguf")) or (folder / "tokenizer.json").exists()


def _entry(name: str) -> dict[str, Any] | None:
    from bc250studio.models.describe import describe
    from bc250studio.models.find import find

    try:
        source = find(name)
        return {"name": name, "folder": str(source.folder), **describe(source).as_dict()}
    except BadInput as error:
        narrate(f"{clean(name, 120)}: {error}")
        return None


def _show(args: argparse.Namespace) -> int:
    from bc250studio.models.describe import describe
    from bc250studio.models.find import find
    from bc250studio.models.tokenizer import load_tokenizer

    source = find(args.model, args.revision)
    facts = describe(source)
    data: dict[str, Any] = {
        "name": source.name,
        "kind": source.kind,
        "folder": str(source.folder),
        "gguf": str(source.gguf) if source.gguf else None,
        "revision": source.revision,
        **facts.as_dict(),
    }
    try:
        tokenizer = load_tokenizer(source)
    except BadInput as error:
        data["tokenizer"] = None
        data["tokenizer_problem"] = str(error)
    else:
        data["tokenizer"] = {
            "vocab_size": tokenizer.vocab_size,
            "bos": tokenizer.special.get("bos_token"),
            "eos": tokenizer.special.get("eos_token"),
            "adds_bos": tokenizer.add_bos,
            "template": tokenizer.template_from,
            "thinking_switch": tokenizer.supports("enable_thinking"),
            "tools": tokenizer.supports("tools"),
            "template_text": tokenizer.template,
        }
    if args.template and not args.json:
        if data["tokenizer"] is None:
            raise BadInput(data["tokenizer_problem"])
        print(clean(data["tokenizer"]["template_text"]))
        return 0
    emit(data, args.json, _show_text(data))
    return 0


def _show_text(data: dict[str, Any]) -> str:
    tokenizer = data["tokenizer"] or {}
    window = f", window {data['sliding_window']:,}" if data["sliding_window"] else ""
    rows = [
        ["files", data["gguf"] or data["folder"]],
        ["type", f"{data['model_type']} (llama.cpp: {data['gguf_arch']})"],
        ["parameters", f"{data['parameters']:,}"],
        ["layers", f"{data['layers']} of {data['hidden']:,}, feed-forward {data['intermediate']:,}"],
        ["attention", f"{data['heads']} heads, {data['kv_heads']} key/value heads, {data['head_dim']} wide"],
        ["vocabulary", f"{data['vocab']:,}" + (", embedding and output tied" if data["tied"] else "")],
        ["context", f"{data['context']:,} tokens{window}"],
        ["end tokens", ", ".join(map(str, data["eos_ids"])) or "none"],
        ["licence", data["licence"] or "not stated"],
    ]
    if tokenizer:
        words = "the model's own" if tokenizer["template"] == "model" else "none; a plain one is used and exported"
        extras = [
            w for w, on in (("thinking switch", tokenizer["thinking_switch"]), ("tools", tokenizer["tools"])) if on
        ]
        rows.append(["chat template", ", ".join([words, *extras])])
        rows.append(["one BOS", f"yes, {tokenizer['bos']}" if tokenizer["adds_bos"] else "not added"])
    else:
        rows.append(["tokenizer", data["tokenizer_problem"]])
    width = max(len(name) for name, _ in rows)
    return "\n".join([clean(data["name"]), *(f"  {name.ljust(width)}  {clean(value)}" for name, value in rows)])


def _get(args: argparse.Namespace) -> int:
    from bc250studio.models.find import find

    bar = Bar()
    bar(f"Fetching {clean(args.model, 80)}", None, None)
    try:
        source = find(args.model, args.revision, download=True)
    finally:
        bar.close()
    data = {"name": source.name, "folder": str(source.folder), "revision": source.revision}
    emit(data, args.json, f"{source.name} is in {source.folder}")
    return 0


def _count(number: int) -> str:
    """135 M, 2.5 G."""
    return f"{number / 1e9:.1f} G" if number >= 1e9 else f"{number / 1e6:.0f} M"
