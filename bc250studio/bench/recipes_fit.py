"""``bench fit``: what the estimate of ``models fit`` says training takes, and what it really took.

Each point (model, tokens a pass, recompute plan) trains two steps on full random rows in a process of its own: the
second step has the optimiser's states. Measured: torch's reserved peak on a GPU (the estimate's driver part left
out), the resident set of the process on a CPU, its high-water mark reset when the model is loaded.
"""

from __future__ import annotations

import argparse
from typing import Any

from bc250studio.bench import records
from bc250studio.bench.recipes_train import numbers
from bc250studio.bench.report import aligned, show
from bc250studio.bench.shapes import RANDOM, describe_shape
from bc250studio.bench.worker import narrate, run_in_worker
from bc250studio.errors import BadInput, StudioError, clean, nearest
from bc250studio.jobs.progress import Progress

GIB = 1 << 30
PLANS = ("none", "light", "layer")


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``bench fit``."""
    parser.add_argument("--model", required=True, help="a model's name or path, or random:SHAPE; several with commas")
    parser.add_argument("--tokens", default="1024,2048", help="tokens a pass, with commas")
    parser.add_argument("--recompute", default=",".join(PLANS), help="plans, with commas")
    parser.add_argument("--kind", choices=("lora", "full"), default="lora")
    parser.add_argument("--dtype", choices=("auto", "fp32", "fp16", "bf16"), default="auto")
    parser.add_argument("--attention", default="auto", help="auto, math16, math32, flash, varlen")
    parser.add_argument("--chunk", type=int, default=1024, help="labelled positions whose logits exist at once")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace) -> int:
    """Estimate and measure every point, keep the record, print it."""
    plans = options.recompute.split(",")
    for plan in plans:
        if plan not in PLANS:
            raise BadInput(f"--recompute knows no {clean(plan)!r}: {', '.join(PLANS)}.{nearest(plan, PLANS)}")
    models = options.model.split(",")
    descriptions = [_describe(name) for name in models]
    points: list[dict[str, Any]] = []
    for name, description in zip(models, descriptions, strict=True):
        for tokens in numbers(options.tokens):
            for plan in plans:
                point = {
                    "model": name, "tokens": tokens, "recompute": plan, "kind": options.kind, "dtype": options.dtype,
                    "attention": options.attention, "chunk": options.chunk, "device": options.device,
                }  # fmt: skip
                narrate(f"{name}, {tokens} tokens, recompute {plan}")
                points.append(_point(point, description))
    off = [abs(point["off"]) for point in points if point.get("off") is not None]
    worst = max(off, default=None)
    device = points[0].get("device_name", options.device)
    found: dict[str, Any] = {
        "regime": {"device": device, "kind": options.kind, "rows": "full, random"},
        "results": {"points": points, "worst_off": worst, "within_10_percent": sum(o <= 0.1 for o in off)},
        "summary": f"{len(off)} estimates against measured peaks: off by {100 * (worst or 0):.0f} % at most",
    }
    path = records.write("fit", options.model.rsplit("/", 1)[-1], found)
    show({"record": path.stem, **found}, options.json, f"{text(found)}\nrecord: {path.stem}")
    return 0


def _describe(name: str) -> Any:
    from bc250studio.models.describe import describe
    from bc250studio.models.find import find

    return describe_shape(name) if name.startswith(RANDOM) else describe(find(name))


def _point(point: dict[str, Any], description: Any) -> dict[str, Any]:
    """One row of the table: the estimate's parts, the measured peak and how far the one is from the other."""
    from bc250studio.board import presets
    from bc250studio.models import memory_training

    chip = presets.of("cpu") if point["device"] == "cpu" else presets.detect()
    estimate = memory_training.training(description, profile_of(point), chip)
    expected = memory_training.in_allocator(estimate)
    row = {**point, "estimated_bytes": expected, "parts": dict(estimate.parts)}
    try:
        measured = run_in_worker("fit", point)
    except BadInput:
        raise
    except StudioError as error:  # out of memory is a result of this bench
        return {**row, "measured_bytes": None, "off": None, "failed": clean(error, 200)}
    return {**row, **measured, "off": round(expected / measured["measured_bytes"] - 1, 4)}


def profile_of(point: dict[str, Any]) -> Any:
    """The profile whose estimate and whose training a point is."""
    from bc250studio.profiles import Profile

    rank = {} if point["kind"] == "full" else {"rank": 16, "alpha": 32.0}
    return Profile.model_validate(
        {
            "model": {"device": "cpu" if point["device"] == "cpu" else "auto", "precision": point["dtype"]},
            "data": {"max_length": point["tokens"]},
            "adapter": {"kind": point["kind"], **rank},
            "train": {
                "steps": 2, "tokens_per_step": point["tokens"], "tokens_per_pass": point["tokens"],
                "recompute": point["recompute"], "loss_chunk": point["chunk"], "attention": point["attention"],
            },
        }
    )  # fmt: skip


def measure(options: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """In the runner's process: two steps, and the peak of memory from loading's end on."""
    import torch

    from bc250studio.bench.recipes_model import Base, device_name, free, pick_device, pick_type
    from bc250studio.bench.rows import full_rows
    from bc250studio.train.engine import Trainer
    from bc250studio.train.memory_check import peak_bytes, reset_peak

    device = pick_device(options["device"])
    dtype = pick_type(options["dtype"], device, options["kind"])
    profile = profile_of(options)
    base = Base(options["model"], dtype, device, progress=progress)
    rows = full_rows(base.vocabulary, 2, options["tokens"], seed=0, held_out=0).rows
    free(device)
    reset_peak(device)
    trainer = Trainer(base.model, rows, profile.train, profile.adapter)
    losses = [step.loss for step in trainer.steps()]
    return {
        "measured_bytes": peak_bytes(device),
        "losses": losses,
        "dtype": dtype,
        "device_name": device_name(device),
        "torch": torch.__version__,
    }


def text(record: dict[str, Any]) -> str:
    """The table for a terminal."""
    rows = []
    for point in record["results"]["points"]:
        measured, off = point["measured_bytes"], point["off"]
        rows.append(
            (
                point["model"],
                f"{point['tokens']:,}",
                point["recompute"],
                f"{point['estimated_bytes'] / GIB:.2f}",
                f"{measured / GIB:.2f}" if measured else "-",
                f"{100 * off:+.1f} %" if off is not None else clean(point.get("failed", ""), 60),
            )
        )
    head = ("model", "tokens", "recompute", "estimated GiB", "measured GiB", "off")
    device = record["regime"]["device"]
    return f"{record['regime']['kind']} training on {device}\n\n{aligned(head, rows)}"
