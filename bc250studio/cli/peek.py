"""``peek RUN``: stop training at a checkpoint, chat with what it is so far, then go on as if nothing had been."""

from __future__ import annotations

import argparse

from bc250studio import jobs, pipeline
from bc250studio.cli.common import narrate
from bc250studio.cli.follow import follow
from bc250studio.errors import BadInput, JobFailed
from bc250studio.jobs import control

STAGES = ("export", "serve")


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``peek``, and those of ``chat``."""
    from bc250studio.cli import chat

    chat.add(parser)


def run(options: argparse.Namespace) -> int:
    """Stop, serve, chat, and on leaving go on."""
    from bc250studio.cli import chat
    from bc250studio.serve import server

    job = jobs.find(getattr(options, "target", None) or getattr(options, "run", None) or "last")
    found = jobs.standing(job)
    if not found.live or found.state.get("stage") != "train":
        raise BadInput(f"{job.name} is not training (it is {found.verdict}); use: bc250studio chat {job.name}")
    stages = job.state().get("stages") or pipeline.STAGES
    narrate("Stopping at a checkpoint ...")
    control.ask(job, "stop", why="peek")
    follow(job)
    if job.state().get("phase") != "stopped":
        raise JobFailed(f"{job.name} did not stop for the peek; it is {job.state().get('phase')}.")
    try:
        pipeline.go_on(job, STAGES)
        follow(job)
        return chat.run(options)
    finally:
        if server.read(job) is not None:
            server.stop(job)
        pipeline.go_on(job, stages)
        narrate(f"{job.name} goes on from its checkpoint.")
