"""``kernels shapes``: the matrix products one training step of a model makes, from its structure alone.

The structure comes from a child that builds the model on the meta device (walk.py); the products follow
from it here, without torch: linear layers forward (TN), input gradient (NN) and weight gradient (NT), the
low-rank pair beside each, attention by rung, the output layer by chunk of the loss.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bc250studio import paths, settings
from bc250studio.errors import BadInput, JobFailed, clean, nearest
from bc250studio.jobs.spawn import child_environment
from bc250studio.kernels.products import Product, ShapeList, merged

WALK_TIMEOUT_S = 300


@dataclass(frozen=True)
class Step:
    """What of a training step decides its products.

    ``tokens``: positions of one pass. ``segments``: (slots, rung) of its attention calls, rows of one rung
    batched; empty means one row of the whole length. ``labelled``: positions whose loss is computed; None means
    all. ``recompute``: ``none`` counts every product once, as a FLOP counter sees the model; ``light`` is the
    engine's own habit (math attention makes its scores again in the backward pass); ``layer`` also runs every
    layer's forward products twice. ``passes``: how many passes of this kind.
    """

    tokens: int
    rank: int = 16
    dtype: str = "fp16"
    full: bool = False
    targets: tuple[str, ...] | None = None
    ranks: tuple[tuple[str, int], ...] = ()
    recompute: str = "none"
    loss_chunk: int = 1024
    labelled: int | None = None
    segments: tuple[tuple[int, int], ...] = field(default_factory=tuple)
    passes: int = 1


def chunks(labelled: int, chunk: int) -> list[tuple[int, int]]:
    """(size, count) of the output layer's products: whole chunks, and a rest rounded up to 1/2 or 1/4 of one.

    The ladder of ``train/loss.py`` (chunks), which keeps the sizes of the output layer to three.
    """
    whole, rest = divmod(labelled, chunk)
    found = [(chunk, whole)] if whole else []
    if rest:
        found.append((min(s for s in (chunk, max(chunk // 2, 1), max(chunk // 4, 1)) if s >= rest), 1))
    return found


def config_of(model: str) -> tuple[str, dict[str, Any]]:
    """Name and HF config of a shipped shape name, a config file, a model folder, or anything ``models`` finds.

    Raises:
        BadInput: nothing of that name, or a config that is not one.
    """
    shipped = {
        file.name.removesuffix(".config.json"): file for file in paths.shipped("assets/shapes").glob("*.config.json")
    }
    bare = model.removeprefix("demo:").lower()
    path = Path(model).expanduser()
    if path.is_file() and path.suffix == ".json":
        stem = path.name.removesuffix(".json").removesuffix(".config")
        return path.resolve().parent.name if stem == "config" else stem, _config(path)
    if (path / "config.json").is_file():
        return path.resolve().name, _config(path / "config.json")
    if bare in shipped:
        return bare, _config(shipped[bare])
    tail = bare.rpartition("/")[2]
    if tail in shipped:
        return tail, _config(shipped[tail])
    try:
        from bc250studio.models import describe, find

        source = find.find(model)
        return source.name, dict(describe.describe(source).config)
    except BadInput as error:
        raise BadInput(f"{error} Shapes that ship: {', '.join(sorted(shipped))}.{nearest(bare, shipped)}") from error


def _config(file: Path) -> dict[str, Any]:
    try:
        record = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{file} cannot be read as a model's config: {clean(error, 200)}.") from error
    if not isinstance(record, dict) or not isinstance(record.get("model_type"), str):
        raise BadInput(f"{file} is not a model's config.json: it has no model_type.")
    return record


def walk(config: dict[str, Any], step: Step, tokens: Sequence[int], count: bool = True) -> dict[str, Any]:
    """The structure of a model, and torch's FLOP count for each of ``tokens``, from a child with torch.

    Raises:
        JobFailed: the runner's Python has no torch, or the architecture is unknown to its transformers.
    """
    python = settings.load().runtime.python or sys.executable
    request = {
        "config": config,
        "tokens": list(tokens),
        "rank": step.rank,
        "full": step.full,
        "targets": list(step.targets) if step.targets is not None else None,
        "count": count,
    }
    try:
        done = subprocess.run(
            [python, "-m", "bc250studio.kernels.walk"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=WALK_TIMEOUT_S,
            env=child_environment({"OMP_NUM_THREADS": "1"}),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JobFailed(f"The model could not be walked with {python}: {clean(error, 200)}.") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        if "No module named 'torch'" in done.stderr:
            last = "it has no torch; set [runtime] python to the Python that trains, or install bc250studio[train]"
        raise JobFailed(f"The model could not be walked with {python}: {clean(last, 300)}.")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert isinstance(found, dict)
    return found


def products_of(structure: dict[str, Any], step: Step) -> list[Product]:
    """The products of one pass, forward and backward. See the module's first lines for the layouts.

    PyTorch's y[T,out] = x[T,in] W' is, column-major, M=out, N=T, K=in with W transposed.
    """
    again = 2 if step.recompute == "layer" else 1
    found: list[Product] = []

    def add(m: int, n: int, k: int, layout: str, role: str, count: int, batch: int = 1) -> None:
        found.append(Product(m, n, batch, k, step.dtype, layout, role, count * step.passes))

    tokens = step.tokens
    for linear in structure["linears"]:
        inside, outside, layers = linear["in"], linear["out"], linear["layers"]
        # The frozen embedding needs no gradient, so the layers that read it compute none for their input;
        # with layer recompute the engine asks for it, to have something to recompute from.
        deep = layers - (0 if step.full or step.recompute == "layer" else linear["first"])
        add(outside, tokens, inside, "TN", "linear forward", layers * again)
        add(inside, tokens, outside, "NN", "linear input gradient", deep)
        if step.full:
            add(inside, outside, tokens, "NT", "linear weight gradient", layers)
        elif rank := _rank_of(step, linear["name"]):
            add(rank, tokens, inside, "TN", "adapter forward", layers * again)
            add(outside, tokens, rank, "TN", "adapter forward", layers * again)
            add(rank, tokens, outside, "NN", "adapter input gradient", layers)
            add(inside, tokens, rank, "NN", "adapter input gradient", deep)
            add(inside, rank, tokens, "NT", "adapter weight gradient", layers)
            add(rank, outside, tokens, "NT", "adapter weight gradient", layers)
    found += _attention(structure["attention"], step)
    head = structure["head"]
    for size, count in chunks(tokens if step.labelled is None else step.labelled, step.loss_chunk):
        add(head["out"], size, head["in"], "TN", "output layer forward", count)
        add(head["in"], size, head["out"], "NN", "output layer input gradient", count)
        if step.full:
            add(head["in"], head["out"], size, "NT", "output layer weight gradient", count)
    return found


def _rank_of(step: Step, name: str) -> int:
    if step.targets is not None and name not in step.targets:
        return 0
    return dict(step.ranks).get(name, step.rank)


def _attention(attention: dict[str, Any], step: Step) -> list[Product]:
    """Math attention as train/math_attention.py computes it: the query heads of one key head in one product."""
    layers, kv, size = attention["layers"], attention["kv_heads"], attention["head_dim"]
    group = attention["heads"] // kv
    forward = layers * (2 if step.recompute == "layer" else 1)
    scores = forward + (0 if step.recompute == "none" else layers)
    found: list[Product] = []
    for slots, rung in step.segments or ((1, step.tokens),):
        queries = group * rung
        for m, n, k, layout, role, count in (
            (rung, queries, size, "TN", "attention scores", scores),
            (size, queries, rung, "NN", "attention values", forward),
            (rung, queries, size, "TN", "attention gradient", layers),
            (size, rung, queries, "NT", "attention gradient", 2 * layers),
            (size, queries, rung, "NN", "attention gradient", layers),
        ):
            found.append(Product(m, n, slots * kv, k, step.dtype, layout, role, count * step.passes))
    return found


def shapes(model: str, steps: Sequence[Step], count: bool = True) -> ShapeList:
    """The shape list of a model for one or several passes.

    ``flops_counted`` sums torch's own count over the passes that are one full row without recompute; it is
    None when any other pass is in the list or the model cannot be counted.

    Raises:
        BadInput: unknown model. JobFailed: no torch to walk it with.
    """
    name, config = config_of(model)
    countable = count and all(not s.segments and s.labelled is None and s.recompute == "none" for s in steps)
    structure = walk(config, steps[0], [s.tokens for s in steps], countable)
    found = [product for step in steps for product in products_of(structure, step)]
    counted = structure["flops_counted"]
    totals = [counted.get(str(step.tokens)) for step in steps]
    first = steps[0]
    return ShapeList(
        model=name,
        tokens=sorted({step.tokens for step in steps}),
        rank=first.rank,
        products=merged(found),
        facts={
            "dtype": first.dtype,
            "kind": "full" if first.full else "lora",
            "recompute": first.recompute,
            "loss_chunk": first.loss_chunk,
            "passes": sum(step.passes for step in steps),
            "parameters": structure["parameters"],
        },
        flops_counted=sum(totals) if totals and all(isinstance(t, int) for t in totals) else None,
        notes=[clean(note, 300) for note in structure["notes"]],
    )
