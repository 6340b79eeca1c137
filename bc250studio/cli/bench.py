"""``bench train|step|gemm|memory|serve``, ``bench list|show|compare``: a recipe is imported when it is typed."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from bc250studio.bench import records
from bc250studio.cli.common import emit, table
from bc250studio.errors import BadInput, clean

RECIPES: dict[str, tuple[str, str]] = {
    "train": ("bc250studio.bench.recipes_train", "training rate against a baseline, losses compared"),
    "step": ("bc250studio.bench.recipes_step", "where the time of one step goes, two recipes side by side"),
    "gemm": ("bc250studio.bench.recipes_gemm", "matrix products, stock and tuned"),
    "memory": ("bc250studio.bench.recipes_memory", "memory bandwidth"),
    "fit": ("bc250studio.bench.recipes_fit", "memory of training: the estimate against the measured peak"),
    "serve": ("bc250studio.bench.recipes_serve", "prompt and answer rates of the server"),
}
"""Verb -> module with ``add(parser)`` and ``run(options) -> int``, and its line of help."""


class _LazyParser(argparse.ArgumentParser):
    """Asks the verb's module for its options only when the verb is typed."""

    fill: Callable[[argparse.ArgumentParser], Any] | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.fill is not None:
            fill, self.fill = self.fill, None
            fill(self)
        return super().parse_known_args(args, namespace)


def add(parser: argparse.ArgumentParser) -> None:
    """Sub-commands."""
    verbs = parser.add_subparsers(dest="verb", required=True, parser_class=_LazyParser, metavar="VERB")
    for verb, (module, text) in RECIPES.items():
        if find_spec(module) is None:
            continue
        one = verbs.add_parser(verb, help=text, description=text, allow_abbrev=False)
        one.fill = lambda p, module=module: importlib.import_module(module).add(p)
    verbs.add_parser("list", help="records so far").add_argument("--json", action="store_true")
    show = verbs.add_parser("show", help="one record, whole")
    show.add_argument("record")
    compare = verbs.add_parser("compare", help="two records side by side")
    compare.add_argument("a")
    compare.add_argument("b")
    compare.add_argument("--json", action="store_true")


def run(options: argparse.Namespace) -> int:
    """Dispatch."""
    if options.verb in RECIPES:
        return int(importlib.import_module(RECIPES[options.verb][0]).run(options))
    return {"list": _list, "show": _show, "compare": _compare}[options.verb](options)


def _list(options: argparse.Namespace) -> int:
    found = []
    for name in records.names():
        try:
            record = records.read(str(records.folder() / f"{name}.json"))
        except BadInput as error:
            record = {"kind": "?", "summary": str(error)}
        found.append({"name": name, "kind": record["kind"], "summary": record.get("summary", "")})
    emit(
        found,
        options.json,
        table(("record", "what"), [(row["name"], row["summary"]) for row in found]) if found else "No records yet.",
    )
    return 0


def _show(options: argparse.Namespace) -> int:
    emit(records.read(options.record), True)
    return 0


def _compare(options: argparse.Namespace) -> int:
    result = records.compare(records.read(options.a), records.read(options.b))
    lines = [f"a = {result['a']}", f"b = {result['b']}"]
    for key, values in result["regime_differs"].items():
        lines.append(f"differs: {key}: {clean(values['a'], 80)} | {clean(values['b'], 80)}")
    rows = [(row["what"], f"{row['a']:g}", f"{row['b']:g}", row["b_over_a"]) for row in result["rows"]]
    emit(result, options.json, "\n".join([*lines, table(("what", "a", "b", "b/a"), rows)]))
    return 0
