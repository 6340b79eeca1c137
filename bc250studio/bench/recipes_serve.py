"""``bench serve``: prompt and output rates at scale 0, scale 1 and merged; two builds; a sweep of quantisations.

Sides take turns (cool, alternate, repeat, medians), one server at a time, since the board has memory for one. The
price of the run-time adapter is scale 1 against the merged file. No torch.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bc250studio import settings
from bc250studio.bench import protocol, records
from bc250studio.bench.report import aligned, show
from bc250studio.errors import BadInput
from bc250studio.jobs.progress import Progress, silent
from bc250studio.serve import divergence, prove, rates, server, stage_serve
from bc250studio.serve.binary import Binary, choose_device, find_binary
from bc250studio.serve.reference import Reference, Variant
from bc250studio.serve.server import Plan
from bc250studio.serve.talk import Answer

OUTLIER_KL, OUTLIER_RATE = 1.5, 0.8
"""A type whose KL is this many times that of the next smaller file, or whose rate is this share of the next larger
file's, does not earn its bits."""


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``bench serve``."""
    parser.add_argument("target", nargs="?", default="last", help="a run, a profile, or a PEFT adapter folder")
    parser.add_argument("--base", help="the base model of an adapter folder")
    parser.add_argument("--device", help="auto, cpu, or a name such as Vulkan0")
    parser.add_argument("--binary", action="append", type=Path, default=[], help="given twice: compare two builds")
    parser.add_argument("--types", help="sweep quantisations of the merged model: q8_0,q4_k_m,q2_k")
    parser.add_argument("--no-merged", action="store_true", help="only scale 0 and 1 on one server")
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--answer-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cool-below", type=float, help="start each turn below this temperature (BC-250: 55 °C)")
    parser.add_argument("--json", action="store_true")


@dataclass
class Side:
    """One thing to measure: a server's plan and binary, and the adapter's scale."""

    name: str
    plan: Plan
    binary: Binary
    scale: float = 1.0
    starts_s: list[float] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def result(self) -> dict[str, Any]:
        """Medians, and whether every answer was the same."""
        found = rates.summed(self.answers)
        file = self.plan.adapter or self.plan.model
        return {
            "name": self.name,
            **found.as_dict(),
            "start_s": round(statistics.median(self.starts_s), 2),
            "file_mib": round(file.stat().st_size / 2**20, 1),
            "tokens_per_s_all": [round(answer.tokens_per_s, 2) for answer in self.answers],
        }


def run(options: argparse.Namespace) -> int:
    """Measure, keep the record, print it."""
    from bc250studio.serve.target import job_for, require_idle

    if options.rounds < 1 or options.prompt_tokens < 1 or options.answer_tokens < 2:
        raise BadInput("--rounds and --prompt-tokens must be at least 1, --answer-tokens at least 2.")
    if len(options.binary) > 2:
        raise BadInput("--binary can be given at most twice.")
    job, resolved = job_for(options.target, options.base, silent)
    require_idle(job)
    was_running = server.adopt(job) is not None
    server.stop(job)
    changes = {"device": options.device} if options.device else {}
    plan = replace(stage_serve.plan_for(job, resolved, changes), port=0, slots=1)
    binaries = [find_binary(settings.load(), path) for path in options.binary] or [find_binary(settings.load())]
    try:
        with tempfile.TemporaryDirectory(prefix="bc250studio-bench-") as scratch:
            if options.types:
                record = sweep(job, resolved, plan, binaries[0], options, Path(scratch))
            else:
                record = measure(job, resolved, plan, binaries, options, Path(scratch))
    finally:
        if was_running:
            stage_serve.running(job, resolved, silent)
    path = records.write("serve", f"{job.name}", record)
    show({"record": path.stem, **record}, options.json, f"{text(record)}\nrecord: {path.stem}")
    return 0


def measure(
    job: Any, resolved: Any, plan: Plan, binaries: Sequence[Binary], options: argparse.Namespace, scratch: Path
) -> dict[str, Any]:
    """Scale 0 and 1 (and merged) for one build; the run as it is served for two."""
    if len(binaries) == 2:
        sides = [Side(name, plan, binary) for name, binary in zip(("A", "B"), binaries, strict=True)]
    elif plan.adapter is None:
        sides = [Side("merged", plan, binaries[0])]
    else:
        sides = [Side("base, scale 0", plan, binaries[0], 0.0), Side("adapter, scale 1", plan, binaries[0])]
        if not options.no_merged:
            merged = _merge(job, resolved, plan, scratch / "merged.gguf", "auto")
            sides.append(Side("merged", replace(plan, model=merged, adapter=None), binaries[0]))
    turns(sides, options, scratch)
    results: dict[str, Any] = {"sides": [side.result() for side in sides]}
    by_name = {side["name"]: side for side in results["sides"]}
    if len(binaries) == 2:
        results["equal_answers"] = sides[0].answers[0].text == sides[1].answers[0].text
        results["b_over_a"] = _ratio(by_name["B"], by_name["A"])
    elif "adapter, scale 1" in by_name:
        results["adapter_over_base"] = _ratio(by_name["adapter, scale 1"], by_name["base, scale 0"])
        if "merged" in by_name:
            results["merged_over_adapter"] = _ratio(by_name["merged"], by_name["adapter, scale 1"])
    return {"regime": regime(plan, binaries, options), "results": results}


def _ratio(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    return {key: round(one[key] / other[key], 4) if other[key] else 0.0 for key in ("prompt_per_s", "tokens_per_s")}


def turns(sides: Sequence[Side], options: argparse.Namespace, scratch: Path, progress: Progress = silent) -> None:
    """Rounds of all sides, the order flipped each round, each side on a server of its own for that turn."""
    from bc250studio.board.sensors import Sensors

    sensors = Sensors.discover()

    def turn(side: Side, number: int) -> protocol.Turn:
        began = time.monotonic()
        folder = scratch / "server"
        folder.mkdir(exist_ok=True)
        # A scale of its own from the start: nothing is switched in between, on any device.
        started = server.start(folder, replace(side.plan, scale=side.scale), side.binary)
        side.starts_s.append(time.monotonic() - began)
        try:
            talk = replace(started.talk(), has_adapter=False)
            ids = rates.prompt_ids(talk, options.prompt_tokens)
            rates.once(talk, ids, 2, side.scale)  # shaders compile on the first request
            began = time.monotonic()
            answer = rates.once(talk, ids, options.answer_tokens, side.scale)
        finally:
            server.stop_folder(folder)
        side.answers.append(answer)
        tokens = answer.prompt_tokens + answer.tokens
        return protocol.Turn(time.monotonic() - began, 1, tokens, tokens, answer.tokens)

    protocol.alternate(sides, options.rounds, turn, sensors, options.cool_below, progress)


def regime(plan: Plan, binaries: Sequence[Binary], options: argparse.Namespace) -> dict[str, Any]:
    """What was measured, for comparing only like with like."""
    device = choose_device(binaries[0], plan.device)[1]
    return {
        "device": device.words,
        "binaries": [f"{binary.version} ({binary.path})" for binary in binaries],
        "model": plan.model.name,
        "adapter": plan.adapter.name if plan.adapter else None,
        "prompt_tokens": options.prompt_tokens,
        "answer_tokens": options.answer_tokens,
        "rounds": options.rounds,
        "batch": plan.batch,
        "cache": [plan.cache_type_k, plan.cache_type_v],
        "flash_attention": plan.flash_attention,
    }


def sweep(
    job: Any, resolved: Any, plan: Plan, binary: Binary, options: argparse.Namespace, scratch: Path
) -> dict[str, Any]:
    """Each quantisation of the merged model: size, rates, KL against the f16 file; outliers flagged."""
    wanted = [name.strip() for name in options.types.split(",") if name.strip()]
    sides, distances = [], {}
    yardstick = _merge(job, resolved, plan, scratch / "f16.gguf", "f16")
    tokens = _held_out(resolved)
    reference = _said(replace(plan, model=yardstick, adapter=None), binary, tokens, scratch)
    for name in wanted:
        file = yardstick if name == "f16" else _merge(job, resolved, plan, scratch / f"{name}.gguf", name)
        one = replace(plan, model=file, adapter=None)
        sides.append(Side(name, one, binary))
        distances[name] = divergence.distance(reference, _tops(one, binary, tokens, scratch))
    turns(sides, options, scratch)
    rows = [{**side.result(), **distances[side.name].as_dict()} for side in sides]
    return {"regime": regime(plan, [binary], options), "results": {"types": flag(rows)}}


def flag(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows by size, each with ``outlier``: why it does not earn its bits, or None."""
    ordered = sorted(rows, key=lambda row: row["file_mib"])
    for smaller, row in zip([None, *ordered], ordered, strict=False):
        row["outlier"] = None
        if smaller is not None and row["mean_kl"] > max(OUTLIER_KL * smaller["mean_kl"], 1e-4):
            row["outlier"] = f"larger than {smaller['name']} and further from f16"
        larger = next((other for other in ordered if other["file_mib"] > row["file_mib"]), None)
        if row["outlier"] is None and larger and row["tokens_per_s"] < OUTLIER_RATE * larger["tokens_per_s"]:
            row["outlier"] = f"smaller than {larger['name']} and slower"
    return ordered


