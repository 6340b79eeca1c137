"""The board's clock governor: which one runs, its throttle temperature and lowest voltage, and a cap for one run.

Two families exist: cyan-skillfish (TOML, https://github.com/filippor/cyan-skillfish-governor) and oberon
(YAML). Their files come in several spellings, so they are read tolerantly: what cannot be found is None.
The cap goes through the governor's D-Bus interface, only when a profile asks for it, and is put back.
"""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bc250studio import paths
from bc250studio.board.sysfs import Tree
from bc250studio.errors import JobFailed, clean

SERVICES = ("cyan-skillfish-governor-smu", "cyan-skillfish-governor-tt", "cyan-skillfish-governor", "oberon-governor")
_FILES = (
    ("cyan-skillfish-governor-smu", "/etc/cyan-skillfish-governor-smu/config.toml"),
    ("cyan-skillfish-governor-tt", "/etc/cyan-skillfish-governor-tt/config.toml"),
    ("cyan-skillfish-governor", "/etc/cyan-skillfish-governor/config.toml"),
    ("oberon-governor", "/etc/oberon-config.yaml"),
)
_BUS = "com.cyanskillfish.Governor"
_OBJECT = "/com/cyanskillfish/Governor"
_INTERFACE = f"{_BUS}.PerformanceMode"


@dataclass(frozen=True)
class Governor:
    """One governor's configuration. ``throttle_c`` None: the file sets none; ``readable`` False: not understood."""

    name: str
    file: str
    throttle_c: float | None
    recovery_c: float | None
    lowest_voltage_mv: int | None
    top_clock_mhz: int | None
    dbus: bool
    readable: bool = True


def configured(tree: Tree) -> list[Governor]:
    """Every governor that has a configuration file here."""
    found = []
    for name, file in _FILES:
        text = tree.text(file)
        if text is not None:
            found.append(_read_yaml(name, file, text) if file.endswith(".yaml") else _read_toml(name, file, text))
    return found


def running(tree: Tree) -> list[str]:
    """Governor processes by name, from /proc/PID/comm (15 characters) and the command line."""
    found = set()
    for pid in tree.names("/proc"):
        if not pid.isdigit():
            continue
        arguments = (tree.text(f"/proc/{pid}/cmdline") or "").split("\0")
        program = arguments[0].rpartition("/")[2]
        if program in SERVICES:
            found.add(program)
    return sorted(found)


def throttle(tree: Tree) -> tuple[float, str] | None:
    """The governor's throttle temperature and the file it stands in; the running governor's file wins."""
    active = running(tree)
    files = [g for g in configured(tree) if g.throttle_c is not None]
    files.sort(key=lambda g: g.name not in active)
    if not files or files[0].throttle_c is None:
        return None
    return files[0].throttle_c, files[0].file


def _plain(key: str) -> str:
    return key.lower().replace("_", "-")


