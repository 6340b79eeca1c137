"""``bench step``: where the time of one training step goes, two recipes side by side.

One step runs under torch.profiler while a dispatch mode names every matrix product by layout, type and
size; operations and kernels are then sorted into classes (``step_classes``). The step's whole time is
measured without the profiler, so what the classes do not fill is host gaps: Python, launches, waiting.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bc250studio.bench import records
from bc250studio.bench.recipes_train import add_engine, check_inputs, check_types, numbers, run_with_kernels
from bc250studio.bench.report import show, step_text
from bc250studio.bench.step_classes import PRODUCT, Sorted, classify, product_name
from bc250studio.errors import BadInput
from bc250studio.jobs.progress import Progress

CHOICES = ("ours", "reference", "plain", "post")


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``bench step``."""
    parser.add_argument("--model", required=True, help="a model's name or path, or random:SHAPE")
    rows = parser.add_mutually_exclusive_group(required=True)
    rows.add_argument("--data")
    rows.add_argument("--lengths")
    rows.add_argument("--random", action="store_true")
    parser.add_argument("--tokens", default="2048", help="tokens of the step")
    parser.add_argument("--recipes", default="ours,post", help=f"one or two of {', '.join(CHOICES)}, with a comma")
    parser.add_argument("--steps", type=int, default=3, help="steps timed without the profiler; the median counts")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(rows=400, rounds=1, check_steps=1, plan=False)
    add_engine(parser)
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace) -> int:
    """Measure in the runner's Python, keep the record, print it."""
    recipes = options.recipes.split(",")
    unknown = [name for name in recipes if name not in CHOICES]
    if unknown or len(recipes) > 2:
        raise BadInput(f"--recipes takes one or two of {', '.join(CHOICES)}, not {options.recipes!r}.")
    if len(numbers(options.tokens)) != 1:
        raise BadInput("bench step measures one --tokens at a time.")
    wanted = {key: value for key, value in vars(options).items() if key not in ("noun", "verb", "json")}
    check_inputs(wanted)
    found = run_with_kernels("step", wanted)
    path = records.write("step", f"{options.model.rsplit('/', 1)[-1]}-{'-'.join(recipes)}", found)
    show({"record": path.stem, **found}, options.json, f"{step_text(found)}\nrecord: {path.stem}")
    return 0


def measure(options: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """In the runner's process: profile one step of each recipe on the same rows."""
    import torch

    from bc250studio.bench.recipes_baseline import RECIPES, PeftSide
    from bc250studio.bench.recipes_model import device_name, pick_device, pick_type
    from bc250studio.bench.recipes_ours import EngineSide
    from bc250studio.bench.recipes_race import equal_groups
    from bc250studio.bench.recipes_train import Bases, bench_rows, variants

    device = pick_device(options["device"])
    check_types(options["dtype"])
    dtype = pick_type(options["dtype"], device)
    base = Bases(options["model"], device, options["seed"], progress).get(dtype)
    variant = variants(options, dtype, device.type != "cpu")[0]
    rows = bench_rows(options, base, variant.tokens, variant.tokens)
    group = equal_groups(rows, variant.tokens, 1)[0]
    tokens = sum(len(rows.rows.row(index)[0]) for index in group)
    results = []
    for name in options["recipes"].split(","):
        progress(f"{name}: profiling a step of {tokens} tokens", None, None)
        side: Any
        if name == "ours":
            side = EngineSide(variant, base, rows, options["seed"])
        else:
            side = PeftSide(RECIPES[name], base, rows.rows, rows.full, options["seed"], math_only=options["math_only"])
        results.append(_one(name, side, group, tokens, base.vocabulary, options["steps"]))
    regime = {
        "model": options["model"],
        "parameters": base.parameters,
        "device": device_name(device),
        "dtype": dtype,
        "rows": rows.regime,
        "tokens": tokens,
        "rows_in_step": len(group),
        "torch": torch.__version__,
    }
    summary = f"{options['model']} on {regime['device']}: one step of {tokens} tokens, {options['recipes']}"
    return {"regime": regime, "results": {"recipes": results}, "summary": summary}


def _one(name: str, side: Any, group: list[int], tokens: int, vocabulary: int, steps: int) -> dict[str, Any]:
    side.open()
    try:
        side.warm_up(group)
        side.equal_steps([group])
        seconds = []
        for _ in range(steps):
            start = time.perf_counter()
            side.equal_steps([group])  # reads the loss, so the device has finished
            seconds.append(time.perf_counter() - start)
        step_s = statistics.median(seconds)
        # A device graph hides its operations; the same kernels run when the pass is launched one by one.
        with side.eager():
            side.equal_steps([group])
            found = profile_step(lambda: side.equal_steps([group]), side.base.device, vocabulary)
    finally:
        side.close()
    classes = found.table(step_s)
    return {
        "name": name,
        "words": side.words(),
        "step_s": round(step_s, 5),
        "real_tokens_per_s": round(tokens / step_s, 1),
        "busy_s": round(found.busy_s, 5),
        "launches": found.launches,
        "product_tflop": round(found.flops / 1e12, 9),
        "tflops": round(found.flops / step_s / 1e12, 6),
        "classes": classes,
        "products": found.products(),
        "operations": found.operations(),
    }


def profile_step(step: Any, device: Any, vocabulary: int) -> Sorted:
    """Run ``step()`` once under the profiler and sort what it did into classes."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities, record_shapes=True) as profiler, named_products():
        step()
    return classify(profiler.events(), on_gpu, vocabulary)


@contextmanager
def named_products() -> Iterator[None]:
    """Every matrix product inside runs under a profiler range that names its layout, type and size."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    aten = torch.ops.aten
    # Where the two factors stand in the arguments.
    factors = {aten.mm: 0, aten.bmm: 0, aten.addmm: 1, aten.addmm_: 1, aten.baddbmm: 1, aten.baddbmm_: 1}

    class Namer(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            first = factors.get(func.overloadpacket)
            if first is None:
                return func(*args, **(kwargs or {}))
            a, b = args[first], args[first + 1]
            name = product_name(a.shape, a.stride(), b.shape, b.stride(), str(a.dtype))
            with torch.profiler.record_function(PRODUCT + name):
                return func(*args, **(kwargs or {}))

    with Namer():
        yield
