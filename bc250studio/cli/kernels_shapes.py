"""``kernels shapes`` and ``kernels predict``: what a step multiplies, and which kernel each product will meet."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bc250studio.cli.common import emit, narrate, table
from bc250studio.errors import BadInput, clean


def add(verbs: Any) -> None:
    """Options of the two verbs."""
    shapes = verbs.add_parser("shapes", help="the matrix products one training step makes")
    add_source(shapes)
    shapes.add_argument(
        "--log", metavar="FILE", help="read a rocBLAS bench or profile log, or TunableOp's untuned file"
    )
    shapes.add_argument("--no-count", action="store_true", help="do not run torch's FLOP counter beside it")
    shapes.add_argument("--out", metavar="FILE", help="also write the list to this JSON file")
    shapes.add_argument("--json", action="store_true", help="as JSON")
    shapes.set_defaults(act=run_shapes)


def add_source(parser: argparse.ArgumentParser) -> None:
    """Where shapes come from; shared by the verbs that need them."""
    parser.add_argument("profile", nargs="?", help="profile whose training step is meant")
    parser.add_argument("--shapes", metavar="FILE", help="a shape list written by `kernels shapes`")
    parser.add_argument("--model", help="a shipped shape name, a config.json, a model folder, or a hub id")
    parser.add_argument("--tokens", default=None, help="positions of a pass; several with commas (default 2048)")
    parser.add_argument("--rank", type=int, default=None, help="rank of the adapter (default 16)")
    parser.add_argument("--dtype", choices=("fp16", "bf16", "fp32"), default=None, help="number type (default fp16)")
    parser.add_argument("--full", action="store_true", help="all weights are trained")
    parser.add_argument("--recompute", choices=("none", "light", "layer"), default=None, help="default none")
    parser.add_argument("--chunk", type=int, default=None, help="positions of a loss chunk (default 1024)")
    parser.add_argument("--cu", type=int, default=40, help="compute units of the board (24 stock, 40 unlocked)")
    parser.add_argument("--clock", type=float, default=2000.0, metavar="MHZ", help="shader clock under load")


def gather(options: argparse.Namespace, count: bool = False) -> Any:
    """The shape list the options mean: a file, a log, a profile or a model.

    Raises:
        BadInput: none or two of them were given.
    """
    from bc250studio.kernels import products, shapes

    log = getattr(options, "log", None)
    given = [name for name in ("profile", "shapes", "model") if getattr(options, name)]
    if log and not given:
        from bc250studio.kernels import logs

        return logs.read(Path(log))
    if len(given) != 1:
        raise BadInput("Give one of: a profile, --model NAME, --shapes FILE, or --log FILE.")
    if options.shapes:
        return products.read(Path(options.shapes))
    return shapes.shapes(*_asked(options), count=count)


def _asked(options: argparse.Namespace) -> tuple[str, list[Any]]:
    from bc250studio.kernels import shapes

    steps: list[shapes.Step]
    if options.profile:
        from bc250studio import profiles
        from bc250studio.kernels import of_profile

        resolved = profiles.load(options.profile)
        model, steps = resolved.profile.model.base, of_profile.steps(resolved)
    else:
        model, steps = options.model, [shapes.Step(tokens=2048)]
    from dataclasses import replace

    changes = {
        "rank": options.rank,
        "dtype": options.dtype,
        "full": options.full or None,
        "recompute": options.recompute,
        "loss_chunk": options.chunk,
    }
    changes = {key: value for key, value in changes.items() if value is not None}
    for name in ("rank", "loss_chunk"):
        if changes.get(name, 1) < 1:
            raise BadInput(f"{name} must be 1 or more, not {changes[name]}.")
    steps = [replace(step, **changes) for step in steps]
    if options.tokens is not None:
        try:
            sizes = [int(part) for part in options.tokens.split(",")]
        except ValueError as error:
            raise BadInput(f"--tokens {clean(options.tokens, 40)} must be numbers such as 1024,2048,4096.") from error
        if min(sizes) < 1:
            raise BadInput("--tokens must be 1 or more.")
        steps = [replace(steps[0], tokens=size, segments=(), labelled=None) for size in sizes]
    return model, steps


def chip_of(options: argparse.Namespace) -> Any:
    """The board the options describe."""
    from bc250studio.kernels import chip

    return chip.bc250(options.cu, options.clock)


def run_shapes(options: argparse.Namespace) -> int:
    """Print the list."""
    import json

    from bc250studio import paths

    board = chip_of(options)
    found = gather(options, count=not options.no_count)
    record = found.as_dict(board)
    if options.out:
        paths.write_atomic(Path(options.out), json.dumps(record, indent=1) + "\n", mode=0o644)
    rows = [
        [
            s["dtype"],
            s["layout"],
            s["m"],
            s["n"],
            s["k"],
            s["batch"],
            s["count"],
            f"{100 * s['share']:.2f}%",
            f"{s['roofline_ms']:.2f}",
            s["role"],
        ]
        for s in record["shapes"]
    ]
    text = table(["type", "layout", "M", "N", "K", "batch", "count", "FLOP", "roofline ms", "what"], rows)
    total = f"{found.model}: {found.flops / 1e12:.3f} TFLOP in {len(found.products)} kinds of product"
    if found.flops_counted:
        off = 100 * found.flops / found.flops_counted - 100
        total += f"; torch's counter says {found.flops_counted / 1e12:.3f} ({off:+.2f} %)"
    total += f"; at best {record['roofline_s']:.2f} s on {board.words}"
    for note in found.notes:
        narrate(f"Note: {note}.")
    emit(record, options.json, f"{text}\n\n{total}.")
    return 0
