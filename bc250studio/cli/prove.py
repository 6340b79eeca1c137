"""``prove RUN``: show that what answers is what was trained; ``--all`` proves adapter and merged files in one table."""

from __future__ import annotations

import argparse
from typing import Any

from bc250studio.cli.common import Bar, emit, table


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``prove``."""
    parser.add_argument("target", nargs="?", default="last", help="a run, a profile, or a PEFT adapter folder")
    parser.add_argument("--base", help="the base model of an adapter folder")
    parser.add_argument("--all", action="store_true", help="also merge as f16 and q4_k_m, serve and prove each")
    parser.add_argument("--types", default="f16,q4_k_m", help="quantisations for --all")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace) -> int:
    """Prove; exit 3 when what is served is not what was trained."""
    from bc250studio.serve import stage_prove
    from bc250studio.serve.target import job_for, require_idle

    bar = Bar()
    job, resolved = job_for(options.target, options.base, bar)
    require_idle(job)
    if not job.stage("reference"):
        stage_prove.ensure_reference(job, resolved, bar)
    if options.all:
        return _all(job, resolved, options, bar)
    record = stage_prove.run(job, resolved, bar)
    bar.close()
    job.write_stage("prove", **{"inputs": stage_prove.inputs(job, resolved), **record})
    emit({"run": job.name, **record}, options.json, text(record["proof"], record["verdict"]))
    return int(record.get("exit_code", 0))


def _all(job: Any, resolved: Any, options: argparse.Namespace, bar: Bar) -> int:
    from bc250studio.serve.prove_all import prove_all

    rows = prove_all(job, resolved, bar, tuple(kind.strip() for kind in options.types.split(",") if kind.strip()))
    bar.close()
    emit({"run": job.name, "proofs": rows}, options.json, table_of(rows))
    return 0 if all(row["verdict"] == "passed" for row in rows) else 3


def table_of(rows: list[dict]) -> str:
    """One line a file: size, distance from torch, from base + adapter, from what was trained, speed, verdict."""
    lines, remarks = [], []
    for row in rows:
        if "proof" not in row:
            lines.append((row["name"], "-", "-", "-", "-", "-", "-", row["verdict"]))
        else:
            proof = row["proof"]
            merge, price = proof.get("merge") or proof, proof["price"] or {}
            lines.append(
                (
                    row["name"],
                    f"{row['bytes'] / 2**20:.1f}",
                    f"{proof['mean_kl']:.4f}",
                    f"{merge['mean_kl']:.4f}",
                    f"{price.get('mean_kl', float('nan')):.4f}",
                    f"{100 * proof['top1']:.1f} %",
                    f"{row['tokens_per_s']:.1f}",
                    row["verdict"],
                )
            )
        if row.get("error"):
            remarks.append(f"{row['name']}: {row['error']}")
        remarks += [f"{row['name']}: {note}" for note in (row.get("proof") or {}).get("notes", [])]
    head = ("", "MiB", "KL same", "KL merge", "KL price", "top-1", "tok/s", "verdict")
    what = (
        "same: against torch with this file's weights (judged); merge: against base + adapter (judged in 16 bits); "
        "price: against the training weights"
    )
    return "\n".join([table(head, lines), "", what, *remarks])


def text(proof: dict, verdict: str) -> str:
    """The figures as a table, the verdict as a sentence."""
    rows = []
    figures_of = {"same adapter": proof, "base alone": proof["base"], "price of quantisation": proof["price"]}
    for name, figures in figures_of.items():
        if figures:
            rows.append(
                (name, f"{figures['mean_kl']:.4f}", f"{figures['worst_kl']:.4f}", f"{100 * figures['top1']:.1f} %")
            )
    lines = [table(("", "mean KL", "worst KL", "top-1"), rows), ""]
    lines.append(f"limit {proof['limit_kl']} nats, {proof['tokens']} held-out tokens; the price is shown, not judged")
    equal = {True: "equal", False: "DIFFERENT", None: "not compared"}[proof["ids_equal"]]
    lines.append(f"tokens of trainer and server: {equal} ({proof['ids_checked']} chats) {proof['ids_note']}".rstrip())
    lines += [f"note: {note}" for note in proof["notes"]]
    lines.append("")
    lines.append(
        "PROVED: what answers is what was trained."
        if verdict == "passed"
        else f"NOT PROVED: {proof['cause'] or 'the numbers differ'}"
    )
    return "\n".join(lines)
