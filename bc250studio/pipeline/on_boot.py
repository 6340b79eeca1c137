"""Opt-in: go on after a reboot. A systemd user unit that resumes the runs the machine took down with it.

A hang of this GPU is a reboot, so a night's run needs somebody who starts it again. At most three tries a
run; a run asked to stop is never resumed.
"""

from __future__ import annotations

import getpass
import shutil
import subprocess
import sys
from pathlib import Path

from bc250studio import paths, pipeline
from bc250studio.errors import JobFailed, StudioError, clean
from bc250studio.jobs import JobFolder, all_jobs, spawn, standing
from bc250studio.pipeline import queue

UNIT = "bc250studio-resume.service"
MOST_TRIES = 3


def unit_file() -> Path:
    """Where systemd looks for a user's own units."""
    import os

    root = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(root) / "systemd" / "user" / UNIT


def unit_text() -> str:
    """The unit: once after boot, as this user, with this Python."""
    return f"""[Unit]
Description=Go on with bc250studio runs that a reboot interrupted

[Service]
Type=oneshot
RemainAfterExit=yes
KillMode=none
Environment=PYTHONPATH={spawn.package_root()}
ExecStart={sys.executable} -m bc250studio.pipeline.on_boot

[Install]
WantedBy=default.target
"""


def enable() -> list[str]:
    """Write and enable the unit; returns what the user must still do, as sentences.

    Raises:
        JobFailed: systemd refuses the unit.
    """
    file = unit_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    paths.write_atomic(file, unit_text(), mode=0o644)
    remarks = []
    if shutil.which("systemctl") is None:
        return [f"This machine has no systemd; {file} was written but nothing will start it."]
    done = subprocess.run(["systemctl", "--user", "enable", UNIT], capture_output=True, text=True)
    if done.returncode != 0:
        raise JobFailed(f"systemd did not enable {file}: {clean(done.stderr, 200).strip() or done.returncode}.")
    if not lingers():
        remarks.append(
            "Without linger nothing of yours starts before you log in; "
            f"run: sudo loginctl enable-linger {getpass.getuser()}"
        )
    return remarks


def disable() -> None:
    """Take the unit back."""
    if shutil.which("systemctl"):
        subprocess.run(["systemctl", "--user", "disable", UNIT], capture_output=True)
    unit_file().unlink(missing_ok=True)


def lingers() -> bool:
    """Whether this user's services run without a login."""
    return (Path("/var/lib/systemd/linger") / getpass.getuser()).exists()


def interrupted() -> list[JobFolder]:
    """Runs that a reboot took down, oldest first."""
    found = [job for job in all_jobs() if standing(job).verdict == "machine restarted"]
    return [job for job in reversed(found) if job.state().get("kind") in ("train", None)]


def resume_all() -> int:
    """Resume each interrupted run that has tries left; the exit code counts failures."""
    failed = 0
    for job in interrupted():
        tries = int(job.state().get("boot_tries") or 0)
        if tries >= MOST_TRIES:
            job.event("warning", f"Not resumed after this reboot: {tries} tries have failed. Look before going on.")
            continue
        job.write_state(boot_tries=tries + 1, cool_start_c=queue.COOL_START_C)
        job.event("note", f"The machine restarted; going on by itself (try {tries + 1} of {MOST_TRIES}).")
        try:
            pipeline.go_on(job, job.state().get("stages") or pipeline.STAGES)
        except StudioError as error:
            job.event("error", f"Could not go on after the reboot: {clean(error)}")
            failed += 1
    if queue.waiting():
        queue.ensure_runner()  # it waits for the runs above
    return failed


if __name__ == "__main__":
    sys.exit(resume_all())
