"""``doctor``: is this machine fit, and what would fix it. Exit code 0 when nothing fails, 1 otherwise."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bc250studio.cli.common import Bar, emit, narrate
from bc250studio.jobs.progress import silent

if TYPE_CHECKING:
    from bc250studio.board.doctor import Check, Machine
    from bc250studio.board.doctor.machine import ServerFacts
    from bc250studio.board.presets import Chip

GLYPH = {"pass": "✓", "warn": "!", "fail": "✗", "skip": "-"}
_PLAIN = {"pass": "+", "warn": "!", "fail": "x", "skip": "-"}
_COLOUR = {"pass": "32", "warn": "33", "fail": "31", "skip": "2"}


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``doctor``."""
    parser.add_argument("--quick", action="store_true", help="leave out what starts torch (a second instead of ten)")
    parser.add_argument("--clock", action="store_true", help="also measure the shader clock (builds a small kernel)")
    parser.add_argument(
        "--share", action="store_true", help="one JSON for the numbers we cannot measure: no names or paths"
    )
    parser.add_argument("--put-back", action="store_true", help="restore fans and clock that a killed run left changed")
    parser.add_argument("--all", action="store_true", help="also show each line that does not apply here")
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace) -> int:
    """Look, print, and say with the exit code whether something fails."""
    from bc250studio.board.doctor import count, examine

    if options.put_back:
        return _put_back(options.json)
    machine = this_machine(quick=options.quick, clock=options.clock)
    bar = Bar()
    checks = examine(machine, bar if sys.stderr.isatty() else silent)
    bar.close()
    counts = count(checks)
    if options.share:
        from bc250studio.board.doctor import share

        narrate("This is everything that would be sent; read it before you do. Nothing was sent.")
        emit(share.document(machine, checks, _bench_records()), True)
    else:
        data = {"chip": machine.chip.title, "counts": counts, "checks": [check.as_dict() for check in checks]}
        emit(data, options.json, page(checks, counts, options.all))
    return 1 if counts["fail"] else 0


def this_machine(quick: bool = False, clock: bool = False) -> Machine:
    """The machine with everything the upper layers know about it."""
    from bc250studio.board import presets
    from bc250studio.board.doctor import Machine, probes

    machine = Machine(ask_server=_server, quick=quick)
    machine.library, machine.library_why = _library(machine.chip)
    if clock:
        machine.ask_clock = lambda: probes.shader_clock(presets.detect(), machine.python)
    return machine


def _server() -> ServerFacts:
    from bc250studio import settings
    from bc250studio.board.doctor.machine import ServerFacts
    from bc250studio.errors import StudioError
    from bc250studio.serve.binary import find_binary

    try:
        found = find_binary(settings.load())
    except StudioError as error:
        return ServerFacts(error=str(error))
    devices = tuple(f"{device.name}: {device.description}" for device in found.devices)
    return ServerFacts(str(found.path), found.version, devices)


def _library(chip: Chip) -> tuple[str | None, str]:
    """The tuned folder a run would use, and why this one or none."""
    from bc250studio.errors import StudioError
    from bc250studio.kernels.switch import decide
    from bc250studio.profiles import Profile

    try:
        decision = decide(Profile(), chip)
    except StudioError as error:
        return None, str(error)
    return (str(decision.library) if decision.library else None), decision.why


def _bench_records() -> list[dict[str, Any]]:
    from bc250studio.bench import records
    from bc250studio.errors import StudioError

    found = []
    for name in records.names():
        try:
            found.append(records.read(str(records.folder() / f"{name}.json")))
        except StudioError:
            continue
    return found


def _put_back(as_json: bool) -> int:
    from bc250studio.board import guard
    from bc250studio.board.sysfs import Tree

    names = guard.put_back_leftovers(Tree())
    left = [job.name for job in guard.leftovers()]
    text = f"Put back what {', '.join(names)} had changed." if names else "Nothing was left changed."
    if left:
        text += (
            f" Not possible for {', '.join(left)}: needs write access to the fan chip (sudo) and a running governor."
        )
    emit({"put_back": names, "left": left}, as_json, text)
    return 1 if left else 0


def page(checks: Sequence[Check], counts: dict[str, int], everything: bool = False) -> str:
    """The answer for a terminal, wrapped to its width."""
    width = min(max(shutil.get_terminal_size((80, 24)).columns, 40), 100)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    plain = "utf" not in (sys.stdout.encoding or "").lower()
    lines: list[str] = []
    group = ""
    for check, names in _folded(checks, everything):
        if check.group != group:
            group = check.group
            lines += ["", group]
        glyph = (_PLAIN if plain else GLYPH)[check.verdict]
        head = f"{glyph} {check.verdict}"
        shown = f"\033[{_COLOUR[check.verdict]}m{head}\033[0m" if colour else head
        body = f"{names}: {check.why}"
        wrapped = _wrap(body, width, 9)
        lines.append(f"  {shown} {wrapped[0]}")
        lines += wrapped[1:]
        if check.fix:
            fix = _wrap(f"{'>' if plain else '→'} {check.fix}", width, 11)
            lines += [" " * 9 + fix[0], *fix[1:]]
    words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ("pass", "warn", "fail", "skip") if counts[verdict])
    failed = [check.name for check in checks if check.verdict == "fail"]
    lines += ["", words, *(_wrap(f"fix first: {', '.join(failed)}", width, 0) if failed else [])]
    return "\n".join(lines).lstrip("\n")


def _wrap(text: str, width: int, indent: int) -> list[str]:
    """Lines of at most ``width`` columns, the first without its indent; long paths are left whole."""
    lines = textwrap.wrap(text, width - indent, break_long_words=False, break_on_hyphens=False) or [""]
    return [lines[0], *(" " * indent + line for line in lines[1:])]


def _folded(checks: Sequence[Check], everything: bool) -> list[tuple[Check, str]]:
    """Neighbours that are skipped for the same reason become one line."""
    folded: list[tuple[Check, str]] = []
    for check in checks:
        last = folded[-1] if folded else None
        if (
            not everything
            and last is not None
            and check.verdict == "skip" == last[0].verdict
            and (check.group, check.why) == (last[0].group, last[0].why)
        ):
            folded[-1] = (last[0], f"{last[1]}, {check.name}")
        else:
            folded.append((check, check.name))
    return folded