def _merge(job: Any, resolved: Any, plan: Plan, out: Path, quantisation: str) -> Path:
    from bc250studio.export.merged import write_merged
    from bc250studio.export.stage import trained_folder
    from bc250studio.models.find import find

    source = find(resolved.profile.model.base, resolved.profile.model.revision)
    base = Path(str((job.stage("export").get("outputs") or {}).get("base_gguf") or plan.model))
    return write_merged(trained_folder(job), source, base, out, quantisation).path


def _held_out(resolved: Any) -> Reference:
    """Positions of the held-out rows, without distributions: only what to ask."""
    import numpy as np

    from bc250studio import data
    from bc250studio.models.find import find

    profile = resolved.profile
    prepared = data.prepare(profile, find(profile.model.base, profile.model.revision))
    rows = prepared.evaluation if len(prepared.evaluation) else prepared.train
    sequence, position, ids, offsets = [], [], [], [0]
    for index in range(len(rows)):
        row, labelled = rows.row(index)
        ids.append(row)
        offsets.append(offsets[-1] + len(row))
        places = np.flatnonzero(labelled)
        sequence += [index] * len(places)
        position += places.tolist()
        if len(position) >= profile.proof.tokens:
            break
    if not position:
        raise BadInput("No held-out token is labelled, so there is nothing to compare quantisations on.")
    return Reference(np.concatenate(ids), np.array(offsets), np.array(sequence), np.array(position), {}, {})


