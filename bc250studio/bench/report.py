"""Bench results as plain tables, for the terminal and for docs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bc250studio.errors import clean


def show(data: Mapping[str, Any], as_json: bool, text: str) -> None:
    """The result on stdout: JSON when asked for, else the table."""
    print(json.dumps(data, indent=1, ensure_ascii=False, default=str) if as_json else text)


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with padded cells, so that it reads well as plain text too."""
    widths = [max(len(head[i]), *(len(row[i]) for row in rows), 3) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([line(head), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(line, rows)])


def train_text(record: Mapping[str, Any]) -> str:
    """The table of ``bench train``: every side with its rates, peak, ratio and loss difference."""
    regime, results = record["regime"], record["results"]
    head = ("recipe", "real tokens/s", "labelled/s", "all positions/s", "peak GiB", "ratio", "loss difference")
    rows = [_row(side, "1.00", "-") for side in results["baselines"]]
    for side in results["variants"]:
        if side.get("failed"):
            rows.append((f"ours {side['name']}", "-", "-", "-", "-", "-", clean(side["why_not"], 60)))
            continue
        ratio = f"{side['ratio']:.2f}" if side["claimed"] else f"({side['ratio']:.2f}, not claimed)"
        others = list(side.get("ratios", {}).items())[1:]
        ratio += "".join(f", {value:.2f} × {name}" for name, value in others if value is not None)
        rows.append(_row(side, ratio, f"{side['loss_difference']:.1e}", "ours "))
    unsloth = results.get("unsloth")
    rows += [_unsloth_row(case) for case in (unsloth or {}).get("cases", [])]
    lines = [
        f"{regime['model']} ({regime['parameters'] / 1e6:,.0f} M), {regime['dtype']}, {regime['device']}",
        f"rows: {'; '.join(regime['rows'])}; {regime['rounds']} rounds; torch {regime['torch']}",
        f"baseline: {regime['baseline']}",
        "",
        aligned(head, rows),
    ]
    lines += [f"{side['name']}: {side['why_not']}" for side in results["variants"] if side.get("why_not")]
    if unsloth:
        lines.append(str(unsloth.get("skipped") or _unsloth_words(unsloth)))
    return "\n".join(lines)


def _unsloth_row(case: Mapping[str, Any]) -> tuple[str, ...]:
    how = "packed" if case["packing"] else f"{case['batch']} rows"
    name = f"Unsloth {case['tokens']} {how}"
    if case.get("failed"):
        return (name, "-", "-", "-", "-", "-", clean(case["failed"], 60))
    return (name, f"{case['real_tokens_per_s']:,.1f}", "-", "-", f"{case['reserved_gib']:.2f}", "-", "-")


def _unsloth_words(found: Mapping[str, Any]) -> str:
    attention = "flash-attn" if found["flash_attention"] else "no flash-attn"
    ratios = ", ".join(
        f"ours {name}: {entry['ratio']:.2f} x (held-out loss differs by {entry['loss_difference']:.1e})"
        for name, entry in found["ratios"].items()
    )
    return f"Unsloth {found['version']} ({attention}), its better case a pass size: {ratios or 'no ratio'}"


def _row(side: Mapping[str, Any], ratio: str, difference: str, prefix: str = "") -> tuple[str, ...]:
    rates = side.get("rates")
    if not rates:
        return (prefix + str(side["name"]), "-", "-", "-", "-", "-", clean(side.get("failed") or "", 60))
    peak = side.get("reserved_gib") or side.get("peak_gib")
    return (
        prefix + str(side["name"]),
        f"{rates['real_tokens_per_s']:,.1f}",
        f"{rates['labelled_tokens_per_s']:,.1f}",
        f"{rates['all_positions_per_s']:,.1f}",
        "-" if peak is None else f"{peak:.2f}",
        ratio,
        difference,
    )


def step_text(record: Mapping[str, Any]) -> str:
    """The classes of one step, recipes side by side."""
    regime, recipes = record["regime"], record["results"]["recipes"]
    head: list[str] = ["class"]
    for recipe in recipes:
        head += [f"{recipe['name']} ms", "share", "TFLOPS"]
    names: list[str] = []
    for recipe in recipes:
        names += [row["name"] for row in recipe["classes"] if row["name"] not in names and row["name"] != "host gaps"]
    rows = []
    for name in [*names, "host gaps"]:
        cells = [name]
        for recipe in recipes:
            row = next((row for row in recipe["classes"] if row["name"] == name), None)
            if row is None:
                cells += ["-", "-", "-"]
                continue
            tflops = "-" if row["tflops"] is None else f"{row['tflops']:.2f}"
            cells += [f"{1e3 * row['seconds']:,.1f}", f"{100 * row['share']:.1f} %", tflops]
        rows.append(cells)
    total = ["whole step"]
    for recipe in recipes:
        total += [f"{1e3 * recipe['step_s']:,.1f}", "100 %", f"{recipe['tflops']:.2f}"]
    lines = [
        f"{regime['model']}, {regime['dtype']}, {regime['device']}, torch {regime['torch']}",
        f"one step of {regime['tokens']:,} tokens in {regime['rows_in_step']} rows ({regime['rows']})",
        *(
            f"{recipe['name']}: {recipe['words']}; {recipe['real_tokens_per_s']:,.1f} real tokens/s"
            for recipe in recipes
        ),
        "",
        aligned(head, [*rows, total]),
    ]
    return "\n".join(lines)
