"""``serve RUN|PROFILE|ADAPTER_DIR``: llama-server with what was trained, left running, and how to reach it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bc250studio.cli.common import Bar, emit, narrate, table
from bc250studio.errors import BadInput
from bc250studio.terminal_codes import osc52


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``serve``."""
    parser.add_argument("target", nargs="?", default="last", help="a run, a profile, or a PEFT adapter folder")
    parser.add_argument("--base", help="the base model of an adapter folder")
    parser.add_argument("--device", help="auto, cpu, or a name such as Vulkan0")
    parser.add_argument("--port", type=int, help="0 takes a free one")
    parser.add_argument("--context", type=int, help="tokens a chat may have")
    parser.add_argument("--binary", type=Path, help="another llama-server, for this time")
    parser.add_argument("--restart", action="store_true", help="also when it runs already")
    parser.add_argument("--stop", action="store_true", help="end the run's server")
    parser.add_argument("--copy", action="store_true", help="put the tunnel line on your clipboard (OSC 52)")
    parser.add_argument("--tune", action="store_true", help="measure settings, keep the fastest that is still right")
    parser.add_argument("--json", action="store_true", help="as JSON, with the key")


def run(options: argparse.Namespace) -> int:
    """Start or adopt, and say how to reach it."""
    from bc250studio import settings
    from bc250studio.serve import server, stage_serve
    from bc250studio.serve.binary import find_binary
    from bc250studio.serve.target import job_for, require_idle

    bar = Bar()
    job, resolved = job_for(options.target, options.base, bar)
    if options.stop:
        ended = server.stop(job)
        emit({"run": job.name, "stopped": ended}, options.json, "stopped" if ended else "it was not running")
        return 0
    require_idle(job)
    changes = {
        name: getattr(options, name) for name in ("device", "port", "context") if getattr(options, name) is not None
    }
    plan = stage_serve.plan_for(job, resolved, changes)
    binary = find_binary(settings.load(), options.binary)
    if options.tune:
        from bc250studio.cli.serve_tune import run as tune

        return tune(job, resolved, plan, binary, options, bar)
    found = None if options.restart or changes or options.binary else server.adopt(job)
    if found is None:
        found = server.start(job.path, stage_serve.tuned(plan, binary), binary, bar, own_job=job.path)
        job.write_stage("serve", verdict="done", server=found.public(), outputs={"server": "server.json"})
    bar.close()
    lines = server.tunnel_lines(found)
    if not found.loopback:
        narrate(f"Attention: the server listens on {found.host}, not only on this machine.")
    text = "\n".join(
        [
            f"{found.url} on {found.backend_words}, context {found.n_ctx}, llama-server {found.version}",
            "",
            table(("", ""), [("from afar", lines["tunnel"]), ("key", lines["key"]), ("try", lines["curl"])]),
            "",
            f"stop it with: bc250studio serve {job.name} --stop",
        ]
    )
    if options.copy:
        if not sys.stderr.isatty():
            raise BadInput("--copy needs a terminal; it speaks to the terminal's clipboard.")
        sys.stderr.write("".join(osc52(lines["tunnel"])))
        sys.stderr.flush()
    emit({"run": job.name, "server": found.public(), **lines}, options.json, text)
    return 0