def _tops(plan: Plan, binary: Binary, tokens: Reference, scratch: Path) -> list[Any]:
    folder = scratch / "server"
    folder.mkdir(exist_ok=True)
    talk = server.start(folder, plan, binary).talk()
    try:
        return prove.collect(talk, tokens, 1.0, prove.guard_token(talk))
    finally:
        server.stop_folder(folder)


def _said(plan: Plan, binary: Binary, tokens: Reference, scratch: Path) -> Variant:
    return divergence.as_variant(_tops(plan, binary, tokens, scratch))


def text(record: dict[str, Any]) -> str:
    """The table, and the sentence a person looks for."""
    regime_, results = record["regime"], record["results"]
    lines = [
        f"{regime_['model']} on {regime_['device']}, {regime_['prompt_tokens']} + {regime_['answer_tokens']} tokens"
    ]
    if "types" in results:
        head = ("type", "MiB", "KL to f16", "top-1", "prompt/s", "output/s", "outlier")
        rows = [
            (
                row["name"],
                f"{row['file_mib']:.1f}",
                f"{row['mean_kl']:.4f}",
                f"{100 * row['top1']:.1f} %",
                f"{row['prompt_per_s']:.1f}",
                f"{row['tokens_per_s']:.1f}",
                row["outlier"] or "",
            )
            for row in results["types"]
        ]
        return "\n".join([*lines, "", aligned(head, rows)])
    table = [
        (
            row["name"],
            f"{row['prompt_per_s']:.1f}",
            f"{row['tokens_per_s']:.1f}",
            f"{row['start_s']:.1f}",
            "yes" if row["steady"] else "NO",
        )
        for row in results["sides"]
    ]
    lines += ["", aligned(("side", "prompt/s", "output/s", "start s", "same answer each time"), table), ""]
    if "equal_answers" in results:
        lines.append(f"answers of A and B: {'equal' if results['equal_answers'] else 'DIFFERENT'}")
        lines.append(f"B against A: output {results['b_over_a']['tokens_per_s']:.2f} times")
    if "adapter_over_base" in results:
        cost = 1 - results["adapter_over_base"]["tokens_per_s"]
        lines.append(f"the run-time adapter costs {100 * cost:.0f} % of the base's output rate")
    if "merged_over_adapter" in results:
        gain = results["merged_over_adapter"]["tokens_per_s"]
        lines.append(f"merged: {gain:.2f} times the adapter's output rate (bc250studio export RUN --kind merged)")
    return "\n".join(lines)
