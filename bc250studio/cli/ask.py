"""``ask RUN``: questions with expectations, put to base and tuned; exit 1 when the tuned model misses one."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from bc250studio.cli.common import Bar, emit
from bc250studio.errors import clean


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``ask``."""
    parser.add_argument("target", nargs="?", default="last", help="a run, a profile, or a PEFT adapter folder")
    parser.add_argument("--base", help="the base model of an adapter folder")
    parser.add_argument("--prompt", action="append", default=[], help="a question (may be given again)")
    parser.add_argument("--file", type=Path, help="a prompts file with expectations (TOML, JSON, JSON lines)")
    parser.add_argument("--max-tokens", type=int, help="longest answer")
    parser.add_argument("--list", action="store_true", help="only list what can be asked: own and held-out questions")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace) -> int:
    """Ask, show both answers, judge the tuned one."""
    from bc250studio.serve import stage_ask
    from bc250studio.serve.target import job_for

    bar = Bar()
    job, resolved = job_for(options.target, options.base, bar)
    if options.list:
        found = stage_ask.offered(resolved)
        bar.close()
        lines = [f"{question['from']:<14}{' '.join(clean(question['text']).split())}" for question in found]
        emit({"run": job.name, "questions": found}, options.json, "\n".join(lines))
        return 0
    changes = {}
    if options.prompt or options.file:
        changes = {"prompts": options.prompt, "file": str(options.file) if options.file else None}
    if options.max_tokens:
        changes["max_tokens"] = options.max_tokens
    if changes:
        asking = resolved.profile.ask.model_copy(update=changes)
        resolved = replace(resolved, profile=resolved.profile.model_copy(update={"ask": asking}))
    record = stage_ask.run(job, resolved, bar)
    bar.close()
    if not changes:
        job.write_stage("ask", **{"inputs": stage_ask.inputs(job, resolved), **record})
    emit({"run": job.name, **record}, options.json, text(record))
    return int(record.get("exit_code", 0))


def text(record: dict) -> str:
    """The answers under their questions, and what they miss."""
    lines = []
    for answer in record["answers"]:
        lines.append(f"? {answer['prompt']}")
        for side in ("base", "tuned"):
            said = answer.get(side)
            if said is None:
                continue
            words = " ".join(said["text"].split())
            lines.append(f"  {side:<5} {words}")
            lines.append(f"        {said['tokens_per_s']:.1f} tokens/s, {STOPS.get(said['stop'], said['stop'])}")
        if "met" in answer:
            lines.append("  as expected" if answer["met"] else f"  NOT AS EXPECTED: {'; '.join(answer['unmet'])}")
        lines.append("")
    if "expected" in record:
        lines.append(f"{record['met']} of {record['expected']} answers are as expected.")
    return "\n".join(lines).rstrip()


STOPS = {
    "end": "ended by itself",
    "limit": "cut at the limit",
    "cancelled": "cancelled",
    "format": "unreadable for the server",
}
