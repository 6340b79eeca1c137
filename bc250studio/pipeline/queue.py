"""One board, one job at a time: profiles that wait, run one after the other, each with its cool start.

An entry is a frozen profile in ``queue/``; the queue's own job takes the oldest, runs it to its end and
takes the next. A failure does not stop the next. ``python -m bc250studio.pipeline.queue JOBDIR`` is the runner.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bc250studio import paths, pipeline, profiles
from bc250studio.errors import BadInput, StudioError, clean
from bc250studio.jobs import JobFolder, Lock, all_jobs, live, spawn, standing

COOL_START_C = 55.0
POLL_S = 0.2
_STAGES = "# stages: "


def folder() -> Path:
    """Where waiting profiles lie."""
    return paths.private_dir(paths.data_dir() / "queue")


def waiting() -> list[Path]:
    """Waiting entries, oldest first."""
    return sorted(folder().glob("*.toml"))


def add(resolved: profiles.Resolved, stages: Sequence[str] = pipeline.STAGES) -> Path:
    """Put one profile at the end. It is frozen now: later edits of the file do not change it."""
    file = folder() / f"{time.time_ns():020d}--{resolved.name}.toml"
    paths.write_atomic(file, f"{_STAGES}{','.join(stages)}\n{profiles.dump(resolved)}")
    return file


def name_of(entry: Path) -> str:
    """The profile's name of an entry."""
    return entry.stem.partition("--")[2]


def move(entry: Path, by: int) -> Path:
    """Let ``entry`` run earlier (negative) or later by so many places; the entry's new file. One rename.

    Raises:
        BadInput: it does not wait any more.
    """
    entries = waiting()
    if entry not in entries:
        raise BadInput(f"{name_of(entry)} does not wait any more: it was started or removed.")
    place = min(max(entries.index(entry) + by, 0), len(entries) - 1)
    others = [other for other in entries if other != entry]
    after = _stamp(others[place - 1]) if place else _stamp(others[0]) - 2 * 10**9 if others else 0
    before = _stamp(others[place]) if place < len(others) else max(time.time_ns(), after + 2)
    moved = entry.with_name(f"{(after + before) // 2:020d}--{name_of(entry)}.toml")
    try:
        entry.rename(moved)
    except FileNotFoundError as error:
        raise BadInput(f"{name_of(entry)} does not wait any more: it was started just now.") from error
    return moved


def remove(entry: Path) -> None:
    """Take an entry out; one that has been started meanwhile is no error."""
    entry.unlink(missing_ok=True)


def _stamp(entry: Path) -> int:
    first = entry.stem.partition("--")[0]
    return int(first) if first.isdigit() else 0


def stages_of(text: str) -> tuple[str, ...]:
    """Which stages an entry asks for: its first line says so; without one, all."""
    first = text.partition("\n")[0]
    asked = first.removeprefix(_STAGES).split(",") if first.startswith(_STAGES) else []
    return tuple(name for name in pipeline.STAGES if name in asked) or pipeline.STAGES


def runner() -> JobFolder | None:
    """The queue's own live job, if one works."""
    return next((found.job for found in live() if found.state.get("kind") == "queue"), None)


def ensure_runner() -> JobFolder:
    """Start the queue's job unless it works already."""
    job = runner()
    if job is None:
        job = JobFolder.create("queue", None, "queue")
        spawn.spawn(job, spawn.python_job("bc250studio.pipeline.queue", str(job.path)), "queue")
    return job


def work(job: JobFolder) -> int:
    """Run entries until none waits; the exit code is 1 when any of them failed."""
    failed = 0
    with Lock(job.path):
        job.own("serving")
        while entries := waiting():
            _wait_for_the_board(job)
            entry = entries[0]
            name = entry.stem.partition("--")[2]
            try:
                text = entry.read_text("utf-8")
                resolved = profiles.from_text(text, str(entry), name)
                if resolved.profile.thermal.start_below_c is None:
                    cool = {"thermal.start_below_c": COOL_START_C}
                    resolved = profiles.from_text(text, str(entry), name, cool)
                run = pipeline.launch(resolved, stages_of(text))
                entry.unlink(missing_ok=True)
                job.event("queue", f"Started {name} as {run.name}.", run=run.name)
                verdict = _wait_for(run)
                _stop_server(run, bool(waiting()))
            except (StudioError, OSError, ValueError) as error:
                entry.unlink(missing_ok=True)
                verdict = "failed"
                job.event("error", f"{name}: {clean(error)}")
            failed += verdict != "done"
            job.event("queue", f"{name} ended: {verdict}.")
        job.write_state(phase="done", exit_code=int(failed > 0), error=f"{failed} failed" if failed else None)
    return int(failed > 0)


def _wait_for(run: JobFolder) -> str:
    while (found := standing(run)).live or found.verdict == "created":
        time.sleep(POLL_S)
    return found.verdict


def _wait_for_the_board(job: JobFolder) -> None:
    """Another run that was started by hand goes first."""
    while any(found.job.name != job.name and found.state.get("kind") != "queue" for found in live()):
        job.write_state(phase="paused", stage_text="another run works; the queue waits for it")
        time.sleep(POLL_S)
    job.write_state(phase="serving", stage_text="")


def _stop_server(run: JobFolder, more: bool) -> None:
    """The next training needs the memory; the last run's server stays."""
    from bc250studio.serve import server

    if more and server.read(run) is not None:
        server.stop(run)


def history() -> list[JobFolder]:
    """Queue jobs, newest first."""
    return [job for job in all_jobs() if job.state().get("kind") == "queue"]


if __name__ == "__main__":
    sys.exit(work(JobFolder(Path(sys.argv[1]))))
