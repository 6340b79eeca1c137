"""Command-line options that name shapes, a chip or a library, for every verb that needs them. No torch."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from bc250studio.errors import BadInput, clean


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
    parser.add_argument("--mhz", type=float, default=2000.0, help="shader clock under load")


def gather(options: argparse.Namespace, count: bool = False) -> Any:
    """The shape list the options mean: a file, a log, a profile or a model.

    Raises:
        BadInput: none or two of them were given.
    """
    from bc250studio.kernels import products, shapes

    log = getattr(options, "log", None)
    given = [name for name in ("profile", "shapes", "model") if getattr(options, name)]
    if log:
        from bc250studio import profiles
        from bc250studio.kernels import logs

        if log != "run":
            return logs.read(Path(log))
        if given != ["profile"]:
            raise BadInput("--log runs two steps of a profile, so give one; with a FILE it reads that log.")
        return logs.of_run(profiles.load(options.profile))
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

    return chip.bc250(options.cu, options.mhz)


def stored(name: str | None) -> Any:
    """The library meant: None for stock; a folder that is not ours counts too; without a name the one in use."""
    from bc250studio.kernels import store

    if name == "stock":
        return None
    if name is not None and Path(name).is_dir():
        return store.Stored(Path(name).name, Path(name).resolve(), {})
    if name is None:
        use, chosen = store.choice()
        if use == "stock" or not store.libraries():
            return None
        return store.library(chosen)
    return store.library(name)
