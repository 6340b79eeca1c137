"""``kernels plan | tune | build | install``: from shapes to a library of your own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bc250studio.cli.common import Bar, duration, emit, narrate, table
from bc250studio.kernels.arguments import add_source, chip_of, gather


def add(verbs: Any) -> None:
    """Options of these verbs."""
    plan = verbs.add_parser("plan", help="what would be tuned: sizes, designs, time")
    add_source(plan)
    plan.add_argument("--designs", type=int, default=32, help="most designs of a part (default 32)")
    plan.add_argument("--out", metavar="FOLDER", help="write the Tensile configurations there")
    plan.add_argument("--tensile", metavar="FOLDER", help="the Tensile they are for (default: the one in settings)")
    plan.add_argument("--host-timing", action="store_true", help="configurations time kernels by the host's clock")
    plan.add_argument("--json", action="store_true", help="as JSON")
    plan.set_defaults(act=run_plan)

    tune = verbs.add_parser("tune", help="tune on the board, as a job that outlives this terminal")
    add_source(tune)
    tune.add_argument("--again", metavar="JOB", help="go on with an earlier tuning job")
    tune.add_argument("--engine", choices=("tensile", "tunableop"), default="tensile", help="tunableop for other chips")
    tune.add_argument("--designs", type=int, default=32, help="most designs of a part (default 32)")
    tune.add_argument("--one-pass", action="store_true", help="no second pass for slow shapes")
    tune.add_argument("--quiet-minutes", type=float, default=5.0, help="end a part that is silent for so long")
    tune.add_argument("--detach", action="store_true", help="do not follow it")
    tune.add_argument("--json", action="store_true", help="as JSON")
    tune.set_defaults(act=run_tune)

    for name, text in (("build", "build a library from logic files"), ("install", "build, measure, prove, use")):
        verb = verbs.add_parser(name, help=text)
        verb.add_argument("source", help="a tuning job, or a folder with logic files")
        verb.add_argument("--name", help="what to call the library")
        verb.add_argument("--stock-logic", metavar="FOLDER", help="rocBLAS's Logic/asm_full with its hip_*.yaml")
        if name == "install":
            verb.add_argument("--no-bench", action="store_true", help="do not measure against stock first")
        verb.add_argument("--json", action="store_true", help="as JSON")
        verb.set_defaults(act=run_build if name == "build" else run_install)


def run_plan(options: argparse.Namespace) -> int:
    """Print the plan, and write the configurations when asked."""
    from bc250studio import settings
    from bc250studio.errors import BadInput
    from bc250studio.kernels import plan, tensile

    if options.designs < 1:
        raise BadInput("--designs must be at least 1.")
    made = plan.plan(gather(options), chip_of(options), options.designs)
    record = made.as_dict()
    place = options.tensile or settings.load().kernels.tensile
    schedule = tensile.GFX
    if place:
        schedule = tensile.insist(tensile.inspect(Path(place).expanduser())).schedule
    else:
        narrate(
            f"No Tensile is set, so the schedule is called {schedule}; a patched Tensile may have another name for it."
        )
    if options.out:
        files = plan.write(made, Path(options.out), schedule, not options.host_timing)
        record["files"] = [str(file) for file in files]
    rows = [[p["name"], len(p["sizes"]), len(p["designs"]), duration(p["seconds"])] for p in record["parts"]]
    lines = [table(["part", "sizes", "designs", "about"], rows), ""]
    lines.append(f"{made.model} on {record['chip']}: about {duration(record['seconds'])}, schedule {schedule}.")
    lines += [f"left out: {line}" for line in made.left_out]
    emit(record, options.json, "\n".join(lines))
    return 0


def run_tune(options: argparse.Namespace) -> int:
    """Start (or go on with) a tuning job and show its table."""
    from bc250studio import jobs
    from bc250studio.errors import BadInput
    from bc250studio.jobs import spawn
    from bc250studio.kernels import tune

    if options.engine == "tunableop":
        from bc250studio.kernels import tunableop

        record = tunableop.tune(gather(options), progress=Bar())
        emit(record, options.json, "\n".join(record["said"]))
        return 0
    if options.designs < 1 or options.quiet_minutes <= 0:
        raise BadInput("--designs and --quiet-minutes must be more than 0.")
    if options.again:
        job = jobs.find(options.again)
    else:
        job = tune.create(
            gather(options), chip_of(options), most=options.designs, widen=not options.one_pass,
            quiet_s=60 * options.quiet_minutes,
        )  # fmt: skip
    spawn.spawn(job, spawn.python_job("bc250studio.kernels.tune", str(job.path)), "tune")
    narrate(f"Tuning as job {job.name}; it goes on when this terminal closes. Log: {job.path / 'logs' / 'tune.log'}")
    if not options.detach:
        follow(job)
    state = job.state()
    emit({"job": job.name, **state}, options.json, f"{job.name}: {state.get('phase')}")
    return int(state.get("exit_code") or 0) if not options.detach else 0


def follow(job: Any) -> None:
    """Lines of the live table until the job ends; Ctrl-C leaves it running."""
    import time

    from bc250studio import jobs
    from bc250studio.jobs.folder import read_json
    from bc250studio.kernels import live

    log, bar = job.path / "logs" / "tune.log", Bar()
    seen = len(job.events())
    with log.open("rb") as stream:
        while True:
            alive = jobs.standing(job).live
            for line in stream.read().decode("utf-8", "replace").splitlines():
                bar.show(line)
            events = job.events()
            for event in events[seen:]:
                bar.close()
                narrate(f"  {event.get('text', '')}")
            seen = len(events)
            if not alive:
                break
            time.sleep(0.25)
    bar.close()
    print(live.table(read_json(job.path / "tune" / "live.json")))


def _logic_folder(source: str) -> Path:
    """A folder as it is, or the logic of a tuning job."""
    from bc250studio import jobs

    path = Path(source).expanduser()
    if path.is_dir() and not (path / "state.json").is_file():
        return path
    return Path(jobs.find(source).path / "tune" / "logic")


def run_build(options: argparse.Namespace) -> int:
    """Build only; prove it before anything uses it."""
    from bc250studio.kernels import build

    bar = Bar()
    stock = Path(options.stock_logic) if options.stock_logic else None
    place, said = build.build(_logic_folder(options.source), name=options.name, stock=stock, progress=bar)
    bar.close()
    said.append(f"Next: bc250studio kernels prove --library {place.name}")
    emit({"name": place.name, "folder": str(place / "library"), "said": said}, options.json, "\n".join(said))
    return 0


def run_install(options: argparse.Namespace) -> int:
    """Build, measure against stock, leave out what gains nothing, prove, use."""
    from bc250studio.bench.recipes_gemm import install_decision
    from bc250studio.kernels import adopt, build, logic, store
    from bc250studio.kernels.runtime import runner

    folder = _logic_folder(options.source)
    stock = Path(options.stock_logic) if options.stock_logic else None
    bar = Bar()
    place, said = build.build(folder, name=options.name, stock=stock, progress=bar)
    if not options.no_bench:
        decision = install_decision(logic.read_folder(folder), store.library(place.name), bar)
        said += decision["said"]
        if decision["leave_out"] or decision["equality"]:
            import shutil

            shutil.rmtree(place)
            if not decision["keeps"]:
                bar.close()
                said.append("No class of shapes gains anything, so rocBLAS's own kernels stay in use.")
                emit({"name": None, "said": said}, options.json, "\n".join(said))
                return 0
            place, more = build.build(
                folder, name=options.name, stock=stock, leave_out=decision["leave_out"],
                equality=decision["equality"], progress=bar,
            )  # fmt: skip
            said += more
    record = adopt.finish(store.library(place.name), said, True, bar, adopt.probe(place / "library", runner()))
    bar.close()
    emit(record, options.json, "\n".join(record["said"]))
    return 0
