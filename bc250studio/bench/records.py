"""Records of benches: one JSON file each in the user's data folder, listed and compared."""

from __future__ import annotations

import json
import platform
import re
import time
from pathlib import Path
from typing import Any

from bc250studio import __version__, paths
from bc250studio.errors import BadInput, clean, nearest

_NAME = re.compile(r"[^a-z0-9.]+")
SCHEMA = 1


def folder() -> Path:
    """Where records lie."""
    return paths.data_dir() / "benches"


def machine() -> dict[str, Any]:
    """What measured, as far as the standard library knows; recipes add the device."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "python": platform.python_version(),
        "bc250studio": __version__,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return clean(line.partition(":")[2].strip())
    except OSError:
        pass
    return platform.processor() or platform.machine()


def write(kind: str, label: str, record: dict[str, Any]) -> Path:
    """Store one record and return its path; the file's stem is the name ``compare`` takes."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    name = _NAME.sub("-", f"{kind}-{label}".lower()).strip("-")[:60]
    target = paths.private_dir(folder()) / f"{stamp}-{name}.json"
    number = 1
    while target.exists():
        number += 1
        target = folder() / f"{stamp}-{name}-{number}.json"
    whole = {"schema": SCHEMA, "kind": kind, "name": target.stem, "t": time.time(), "machine": machine(), **record}
    paths.write_atomic(target, json.dumps(whole, indent=1) + "\n")
    return target


def names() -> list[str]:
    """Every record, oldest first."""
    return sorted(path.stem for path in folder().glob("*.json")) if folder().is_dir() else []


def read(name: str) -> dict[str, Any]:
    """A record by its name, the unique start or end of it, or its path.

    Raises:
        BadInput: no such record, more than one, or a file that is no bench record.
    """
    path = Path(name).expanduser()
    if not (path.suffix == ".json" and path.is_file()):
        known = names()
        exact = [stem for stem in known if stem == name]
        found = exact or [stem for stem in known if stem.startswith(name) or stem.endswith(name)]
        if not found:
            hint = nearest(name, known) or " `bc250studio bench list` shows them."
            raise BadInput(f"There is no bench record {clean(name)!r} in {folder()}.{hint}")
        if len(found) > 1:
            raise BadInput(
                f"{clean(name)!r} fits {len(found)} bench records ({', '.join(found[:4])}); give more of its name."
            )
        path = folder() / f"{found[0]}.json"
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"The bench record {path} cannot be read ({clean(error, 120)}); choose another.") from error
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str) or record.get("schema") != SCHEMA:
        raise BadInput(f"{path} is not a bench record of this version; choose a file that `bench` wrote.")
    return record


def _numbers(value: Any, prefix: str = "") -> dict[str, float]:
    """Every number of a record's ``results`` by its dotted place."""
    found: dict[str, float] = {}
    if isinstance(value, dict):
        for key, inner in value.items():
            found.update(_numbers(inner, f"{prefix}.{key}" if prefix else str(key)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            label = inner.get("name", index) if isinstance(inner, dict) else index
            found.update(_numbers(inner, f"{prefix}.{label}"))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        found[prefix] = float(value)
    return found


def compare(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two records side by side: every number both have, and what differs in how they were measured.

    Raises:
        BadInput: the records are of different kinds.
    """
    if first["kind"] != second["kind"]:
        raise BadInput(
            f"{first.get('name')} is a {clean(first['kind'])} bench and {second.get('name')} a {clean(second['kind'])} "
            "bench; compare two of one kind."
        )
    here, there = _numbers(first.get("results", {})), _numbers(second.get("results", {}))
    rows = [
        {
            "what": clean(key),
            "a": here[key],
            "b": there[key],
            "b_over_a": round(there[key] / here[key], 4) if here[key] else None,
        }
        for key in here
        if key in there
    ]
    regime_a, regime_b = first.get("regime", {}), second.get("regime", {})
    differs = {
        clean(key): {"a": regime_a.get(key), "b": regime_b.get(key)}
        for key in sorted({*regime_a, *regime_b})
        if regime_a.get(key) != regime_b.get(key)
    }
    return {
        "kind": first["kind"],
        "a": first.get("name"),
        "b": second.get("name"),
        "regime_differs": differs,
        "rows": rows,
    }
