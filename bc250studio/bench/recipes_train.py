"""``bench train``: the engine against a baseline on the same rows, alternating, losses compared first.

A comparison has two parts. *Check* (untimed): every side starts from the same adapter, gives the loss
of the held-out rows, takes the same optimiser steps on the same groups of rows, and gives the
held-out loss again; all of it must agree. *Race* (timed): each round all sides train once over the
same slice of rows, each with its own batches, loader inside the clock.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bc250studio.bench import records
from bc250studio.bench.report import show, train_text
from bc250studio.bench.rows import read_lengths
from bc250studio.bench.shapes import RANDOM, shape_file
from bc250studio.bench.worker import run_in_worker
from bc250studio.errors import BadInput, clean, nearest
from bc250studio.jobs.progress import Progress
from bc250studio.models.find import find as find_model

if TYPE_CHECKING:
    from bc250studio.bench.recipes_model import Base
    from bc250studio.bench.rows import BenchRows

AGAINST = ("reference", "plain", "post")
TYPES = ("auto", "fp32", "fp16", "bf16")
TRAINED = {"lora": "LoRA r=16, alpha 32, all linears, fp32 adapters", "full": "every weight, no adapter"}


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``bench train``."""
    parser.add_argument(
        "--model", required=True, help="a model's name or path, or random:SHAPE (random:minicpm5-2b ships)"
    )
    rows = parser.add_mutually_exclusive_group(required=True)
    rows.add_argument("--data", help="a dataset, rendered with the model's own template")
    rows.add_argument("--lengths", help="JSON list of [prompt tokens, all tokens] a row; ids are random")
    rows.add_argument("--random", action="store_true", help="full random rows of --tokens, one row a step")
    parser.add_argument("--tokens", default="2048", help="tokens a pass of ours; several with commas, each measured")
    parser.add_argument("--rows", type=int, default=400, help="rows to take (full rows: rows a round, default 8)")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each side; the rows are divided among them")
    parser.add_argument("--against", default="reference", help=f"{', '.join(AGAINST)}; several with commas")
    parser.add_argument("--check-steps", type=int, default=4, help="equal steps whose losses must agree")
    parser.add_argument(
        "--kind", choices=("lora", "full"), default="lora", help="full: every weight, against plain transformers"
    )
    parser.add_argument("--plan", action="store_true", help="also vary our choices one at a time")
    parser.add_argument(
        "--unsloth", metavar="PYTHON", help="also measure Unsloth with this Python; skipped when it cannot be imported"
    )
    parser.add_argument("--cool-below", type=float, help="start each turn below this temperature (BC-250: 55 °C)")
    parser.add_argument("--seed", type=int, default=0)
    add_engine(parser)
    parser.add_argument("--json", action="store_true")


def add_engine(parser: argparse.ArgumentParser) -> None:
    """The engine's own choices, shared by ``bench train`` and ``bench step``; commas measure several."""
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", help="type of the base: auto, fp32, fp16, bf16")
    parser.add_argument("--graph", default="auto", help="auto, off, or both with a comma")
    parser.add_argument("--attention", default="auto", help="auto, math16, math32, flash, varlen")
    parser.add_argument("--layer-kernels", default="auto", help="auto, own, liger, off")
    parser.add_argument("--recompute", default="auto", help="auto, none, light, layer")
    parser.add_argument(
        "--math-only", action="store_true", help="no fused attention and no Triton on either side: what gfx1013 has"
    )
    parser.add_argument("--chunk", type=int, default=1024, help="labelled positions whose logits exist at once")
    parser.add_argument(
        "--library", choices=("auto", "stock", "tuned", "tunableop"), default="auto", help="matrix kernels of all sides"
    )
    parser.add_argument("--memory-budget", type=float, help="device memory in GiB the engine may use")


def run(options: argparse.Namespace) -> int:
    """Measure in the runner's Python, keep the record, print it."""
    wanted = {key: value for key, value in vars(options).items() if key not in ("noun", "verb", "json")}
    numbers(options.tokens)
    if options.rows < 1 or options.rounds < 1 or options.check_steps < 1:
        raise BadInput("--rows, --rounds and --check-steps must be at least 1.")
    for name in options.against.split(","):
        if name not in AGAINST:
            raise BadInput(f"--against knows no {clean(name)!r}: {', '.join(AGAINST)}.{nearest(name, AGAINST)}")
    check_inputs(wanted)
    check_types(options.dtype)
    found = run_with_kernels("train", wanted)
    path = records.write("train", f"{options.model.rsplit('/', 1)[-1]}-{options.against}", found)
    head = {key: found["results"][key] for key in ("ratio", "loss_difference", "losses_equal")}
    show({**head, "record": path.stem, **found}, options.json, f"{train_text(found)}\nrecord: {path.stem}")
    return 0


