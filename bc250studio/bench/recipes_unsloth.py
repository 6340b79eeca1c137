"""The optional Unsloth side of ``bench train``: its own Python, its own process, after the race.

It gets the same weights (saved as a folder) and the same rows, packs or batches them its own way, and is
timed over whole steps with its loader inside the clock. Where it cannot be imported, the record says so.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bc250studio.bench import unsloth_side
from bc250studio.bench.recipes_baseline import ALPHA, CLIP, LEARNING_RATE, RANK
from bc250studio.bench.recipes_model import Base, free
from bc250studio.bench.rows import BenchRows
from bc250studio.errors import clean
from bc250studio.jobs.progress import Progress

TIMEOUT_S = 900.0
WARM_UP, STEPS = 4, 12


def cases(rows: BenchRows, tokens: Sequence[int]) -> list[dict[str, Any]]:
    """One case a pass size: rows packed to it, and as many rows as fill it without padding (its default)."""
    mean = max(rows.facts()["mean_tokens"], 1.0)
    found: list[dict[str, Any]] = []
    for size in tokens:
        common = {"tokens": size, "warm_up": WARM_UP, "steps": STEPS}
        if rows.full:
            found.append({**common, "batch": 1, "packing": False})
            continue
        found.append({**common, "batch": 1, "packing": True})
        found.append({**common, "batch": max(1, round(size / mean)), "packing": False})
    return found


def measure(
    python: str, base: Base, rows: BenchRows, tokens: Sequence[int], ours: Sequence[Any], seed: int, progress: Progress
) -> dict[str, Any]:
    """Unsloth's rates, and our ratio to its best one a pass size; ``skipped`` says why there are none.

    ``ours``: the variants' entries of the race. The base is dropped from the device before Unsloth starts.
    """
    if base.dtype == "fp32" or base.device.type != "cuda":
        return {"skipped": "Unsloth is measured on a GPU with a 16-bit base only."}
    with tempfile.TemporaryDirectory(prefix="bc250studio-unsloth-") as scratch:
        folder = Path(scratch)
        progress("Unsloth: writing the model for it", None, None)
        base.model.save_pretrained(str(folder / "model"))
        if not (folder / "model" / "tokenizer.json").is_file():
            _plain_tokenizer(folder / "model")
        base.model.to("meta")
        free(base.device)
        np.savez(folder / "rows.npz", ids=rows.rows.ids, labelled=rows.rows.labelled, offsets=rows.rows.offsets)
        request = {
            "model": str(folder / "model"),
            "rows": str(folder / "rows.npz"),
            "work": rows.work,
            "held_out": rows.held_out,
            "longest": max(tokens),
            "dtype": base.dtype,
            "rank": RANK,
            "alpha": ALPHA,
            "learning_rate": LEARNING_RATE["lora"],
            "clip": CLIP,
            "seed": seed,
            "scratch": str(folder / "out"),
            "cases": cases(rows, tokens),
        }
        return judge(_run(python, folder, request, progress), ours)


def _run(python: str, folder: Path, request: dict[str, Any], progress: Progress) -> dict[str, Any]:
    question, answer = folder / "request.json", folder / "result.json"
    question.write_text(json.dumps(request))
    # A copy, because Python puts a script's folder first on its path, where our modules' names would shadow others.
    script = folder / "unsloth_side.py"
    script.write_text(Path(unsloth_side.__file__).read_text("utf-8"))
    progress("Unsloth: its own process starts", None, None)
    try:
        done = subprocess.run(
            [python, str(script), str(question), str(answer)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"skipped": f"Unsloth's process did not finish: {clean(error, 160)}"}
    if not answer.is_file():
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        return {"skipped": f"Unsloth's process ended without a result: {clean(' | '.join(lines[-3:]), 400)}"}
    found = json.loads(answer.read_text())
    assert isinstance(found, dict)
    return found


def judge(found: dict[str, Any], ours: Sequence[Any]) -> dict[str, Any]:
    """Add our ratio to each pass size's best case; held-out losses before training must agree to 1e-3."""
    if "skipped" in found:
        return {"skipped": clean(found["skipped"], 400)}
    best: dict[int, float] = {}
    for case in found["cases"]:
        case["failed"] = clean(case["failed"], 300) if case.get("failed") else None
        rate = case.get("real_tokens_per_s") or 0.0
        best[case["tokens"]] = max(best.get(case["tokens"], 0.0), rate)
    ratios: dict[str, Any] = {}
    for side in ours:
        tokens = int(str(side["name"]).split(" ")[0])
        if side.get("rates") and best.get(tokens):
            difference = abs(side["losses"]["held_out_before"] - found["held_out_before"])
            ratios[side["name"]] = {
                "ratio": round(side["rates"]["real_tokens_per_s"] / best[tokens], 3),
                "loss_difference": difference,
                "claimed": difference <= 1e-3,
            }
    return {**found, "ratios": ratios}


def _plain_tokenizer(folder: Path) -> None:
    """Unsloth wants a tokenizer beside the model; the rows are ids already, so any will do."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(("<s>", "</s>", "<pad>", "<unk>"))}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<unk>")),
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
    ).save_pretrained(str(folder))