def _walk(table: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """Every number in nested tables with its path, spelt one way."""
    if isinstance(table, dict):
        for key, value in table.items():
            yield from _walk(value, (*path, _plain(str(key))))
    elif isinstance(table, list):
        for item in table:
            yield from _walk(item, path)
    elif isinstance(table, (int, float)) and not isinstance(table, bool) and abs(table) < 1e9:
        yield path, float(table)


def _first(numbers: Sequence[tuple[tuple[str, ...], float]], low: float, high: float, *names: str) -> float | None:
    for path, value in numbers:
        if path and path[-1] in names and low <= value <= high:
            return value
    return None


def _read_toml(name: str, file: str, text: str) -> Governor:
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return Governor(name, file, None, None, None, None, False, readable=False)
    numbers = list(_walk(table))
    voltages = [v for p, v in numbers if p and p[-1] in ("voltage", "voltage-mv") and 300 <= v <= 1500]
    clocks = [v for p, v in numbers if p and p[-1] in ("frequency", "frequency-mhz") and 100 <= v <= 4000]
    top = _first([(p, v) for p, v in numbers if "frequency-range" in p], 100, 4000, "max")
    bus = table.get("dbus")
    throttle_c = _first(numbers, 1, 110, "throttling", "throttling-temp", "throttling-temperature")
    # The governor throttles at 85 °C when the key is missing (its README, "temperature").
    return Governor(
        name,
        file,
        throttle_c if throttle_c is not None else 85.0,
        _first(numbers, 1, 110, "throttling-recovery", "recovery", "throttling-recovery-temp"),
        int(min(voltages)) if voltages else None,
        int(top or max(clocks, default=0)) or None,
        isinstance(bus, dict) and bus.get("enabled") is True,
    )


def _read_yaml(name: str, file: str, text: str) -> Governor:
    """oberon's file is two or three levels of ``key: number``; a YAML library would be a dependency for that."""
    numbers: list[tuple[tuple[str, ...], float]] = []
    stack: list[tuple[int, str]] = []
    for line in text.splitlines()[:2000]:
        match = re.match(r"^(\s*)(?:- +)*([A-Za-z_][\w-]*)\s*:\s*(-?\d+(?:\.\d+)?)?\s*(?:#.*)?$", line)
        if not match:
            continue
        indent = len(match[1]) + line[len(match[1]) :].find(match[2])
        while stack and stack[-1][0] >= indent:
            stack.pop()
        stack.append((indent, _plain(match[2])))
        if match[3] is not None:
            numbers.append((tuple(key for _, key in stack), float(match[3])))
    volts = [(p, v) for p, v in numbers if any("voltage" in key for key in p)]
    clocks = [(p, v) for p, v in numbers if any("frequency" in key for key in p)]
    low, top = _first(volts, 300, 1500, "min"), _first(clocks, 100, 4000, "max")
    return Governor(
        name,
        file,
        _first(numbers, 1, 115, "gfx-temp-soft-lim", "gfx-temp-hard-lim", "throttling"),
        None,
        int(low) if low is not None else None,
        int(top) if top is not None else None,
        False,
        readable=bool(numbers),
    )


Bus = Callable[[Sequence[str]], str]
"""Runs busctl with these arguments and returns its output; raises JobFailed with its last line."""


def busctl(arguments: Sequence[str]) -> str:
    """The real one."""
    command = ["busctl", "--system", "--timeout=2", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=4, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JobFailed(f"The governor cannot be asked over D-Bus: {error}.") from error
    if done.returncode:
        last = (clean(done.stderr).strip().splitlines() or ["no answer"])[-1]
        raise JobFailed(f"The governor refuses over D-Bus: {last}")
    return done.stdout


def has_performance_interface(bus: Bus = busctl) -> bool:
    """Whether a governor answers on the bus."""
    try:
        return _INTERFACE in bus(["introspect", _BUS, _OBJECT])
    except JobFailed:
        return False


def cap(top_clock_mhz: int, record: Path, bus: Bus = busctl) -> tuple[int, int]:
    """Lower the top clock for a run; the range before goes to ``record`` first and is returned (MHz).

    Raises:
        JobFailed: no governor with this interface answers.
    """
    low, high = _range(bus)
    paths.write_atomic(record, json.dumps({"min": low, "max": high}))
    _set_range(low, top_clock_mhz, bus)
    return low, high


def uncap(record: Path, bus: Bus = busctl) -> bool:
    """Put the range back; False when there is nothing to put back or the governor does not answer."""
    try:
        before = json.loads(record.read_text("utf-8"))
        low, high = int(before["min"]), int(before["max"])
    except FileNotFoundError:
        return False
    except (OSError, ValueError, TypeError, KeyError):
        record.unlink(missing_ok=True)
        return False
    try:
        _set_range(low, high, bus)
    except JobFailed:
        return False
    record.unlink(missing_ok=True)
    return True


def _range(bus: Bus) -> tuple[int, int]:
    """Newer governors have range objects, older ones two properties."""
    bounds = []
    for bound in ("min", "max"):
        try:
            answer = bus(["get-property", _BUS, f"{_OBJECT}/Range/Current", f"{_BUS}.Range", bound])
        except JobFailed:
            answer = bus(["get-property", _BUS, _OBJECT, _INTERFACE, f"CurrentRange{bound.capitalize()}"])
        words = answer.split()
        if len(words) != 2 or not words[1].isdigit():
            raise JobFailed(f"The governor's answer about its clock range is not a number: {clean(answer, 60)!r}.")
        bounds.append(int(words[1]))
    return bounds[0], bounds[1]


def _set_range(low: int, high: int, bus: Bus) -> None:
    try:
        bus(["call", _BUS, _OBJECT, _INTERFACE, "SetRange", "uu", str(low), str(high)])
    except JobFailed:
        bus(["set-property", _BUS, _OBJECT, _INTERFACE, "CurrentRangeMax", "u", str(high)])
