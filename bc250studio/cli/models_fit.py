"""``models fit M``: does it fit on this machine, for serving and for training, and which setting makes it fit."""

from __future__ import annotations

import argparse
from typing import Any

from bc250studio.cli.common import emit, table
from bc250studio.errors import clean

GIB = 1 << 30


def add(actions: Any) -> None:
    """The options of ``fit``."""
    parser = actions.add_parser("fit", help="does it fit in this machine's memory", allow_abbrev=False)
    parser.add_argument("model", help="demo:smollm2-135m, a folder, a .gguf file, a hub id, or random:SHAPE")
    parser.add_argument("--profile", help="take context, cache types, rank and training settings from this profile")
    parser.add_argument("--quantisation", help="type of the served file (default: q4_k_m, or the GGUF that is here)")
    parser.add_argument("--context", type=int, help="tokens of context when serving")
    parser.add_argument("--root", default="/", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(act=run)


def run(args: argparse.Namespace) -> int:
    """Estimate, compare, print."""
    from bc250studio.board import fit, presets
    from bc250studio.models import memory, memory_measured
    from bc250studio.profiles import Profile, load

    profile = load(args.profile).profile if args.profile else Profile()
    description, file_bytes = _describe(args.model)
    machine = fit.facts(args.root, profile.thermal.min_available_mib, profile.model.device)
    if args.quantisation:
        file_bytes = None
    estimates = [
        memory.serving(
            description,
            quantisation=args.quantisation or _served_type(profile.export.quantisation),
            file_bytes=file_bytes,
            context=args.context or profile.serve.context,
            key_type=profile.serve.cache_type_k,
            value_type=profile.serve.cache_type_v,
            batch=profile.serve.batch,
            rank=profile.adapter.rank if profile.adapter.kind == "lora" else 0,
        )
    ]
    estimates.insert(0, memory_measured.training(description, profile, presets.detect(args.root)))
    fits = [fit.judge(estimate, machine) for estimate in estimates]
    data = {
        "model": args.model,
        "parameters": description.parameters,
        "device": machine.device,
        "budget_bytes": machine.budget_bytes,
        "device_total_bytes": machine.device_total,
        "memory_available_bytes": machine.memory_available,
        "others": list(machine.others),
        "fits": [found.as_dict() for found in fits],
    }
    emit(data, args.json, _text(args.model, description.parameters, machine, fits))
    return 0


def _served_type(quantisation: str) -> str:
    return "q4_k_m" if quantisation == "auto" else quantisation


def _describe(name: str) -> tuple[Any, int | None]:
    """The model's numbers, and the size of its GGUF where it has one. ``random:SHAPE`` is a shape that ships."""
    from bc250studio.bench.shapes import RANDOM, describe_shape
    from bc250studio.models.describe import describe
    from bc250studio.models.find import find

    if name.startswith(RANDOM):
        return describe_shape(name), None
    source = find(name)
    return describe(source), source.gguf.stat().st_size if source.gguf else None


def _text(name: str, parameters: int, machine: Any, fits: list[Any]) -> str:
    lines = [f"{clean(name)}: {parameters / 1e9:.2f} billion parameters", ""]
    for found in fits:
        sign = {"fits": "✓", "tight": "!", "does not fit": "✗"}[found.verdict]
        lines.append(f"{sign} {found.verdict}: {found.sentence}")
        rows = [[part, f"{size / GIB:.2f}"] for part, size in found.parts.items() if size]
        lines += ["    " + row for row in table(("part", "GiB"), rows).splitlines()]
        lines.append("")
    where = (
        f"{machine.device_total / GIB:.1f} GiB, {machine.device_free / GIB:.1f} free"
        if machine.device_free
        else "its memory"
    )
    lines.append(f"device: {machine.device} ({where}); {machine.memory_available / GIB:.1f} GiB of memory available")
    return "\n".join(lines)
