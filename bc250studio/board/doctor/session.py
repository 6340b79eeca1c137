"""Checks of the login: does a run outlive it, can the terminal show the app, does a run hang in the kernel?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bc250studio.board.doctor.check import Check, Lines
from bc250studio.board.doctor.machine import Machine
from bc250studio.jobs.identity import process_state

GROUP = "Session"
say = Lines(GROUP)


def checks(machine: Machine) -> Iterator[Check]:
    """Logout, terminal, hung runs."""
    yield logout(machine)
    yield colours(machine)
    yield stuck(machine)


def kills_at_logout(machine: Machine) -> bool:
    """logind's KillUserProcesses after all drop-ins; the last one counts."""
    files = ["/etc/systemd/logind.conf"]
    for folder in ("/usr/lib/systemd/logind.conf.d", "/run/systemd/logind.conf.d", "/etc/systemd/logind.conf.d"):
        files += [f"{folder}/{name}" for name in machine.tree.names(folder) if name.endswith(".conf")]
    kills = False
    for file in files:
        for line in (machine.tree.text(file) or "").splitlines():
            match = re.match(r"\s*KillUserProcesses\s*=\s*(\S+)", line)
            if match:
                kills = match[1].lower() in ("yes", "true", "1", "on")
    return kills


def logout(machine: Machine) -> Check:
    """systemd can end everything of a login at logout; a run must outlive it."""
    if not machine.tree.exists("/run/systemd/system") and machine.tree.is_machine:
        return say.ok("logout", "no systemd here that ends processes at logout: runs outlive the login")
    lingers = machine.tree.exists(f"/var/lib/systemd/linger/{machine.login.user}")
    if lingers:
        return say.ok("logout", "lingering is on: runs outlive the login")
    if kills_at_logout(machine):
        return say.fail(
            "logout",
            "KillUserProcesses=yes: a run would be killed when you log out",
            f"sudo loginctl enable-linger {machine.login.user}",
        )
    return say.ok("logout", "KillUserProcesses is off: runs outlive the login")


def colours(machine: Machine) -> Check:
    """What the app needs of a terminal."""
    variables = machine.login.variables
    if not machine.login.terminal:
        return say.skip("terminal", "no terminal here (output is redirected)")
    term = variables.get("TERM", "")
    locale = next((variables[n] for n in ("LC_ALL", "LC_CTYPE", "LANG") if variables.get(n)), "")
    if term in ("", "dumb"):
        return say.warn(
            "terminal",
            f"TERM={term or '(empty)'}: the app needs a terminal",
            "export TERM=xterm-256color",
        )
    if "utf" not in locale.lower():
        return say.warn(
            "terminal",
            f"the locale {locale or '(none)'} is not UTF-8: graphs fall to plain ASCII",
            "export LANG=C.UTF-8",
        )
    true = variables.get("COLORTERM", "").lower() in ("truecolor", "24bit")
    if not true and "256" not in term:
        return say.warn(
            "terminal",
            f"TERM={term} promises 16 colours at most",
            "export TERM=xterm-256color, if your terminal has them",
        )
    return say.ok("terminal", f"{'true colour' if true else '256 colours'}, UTF-8, {machine.login.columns} columns")


def stuck(machine: Machine) -> Check:
    """A process in D state waits in the driver; no signal reaches it."""
    for standing in machine.ask_jobs():
        worker = standing.state.get("worker") if isinstance(standing.state.get("worker"), dict) else None
        owner = standing.job.owner()
        pids = [p for p in (worker.get("pid") if worker else None, owner.pid if owner else None) if isinstance(p, int)]
        if standing.verdict == "stuck" or (standing.age_s > 60 and any(process_state(p) == "D" for p in pids)):
            return say.fail(
                "stuck",
                f"{standing.job.name} waits in the driver (D state) for {standing.age_s:.0f} s; no signal reaches it",
                "sudo reboot; its checkpoints are on disk, go on with: bc250studio resume " + standing.job.name,
            )
    return say.ok("stuck", "no run hangs in the kernel")
