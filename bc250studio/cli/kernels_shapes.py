"""``kernels shapes`` and ``kernels predict``: what a step multiplies, and which kernel each product will meet."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bc250studio.cli.common import emit, narrate, table
from bc250studio.kernels.arguments import add_source, chip_of, gather


def add(verbs: Any) -> None:
    """Options of the two verbs."""
    shapes = verbs.add_parser("shapes", help="the matrix products one training step makes")
    add_source(shapes)
    shapes.add_argument(
        "--log",
        nargs="?",
        const="run",
        metavar="FILE",
        help="run two steps of the profile with rocBLAS's log on; with FILE read a log, or TunableOp's untuned file",
    )
    shapes.add_argument("--no-count", action="store_true", help="do not run torch's FLOP counter beside it")
    shapes.add_argument("--out", metavar="FILE", help="also write the list to this JSON file")
    shapes.add_argument("--json", action="store_true", help="as JSON")
    shapes.set_defaults(act=run_shapes)


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
    if found.facts.get("passes", 1) != 1:
        total += f", over {found.facts['passes']} passes"
    if found.flops_counted:
        off = 100 * found.flops / found.flops_counted - 100
        total += f"; torch's counter says {found.flops_counted / 1e12:.3f} ({off:+.2f} %)"
    total += f"; at best {record['roofline_s']:.2f} s on {board.words}"
    for note in found.notes:
        narrate(f"Note: {note}.")
    emit(record, options.json, f"{text}\n\n{total}.")
    return 0