def check_inputs(options: dict[str, Any]) -> None:
    """What can be known without torch is said before a process with it starts.

    Raises:
        BadInput: no such model, shape or lengths file; or a random model with data that needs a tokenizer.
    """
    if options["model"].startswith(RANDOM):
        shape_file(options["model"])
        if options["data"]:
            raise BadInput("A random model has no tokenizer for --data; use --lengths or --random with it.")
    else:
        find_model(options["model"])
    if options["lengths"]:
        read_lengths(Path(options["lengths"]))


def check_types(dtypes: str) -> None:
    """Raises:
    BadInput: a type that no base can have.
    """
    for name in dtypes.split(","):
        if name not in TYPES:
            raise BadInput(f"--dtype knows no {clean(name)!r}: {', '.join(TYPES)}.{nearest(name, TYPES)}")


def run_with_kernels(recipe: str, options: dict[str, Any]) -> dict[str, Any]:
    """Measure in a process that loads the matrix kernels a run would load; the record says which and why.

    Raises:
        StudioError: ``--library tuned`` without a tuned library that is proven here, and what the bench itself says.
    """
    from bc250studio.board import presets
    from bc250studio.kernels import switch
    from bc250studio.profiles import Profile

    model = {"device": "cpu" if options["device"] == "cpu" else "auto"}
    profile = Profile.model_validate({"model": model, "kernels": {"library": options["library"]}})
    decision = switch.decide(profile, presets.detect())
    found = run_in_worker(recipe, options, decision.environment)
    found["regime"]["kernels"] = decision.why
    return found


def numbers(text: str) -> list[int]:
    """``2048`` or ``2048,8192``.

    Raises:
        BadInput: not whole numbers of at least 16.
    """
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < 16:
        raise BadInput(f"--tokens takes whole numbers of at least 16 with commas between, not {clean(text)!r}.")
    return values


@dataclass(frozen=True)
class Variant:
    """One set of the engine's choices; ``changed`` names what differs from the run's own."""

    tokens: int
    dtype: str
    choices: dict[str, Any]
    changed: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``2048``, ``2048 graph=off``."""
        return " ".join([str(self.tokens), *(f"{key}={value}" for key, value in self.changed.items())])


def variants(options: dict[str, Any], dtype: str, accelerator: bool) -> list[Variant]:
    """What of ours is measured: every pass size with every listed choice, then the plan's one-at-a-time changes."""
    lists = {key: str(options[key]).split(",") for key in ("graph", "attention", "layer_kernels", "recompute")}
    if options["math_only"]:
        lists |= {"attention": ["math16"], "layer_kernels": ["own"]}
    first: dict[str, Any] = {key: values[0] for key, values in lists.items()}
    first |= {"loss_chunk": options["chunk"], "packing": True, "memory_budget_gib": options["memory_budget"]}
    found: list[Variant] = []
    for tokens in numbers(str(options["tokens"])):
        found.append(Variant(tokens, dtype, first))
        for key, values in lists.items():
            found += [Variant(tokens, dtype, {**first, key: value}, {key: value}) for value in values[1:]]
    if options["plan"]:
        tokens = found[0].tokens
        plan: list[tuple[str, Sequence[Any]]] = [
            ("recompute", ("none", "light", "layer")),
            ("loss_chunk", (256, 1024, 4096)),
            ("packing", (False,)),
            ("layer_kernels", ("off", "own", "liger") if accelerator else ("off", "own")),
            ("attention", ("math16", "math32", "flash", "varlen") if accelerator else ("math32",)),
            ("graph", ("off",) if accelerator else ()),
        ]
        for key, steps in plan:
            found += [
                Variant(tokens, dtype, {**first, key: value}, {key: value}) for value in steps if value != first[key]
            ]
        types = ("fp16", "bf16", "fp32") if accelerator else ("fp32", "bf16")
        found += [Variant(tokens, other, first, {"dtype": other}) for other in types if other != dtype]
    return found


