"""``pause``, ``resume``, ``stop``, ``checkpoint``: requests to a run. ``stop`` also ends its server."""

from __future__ import annotations

import argparse
import time

from bc250studio import jobs, pipeline
from bc250studio.cli.common import emit, narrate
from bc250studio.errors import BadInput, JobFailed
from bc250studio.jobs import control
from bc250studio.paths import command

WAIT_S = 120.0


def add(parser: argparse.ArgumentParser) -> None:
    """Options of the four."""
    parser.add_argument("run", nargs="?", default="last", help="a run's name (default: the newest)")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--no-wait", action="store_true", help="return before the run has answered")
    if parser.get_default("noun") == "resume":
        parser.add_argument(
            "--on-boot", choices=("on", "off"), help="go on by itself after a reboot (systemd user unit)"
        )


def run(options: argparse.Namespace) -> int:
    """Ask, and wait for the answer."""
    if getattr(options, "on_boot", None):
        return _on_boot(options)
    job = jobs.find(options.run)
    found = jobs.standing(job)
    answer = {"stop": _stop, "resume": _resume}.get(options.noun, _ask)(job, found, options)
    emit({"run": job.name, "answer": answer}, options.json, answer)
    return 0


def _stop(job: jobs.JobFolder, found: jobs.Standing, options: argparse.Namespace) -> str:
    said = []
    if found.live:
        said.append(_ask(job, found, options))
    from bc250studio.serve import server

    if server.read(job) is not None and not (found.live and options.no_wait):
        said.append("server stopped" if server.stop(job) else "the server was gone already")
    if not said:
        raise BadInput(f"{job.name} is not running (it is {found.verdict}) and has no server.")
    return "; ".join(said)


def _resume(job: jobs.JobFolder, found: jobs.Standing, options: argparse.Namespace) -> str:
    if found.live:
        return _ask(job, found, options)
    if (
        found.verdict == "done" and job.stage("train").get("verdict") != "stopped"
    ):  # a peek that was cut off is not done
        raise BadInput(f"{job.name} is done; there is nothing to resume.")
    pipeline.go_on(job, job.state().get("stages") or pipeline.STAGES)
    narrate(f"Follow it with: {command()} attach {job.name}")
    return "resumed"


def _on_boot(options: argparse.Namespace) -> int:
    from bc250studio.pipeline import on_boot

    remarks = []
    if options.on_boot == "on":
        remarks = on_boot.enable()
    else:
        on_boot.disable()
    for remark in remarks:
        narrate(remark)
    emit(
        {"unit": str(on_boot.unit_file()), "remarks": remarks},
        options.json,
        f"{options.on_boot}: {on_boot.unit_file()}",
    )
    return 0


def _ask(job: jobs.JobFolder, found: jobs.Standing, options: argparse.Namespace) -> str:
    if not found.live:
        raise BadInput(f"{job.name} is not running; it is {found.verdict}.")
    verb, before = options.noun, len(job.events())
    control.ask(job, verb)
    wanted = {"pause": "paused", "resume": "resumed", "stop": "stopped", "checkpoint": "checkpoint"}[verb]
    deadline = time.monotonic() + (0 if options.no_wait else WAIT_S)
    while time.monotonic() < deadline:
        if any(event.get("event") == wanted for event in job.events()[before:]):
            return wanted
        if not jobs.standing(job).live:
            return str(job.state().get("phase"))
        time.sleep(0.1)
    if options.no_wait:
        return "asked"
    raise JobFailed(f"{job.name} has not answered {verb!r} within {WAIT_S:.0f} s; see: bc250studio status {job.name}")
