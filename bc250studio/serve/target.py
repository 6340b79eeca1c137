"""What a user names on the command line: a run, a profile (its newest run), or any PEFT adapter folder."""

from __future__ import annotations

import json
from pathlib import Path

from bc250studio import jobs, profiles
from bc250studio.errors import BadInput, JobFailed, clean
from bc250studio.jobs import JobFolder
from bc250studio.jobs.progress import Progress
from bc250studio.profiles import Resolved


def job_for(target: str, base: str | None, progress: Progress) -> tuple[JobFolder, Resolved]:
    """The job folder of a target; an adapter folder gets one of its own, exported and ready to serve.

    Raises:
        BadInput: nothing fits, or the adapter's base cannot be found.
    """
    path = Path(target).expanduser()
    if (path / "adapter_config.json").is_file():
        return _adopt_adapter(path.resolve(), base, progress)
    try:
        job = jobs.find(target)
    except BadInput:
        job = _newest_of_profile(target)
    if base is not None:
        raise BadInput("--base goes with an adapter folder; a run knows its base.")
    return job, job.profile()


def require_idle(job: JobFolder) -> None:
    """Refuse to start or replace a run's server while the run itself works.

    Raises:
        JobFailed: a process owns the run now.
    """
    found = jobs.standing(job)
    if found.live:
        raise JobFailed(f"{job.name} is {found.phase} at this moment; follow it with: bc250studio attach {job.name}")


def _newest_of_profile(name: str) -> JobFolder:
    for job in jobs.all_jobs():
        if job.state().get("profile") == name and job.stage("export").get("outputs"):
            return job
    if name in profiles.available():
        raise BadInput(f"No run of the profile {name} has been exported yet; start one: bc250studio run {name}")
    return jobs.find(name)


def _adopt_adapter(folder: Path, base: str | None, progress: Progress) -> tuple[JobFolder, Resolved]:
    from bc250studio.export import stage as export_stage

    if base is None:
        try:
            base = str(
                json.loads((folder / "adapter_config.json").read_text("utf-8")).get("base_model_name_or_path") or ""
            )
        except (OSError, ValueError, AttributeError) as error:
            raise BadInput(f"{folder}/adapter_config.json cannot be read: {clean(error, 120)}.") from error
        if not base:
            raise BadInput(f"{folder} does not say which model it belongs to; give it with --base.")
    resolved = profiles.from_text("", "command line", folder.name, {"model.base": base})
    job = JobFolder.create("serve", resolved, folder.name)
    job.write_stage("train", verdict="done", outputs={"adapter": str(folder)}, note="trained elsewhere")
    try:
        inputs = export_stage.inputs(job, resolved)
        job.write_stage("export", **{"inputs": inputs, **export_stage.run(job, resolved, progress)})
    except BaseException:
        import shutil

        shutil.rmtree(job.path, ignore_errors=True)
        raise
    job.write_state(phase="done")
    return job, resolved
