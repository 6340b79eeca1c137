"""Changes to the selection tables of a library of ours: take the CUEfficiency tag off, drop classes without gain.

Only copies in our own folder are ever edited. A table is plain msgpack; nothing but the named predicates and rows
is touched.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgpack

from bc250studio import paths
from bc250studio.kernels.selection import read_dat, says, solutions_of

TAG = "CUEfficiency"


def strip_tag(folder: Path) -> int:
    """Make every table tagged CUEfficiency one for normal use; returns how many predicates changed.

    rocBLAS asks for plain speed, so a library tuned with that metric is never used while the tag is there.
    """
    changed = 0
    for file in sorted(folder.rglob("*.dat")):
        table = read_dat(file)
        count = _strip(table["library"])
        if count:
            paths.write_atomic(file, msgpack.packb(table, use_bin_type=True))
            changed += count
    return changed


def tagged(folder: Path) -> bool:
    """Whether a file name or a predicate carries the tag."""
    if any(f"_{TAG}_" in file.name for file in folder.rglob("*")):
        return True
    return any(_has(read_dat(file)["library"]) for file in folder.rglob("*.dat"))


def drop_classes(folder: Path, root: Path, classes: Collection[tuple[str, str]]) -> list[tuple[str, str]]:
    """Take the tuned tables of these (type, layout) classes out of the root, so that they meet the fallback again.

    Returns the classes found and dropped. Their files stay; nothing refers to them any more.
    """
    table = read_dat(root)
    dropped: list[tuple[str, str]] = []

    def prune(node: Any, depth: int = 0) -> Any:
        if not isinstance(node, dict) or depth > 64:
            return node
        if isinstance(node.get("map"), dict):
            node["map"] = {key: prune(value, depth + 1) for key, value in node["map"].items()}
        if isinstance(node.get("rows"), list):
            kept = []
            for row in node["rows"]:
                if isinstance(row, dict):
                    kind = _class_of(folder, row.get("library"), table)
                    if kind is not None and kind in classes:
                        dropped.append(kind)
                        continue
                    row["library"] = prune(row.get("library"), depth + 1)
                kept.append(row)
            node["rows"] = kept
        return node

    library = table["library"]
    for row in _list(library.get("rows")):
        # Only below a chip's own row; the fallback's rows hang under TruePred and must stay whole.
        if (
            isinstance(row, dict)
            and isinstance(row.get("predicate"), dict)
            and row["predicate"].get("type") != "TruePred"
        ):
            row["library"] = prune(row.get("library"))
    if dropped:
        paths.write_atomic(root, msgpack.packb(table, use_bin_type=True))
    return dropped


def _class_of(folder: Path, node: Any, root: dict[str, Any]) -> tuple[str, str] | None:
    """(type, layout) of the table a node leads to directly: a placeholder's file, or a Matching over own solutions."""
    if not isinstance(node, dict):
        return None
    if node.get("type") == "Placeholder":
        file = folder / (Path(str(node.get("value", ""))).name + ".dat")
        if not file.is_file():
            return None
        first: dict[str, Any] = next(iter(solutions_of(read_dat(file)).values()), {})
    elif node.get("type") == "Matching":
        indices = [entry.get("index") for entry in _list(node.get("table")) if isinstance(entry, dict)]
        first = next((s for i, s in solutions_of(root).items() if i in indices), {})
    else:
        return None
    dtype, layout = says(first.get("problemPredicate"))
    return (dtype, layout) if dtype and layout else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _strip(node: Any, depth: int = 0) -> int:
    changed = 0
    if depth > 64:
        return 0
    if isinstance(node, dict):
        if isinstance(node.get("rows"), list):
            for row in node["rows"]:
                if (
                    isinstance(row, dict)
                    and isinstance(row.get("predicate"), dict)
                    and row["predicate"].get("type") == TAG
                ):
                    row["predicate"] = {"type": "TruePred"}
                    changed += 1
        changed += sum(_strip(value, depth + 1) for value in node.values())
    elif isinstance(node, list):
        changed += sum(_strip(value, depth + 1) for value in node)
    return changed


def _has(node: Any, depth: int = 0) -> bool:
    if depth > 64:
        return False
    if isinstance(node, dict):
        return node.get("type") == TAG or any(_has(value, depth + 1) for value in node.values())
    return isinstance(node, list) and any(_has(value, depth + 1) for value in node)
