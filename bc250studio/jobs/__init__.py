"""Anything that outlives an SSH line: folders, identity, lock, control, detached start, listing."""

from bc250studio.jobs.folder import FINISHED, JobFolder, all_jobs, find
from bc250studio.jobs.identity import Identity, boot_id, mine
from bc250studio.jobs.listing import Standing, live, standing
from bc250studio.jobs.lock import Lock

__all__ = [
    "FINISHED",
    "Identity",
    "JobFolder",
    "Lock",
    "Standing",
    "all_jobs",
    "boot_id",
    "find",
    "live",
    "mine",
    "standing",
]
