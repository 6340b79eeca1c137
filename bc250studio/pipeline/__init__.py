"""The whole way: train -> export -> reference -> serve -> prove -> ask, resumable, outliving the terminal.

``launch`` makes a job folder and starts its supervisor (``python -m bc250studio.pipeline JOBDIR``) in a
session of its own; ``go_on`` starts a supervisor for further stages of a job that exists. Nobody else
starts work in the background.
"""

from __future__ import annotations

from collections.abc import Sequence

from bc250studio import profiles
from bc250studio.jobs import JobFolder, spawn

STAGES = ("train", "export", "reference", "serve", "prove", "ask")
AFTER_TRAINING = STAGES[1:]

__all__ = ["AFTER_TRAINING", "STAGES", "go_on", "launch"]


def launch(
    resolved: profiles.Resolved, stages: Sequence[str] = STAGES, title: str = "", kind: str = "train"
) -> JobFolder:
    """Check what can be checked in a second, create the job, start it detached, return its folder.

    Raises:
        BadInput: model, data, adapter or server cannot be as asked; nothing was created.
        JobFailed: the supervisor died before it owned the job.
    """
    from bc250studio.pipeline.preflight import check

    check(resolved, stages)
    job = JobFolder.create(kind, resolved, title)
    go_on(job, stages)
    return job


def go_on(job: JobFolder, stages: Sequence[str] = STAGES) -> None:
    """Start a supervisor for ``stages`` of an existing job. What is done and unchanged is not done again.

    Raises:
        JobFailed: somebody works on the job already, or the supervisor died at once.
    """
    command = spawn.python_job("bc250studio.pipeline", str(job.path), "--stages", ",".join(stages))
    spawn.spawn(job, command, "pipeline")
