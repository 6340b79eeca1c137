"""``run PROFILE``: everything, headless. Ctrl-C leaves the run going; ``stop`` ends it."""

from __future__ import annotations

import argparse

from bc250studio import pipeline, profiles
from bc250studio.cli.common import duration, emit, narrate
from bc250studio.cli.follow import follow
from bc250studio.jobs import JobFolder
from bc250studio.paths import command
from bc250studio.pipeline.summary import sentence, summary


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``run``."""
    parser.add_argument("profile", help="a profile's name or file")
    add_common(parser)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Options shared by the commands that start a job."""
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="override one value of the profile")
    parser.add_argument("--json", action="store_true", help="the result as JSON on stdout")
    parser.add_argument("--detach", action="store_true", help="start it and return at once")


def run(options: argparse.Namespace) -> int:
    """Start and follow."""
    resolved = profiles.load(options.profile, options.set)
    return start(pipeline.launch(resolved), options)


def start(job: JobFolder, options: argparse.Namespace) -> int:
    """Follow a job that was just launched, unless told to detach; returns its exit code."""
    narrate(f"Run {job.name}. It goes on without this terminal; follow it with: {command()} attach {job.name}")
    if options.detach:
        emit({"run": job.name, "folder": str(job.path)}, options.json, job.name)
        return 0
    return watch(job, options.json)


def watch(job: JobFolder, as_json: bool) -> int:
    """Follow to the end and print what came out."""
    try:
        found = follow(job)
    except KeyboardInterrupt:
        narrate(f"\nDetached; the run goes on. {command()} attach {job.name} | {command()} stop {job.name}")
        return 130
    data = summary(job)
    emit(data, as_json, text(data))
    if found.verdict in ("lost", "machine restarted"):
        narrate(f"The run is {found.verdict}; go on with: {command()} resume {job.name}")
        return 1
    code = found.state.get("exit_code")
    return int(code) if isinstance(code, int) else (0 if found.verdict == "done" else 1)


def text(data: dict) -> str:
    """The short summary at the end of a run."""
    lines = ["", sentence(data)]
    if data.get("eval_loss_before") is not None and data.get("eval_loss_after") is not None:
        lines.append(f"evaluation loss  {data['eval_loss_before']:.3f} before, {data['eval_loss_after']:.3f} after")
    if data.get("rates"):
        rates = data["rates"]
        took = duration(data.get("train_seconds"))
        lines.append(
            f"training         {data.get('steps')} steps in {took} on {data.get('device')}: "
            f"{rates.get('real_tokens_per_s') or 0:.0f} real tokens/s"
        )
    if data.get("server"):
        lines.append(f"served by        {data['server'].get('backend_words')} at {data['server'].get('url')}")
    for answer in data.get("answers") or []:
        lines += ["", f"  {answer['prompt']}"]
        for side in ("base", "tuned"):
            words = " ".join(str((answer.get(side) or {}).get("text", "")).split())
            lines.append(f"    {side:<5} {words[:200]}")
    lines += [
        "",
        f"files            {data['folder']}",
        f"open the app     {command()}",
        f"stop the server  {command()} stop {data['run']}",
    ]
    return "\n".join(lines)