def measure(options: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """In the runner's process: build the sides, check them, race them; the record without its envelope."""
    import torch
    import transformers

    from bc250studio.bench.recipes_baseline import RECIPES
    from bc250studio.bench.recipes_model import device_name, pick_device, pick_type
    from bc250studio.bench.recipes_race import Race
    from bc250studio.board.sensors import Sensors

    device = pick_device(options["device"])
    options, others = {**options}, options["dtype"].split(",")[1:]
    options["dtype"] = first_type = options["dtype"].split(",")[0]
    dtype = pick_type(first_type, device, options["kind"])
    sensors = Sensors.discover()
    limit_c = options["cool_below"]
    if limit_c is None and sensors.device is not None and sensors.device.is_bc250:
        limit_c = 55.0
    wanted = variants(options, dtype, device.type != "cpu")
    wanted += [Variant(wanted[0].tokens, other, wanted[0].choices, {"dtype": other}) for other in others]
    recipes = [RECIPES[name] for name in options["against"].split(",")]
    bases = Bases(options["model"], device, options["seed"], progress)
    measured: list[dict[str, Any]] = []
    baselines: list[dict[str, Any]] = []
    regimes: list[dict[str, Any]] = []
    # Full rows are as long as the pass, so each pass size needs its own baseline; real rows share one.
    groups: dict[int, list[Variant]] = {}
    for variant in wanted:
        groups.setdefault(variant.tokens if options["random"] else 0, []).append(variant)
    for group in groups.values():
        rows = bench_rows(
            options, bases.get(dtype), max(variant.tokens for variant in group), min(v.tokens for v in group)
        )
        race = Race(recipes, bases, rows, group, dtype, options, progress, sensors, limit_c)
        found_baselines, found = race.run()
        baselines += found_baselines
        measured += found
        regimes.append({"regime": rows.regime, **rows.facts()})
    first = measured[0]
    base = bases.get(dtype)
    parameters = base.parameters
    regime = {
        "model": options["model"],
        "parameters": parameters,
        "device": device_name(device),
        "dtype": dtype,
        "rows": [entry.pop("regime") for entry in regimes],
        "row_facts": regimes,
        "tokens": options["tokens"],
        "against": options["against"],
        "math_only": options["math_only"],
        "baseline": "; ".join(f"{recipe.name} = {recipe.words(options['kind'])}" for recipe in recipes),
        "adapter": f"{TRAINED[options['kind']]}, fused AdamW, clip 1.0",
        "rounds": options["rounds"],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cooling_limit_c": limit_c,
    }
    results: dict[str, Any] = {
        "ratio": first["ratio"],
        "loss_difference": first["loss_difference"],
        "losses_equal": first["losses_equal"],
        "baselines": baselines,
        "variants": measured,
    }
    if options["unsloth"]:
        from bc250studio.bench import recipes_unsloth

        sizes = numbers(str(options["tokens"]))
        results["unsloth"] = recipes_unsloth.measure(
            options["unsloth"], base, rows, sizes, measured, options["seed"], progress
        )
    summary = f"{options['model']} on {regime['device']}: {first['ratio']:.2f} × {recipes[0].name}"
    return {
        "regime": regime,
        "results": results,
        "summary": summary if first["claimed"] else f"{summary} (not claimed)",
    }


class Bases:
    """Frozen bases by type, one at a time on the device."""

    def __init__(self, model: str, device: Any, seed: int, progress: Progress) -> None:
        self._model, self._device, self._seed, self._progress = model, device, seed, progress
        self._base: Base | None = None

    def get(self, dtype: str) -> Base:
        from bc250studio.bench.recipes_model import Base, free

        if self._base is None or self._base.dtype != dtype:
            self._base = None
            free(self._device)
            self._base = Base(self._model, dtype, self._device, self._seed, self._progress)
        return self._base


def bench_rows(options: dict[str, Any], base: Base, longest_pass: int, shortest_pass: int) -> BenchRows:
    from bc250studio.bench import rows

    if options["random"]:
        count = min(options["rows"], 8 * options["rounds"]) if options["rows"] == 400 else options["rows"]
        return rows.full_rows(base.vocabulary, max(count, options["check_steps"]), longest_pass, options["seed"])
    if options["lengths"]:
        return rows.from_lengths(
            Path(options["lengths"]), base.vocabulary, options["rows"], shortest_pass, options["seed"]
        )
    return rows.from_data(options["data"], find_model(options["model"]), options["rows"], shortest_pass)
