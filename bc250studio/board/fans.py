"""Fans: read them, and on request drive writable ones to full speed with a record that outlives a crash.

The record is written before the first change, so whoever comes next (the guard after a kill -9, the
next guard after a lost one, ``doctor``) can put everything back. Which chip can write: the out-of-tree
nct6687 driver, or amdgpu's own pwm on cards that have one; the kernel's nct6683 only reads.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from bc250studio import paths
from bc250studio.board.reading import Reading, missing
from bc250studio.board.sysfs import Tree, hwmon_named
from bc250studio.errors import JobFailed

CHIPS = ("nct66", "nct67", "it87", "amdgpu")
_MANUAL = 1
_FULL = 255


@dataclass(frozen=True)
class Pwm:
    """One writable fan output. ``chip`` and ``channel`` find it again when the hwmon numbers have moved."""

    chip: str
    channel: int
    value: int
    enable: int | None


def read(tree: Tree) -> dict[str, Reading]:
    """``fan_rpm`` of the fastest fan, and ``fan_pwm_percent`` of its output where there is one."""
    best: Reading | None = None
    percent: Reading | None = None
    seen = False
    for folder in hwmon_named(tree, *CHIPS):
        for channel in _channels(tree, folder, "fan", "_input"):
            seen = True
            rpm = tree.number(f"{folder}/fan{channel}_input")
            if rpm is None or not 0 <= rpm < 30000 or (best is not None and rpm <= (best.value or 0)):
                continue
            label = tree.text(f"{folder}/fan{channel}_label") or f"fan{channel}"
            best = Reading(rpm, "rpm", f"{tree.text(f'{folder}/name')} {label}"[:40])
            pwm = tree.number(f"{folder}/pwm{channel}")
            percent = Reading(pwm / _FULL * 100, "%", f"pwm{channel}") if pwm is not None and 0 <= pwm <= 255 else None
    if best is None:
        return {"fan_rpm": missing("rpm", "no fan turns with a readable speed" if seen else "no fan sensor")}
    return {"fan_rpm": best, **({"fan_pwm_percent": percent} if percent else {})}


def _channels(tree: Tree, folder: str, before: str, after: str) -> list[int]:
    found = []
    for entry in tree.names(folder):
        middle = entry[len(before) : len(entry) - len(after) if after else None]
        if (
            entry.startswith(before)
            and entry.endswith(after)
            and middle.isascii()
            and middle.isdigit()
            and len(middle) < 4
        ):
            found.append(int(middle))
    return sorted(found)


def writable(tree: Tree) -> list[Pwm]:
    """Outputs this user may drive, whose fan turns; with the values to put back."""
    found = []
    for folder in hwmon_named(tree, *CHIPS):
        chip = tree.text(f"{folder}/name") or ""
        for channel in _channels(tree, folder, "pwm", ""):
            value = tree.number(f"{folder}/pwm{channel}")
            turns = tree.number(f"{folder}/fan{channel}_input")
            if value is None or not 0 <= value <= 255 or not turns:
                continue
            if tree.writable(f"{folder}/pwm{channel}") and tree.writable(f"{folder}/pwm{channel}_enable"):
                found.append(Pwm(chip, channel, value, tree.number(f"{folder}/pwm{channel}_enable")))
    return found


def full(tree: Tree, record: Path) -> list[Pwm]:
    """Drive every writable fan to full speed; ``record`` says what to put back.

    Raises:
        JobFailed: nothing is writable; names the reason a user can act on.
    """
    outputs = writable(tree)
    if not outputs:
        raise JobFailed(
            "The fans stay as they are: no writable fan output was found (needs the nct6687 driver and write access "
            "to its pwm files)."
        )
    paths.write_atomic(record, json.dumps([asdict(output) for output in outputs]))
    for output in outputs:
        _write(tree, output, enable=_MANUAL, value=_FULL)
    return outputs


def restore(tree: Tree, record: Path) -> list[Pwm]:
    """Put back what ``record`` says and remove it. Without a record nothing happens.

    A fan that cannot be found any more (its driver was unloaded) keeps the record for the next try.
    """
    try:
        entries = json.loads(record.read_text("utf-8"))
        outputs = [Pwm(str(e["chip"]), int(e["channel"]), int(e["value"]), e["enable"]) for e in entries]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError):
        record.unlink(missing_ok=True)
        return []
    done = [output for output in outputs if _write(tree, output, enable=output.enable, value=output.value)]
    if len(done) == len(outputs):
        record.unlink(missing_ok=True)
    return done


def _write(tree: Tree, output: Pwm, enable: int | None, value: int) -> bool:
    """Value needs manual mode first; an automatic mode goes last, so that it ends up in charge."""
    for folder in hwmon_named(tree, output.chip):
        base = f"{folder}/pwm{output.channel}"
        if not tree.exists(base):
            continue
        written = _put(tree, f"{base}_enable", _MANUAL) and _put(tree, base, value)
        if enable not in (None, _MANUAL):
            written = _put(tree, f"{base}_enable", enable or 0) and written
        return written
    return False


def _put(tree: Tree, path: str, value: int) -> bool:
    try:
        descriptor = os.open(tree.at(path), os.O_WRONLY | os.O_CLOEXEC | os.O_TRUNC)
    except OSError:
        return False
    try:
        os.write(descriptor, f"{value}\n".encode())
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
