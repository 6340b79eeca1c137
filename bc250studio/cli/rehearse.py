"""``rehearse PROFILE``: nobody should lose a night to an export error at step 2,000."""

from __future__ import annotations

import argparse

from bc250studio import pipeline, profiles
from bc250studio.cli.common import Bar, duration, emit, narrate
from bc250studio.cli.run import add_common, start
from bc250studio.jobs import JobFolder
from bc250studio.pipeline import rehearsal
from bc250studio.pipeline.summary import summary


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``rehearse``."""
    parser.add_argument("profile", help="a profile's name or file")
    add_common(parser)
    parser.add_argument("--go", action="store_true", help="when all is well, start the real run")
    parser.add_argument("--keep-server", action="store_true", help="leave the rehearsal's server running")


def run(options: argparse.Namespace) -> int:
    """Rehearse, say how each station went, perhaps go."""
    resolved = profiles.load(options.profile, options.set)
    bar = Bar()
    job = rehearsal.rehearse(resolved, bar)
    bar.close()
    if not options.keep_server:
        from bc250studio.serve import server

        if server.read(job) is not None:
            server.stop(job)
    data = summary(job)
    step_s = rehearsal.measured_step_s(job)
    data["measured_step_s"] = step_s
    full_steps = resolved.profile.train.steps or _steps_of(job, resolved)
    data["estimated_seconds"] = step_s * full_steps if step_s and full_steps else None
    good = data["verdict"] == "done"
    lines = [f"{name:<10} {verdict}" for name, verdict in data["stages"].items()]
    lines.append("rehearsal  " + ("all is well" if good else f"FAILED: {data.get('error')}"))
    if data["estimated_seconds"]:
        lines.append(f"the real run: about {full_steps} steps, {duration(data['estimated_seconds'])} of training")
    code = 0 if good else int(job.state().get("exit_code") or 1)
    if good and options.go:
        narrate("\n".join(lines))
        return start(pipeline.launch(resolved), options)
    emit(data, options.json, "\n".join(lines))
    return code


def _steps_of(job: JobFolder, resolved: profiles.Resolved) -> int | None:
    """Steps the whole data would take, from the rehearsal's own count of passes an epoch."""
    per_epoch = job.stage("train").get("steps_per_epoch")
    return round(per_epoch * resolved.profile.train.epochs) if isinstance(per_epoch, (int, float)) else None
