"""``prove RUN``: show that what answers is what was trained; ``--all`` proves adapter and merged files in one table."""

from __future__ import annotations

import argparse

from bc250studio.cli.common import Bar, emit, table


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``prove``."""
    parser.add_argument("target", nargs="?", default="last", help="a run, a profile, or a PEFT adapter folder")
    parser.add_argument("--base", help="the base model of an adapter folder")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace) -> int:
    """Prove; exit 3 when what is served is not what was trained."""
    from bc250studio.serve import stage_prove
    from bc250studio.serve.target import job_for

    bar = Bar()
    job, resolved = job_for(options.target, options.base, bar)
    record = stage_prove.run(job, resolved, bar)
    bar.close()
    job.write_stage("prove", **{"inputs": stage_prove.inputs(job, resolved), **record})
    emit({"run": job.name, **record}, options.json, text(record["proof"], record["verdict"]))
    return int(record.get("exit_code", 0))


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
