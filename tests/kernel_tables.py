"""Writes small rocBLAS kernel libraries in the documented msgpack form (Tensile 4.44, lazy tables), for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack

from bc250studio.kernels.selection import OPERATIONS, TYPES

TRUE = {"type": "TruePred"}


def of_types(dtype: str, layout: str) -> dict[str, Any]:
    """The predicate of a table: types, accumulation and operation."""
    return {
        "type": "And",
        "value": [
            {"type": "OperationIdentifierEqual", "value": OPERATIONS[layout]},
            {"type": "StridedBatched", "value": True},
            {"type": "TypesEqual", "value": [TYPES[dtype]] * 4},
            {"type": "HighPrecisionAccumulate", "value": dtype != "fp32"},
        ],
    }


def solution(index: int, name: str, dtype: str, layout: str, extra: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """One kernel of a table."""
    predicate = of_types(dtype, layout)
    predicate["value"] = [*predicate["value"], *extra]
    return {
        "index": index,
        "name": name,
        "problemPredicate": predicate,
        "hardwarePredicate": TRUE,
        "sizeMapping": {"workGroup": [16, 16, 1], "depthU": 16},
    }


def write_table(
    file: Path,
    dtype: str,
    layout: str,
    rows: Mapping[tuple[int, ...], int],
    names: Sequence[str],
    distance: str = "Euclidean",
    conditions: Mapping[int, Sequence[Mapping[str, Any]]] | None = None,
) -> None:
    """One ``.dat`` of one type and layout: (M, N, K) -> kernel number (Equality: M, N, B, K)."""
    properties = [{"type": "FreeSizeA", "index": 0}, {"type": "FreeSizeB", "index": 0}]
    properties += [{"type": "BatchSize", "index": 0}] if distance == "Equality" else []
    properties.append({"type": "BoundSize", "index": 0})
    table = [{"key": list(key), "index": 100 + number, "speed": 1000.0} for key, number in sorted(rows.items())]
    match = {"type": "Matching", "properties": properties, "table": table, "distance": distance}
    predicate = {"type": "EqualityMatching"} if distance == "Equality" else TRUE
    file.write_bytes(
        msgpack.packb(
            {
                "solutions": [
                    solution(100 + i, name, dtype, layout, (conditions or {}).get(i, ()))
                    for i, name in enumerate(names)
                ],
                "library": {"type": "Problem", "rows": [{"predicate": predicate, "library": match}]},
            }
        )
    )


def write_library(
    folder: Path,
    tuned: Mapping[tuple[str, str], Mapping[tuple[int, ...], int]],
    *,
    fallback: bool = True,
    tag: bool = False,
    distance: str | Mapping[tuple[str, str], str] = "Euclidean",
    names: Sequence[str] | Mapping[tuple[str, str], Sequence[str]] = (
        "tuned_MT128x64",
        "tuned_MT64x64",
        "tuned_MT16x16",
    ),
    conditions: Mapping[int, Sequence[Mapping[str, Any]]] | None = None,
    arch: str = "gfx1013",
) -> Path:
    """A lazy library folder: tuned tables of ``tuned`` (type, layout) and fallback tables for everything."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for level, classes in (("tuned", list(tuned)), ("fallback", [(t, o) for t in TYPES for o in ("NN", "NT", "TN")])):
        if level == "fallback" and not fallback:
            continue
        mapping: dict[str, Any] = {}
        for dtype, layout in classes:
            suffix = arch if level == "tuned" else "fallback"
            tagged = "_CUEfficiency" if tag and level == "tuned" else ""
            prefix = f"TensileLibrary_Type_{dtype}{tagged}_{OPERATIONS[layout]}_{suffix}"
            if level == "tuned":
                label = (dtype, layout)
                own = names[label] if isinstance(names, Mapping) else names
                how = distance[label] if isinstance(distance, Mapping) else distance
                write_table(folder / f"{prefix}.dat", dtype, layout, tuned[label], own, how, conditions)
                (folder / f"{prefix}.co").write_bytes(b"code object")
            else:
                write_table(folder / f"{prefix}.dat", dtype, layout, {(64, 64, 64): 0}, ["fallback_MT64x1"])
            metric = {"type": "CUEfficiency"} if tag and level == "tuned" else TRUE
            placeholder = {"type": "Placeholder", "value": prefix}
            inner = {"type": "Problem", "rows": [{"predicate": of_types(dtype, layout), "library": placeholder}]}
            entry = mapping.setdefault(
                OPERATIONS[layout],
                {"type": "Problem", "rows": [{"predicate": metric, "library": {"type": "Problem", "rows": []}}]},
            )
            entry["rows"][0]["library"]["rows"] += inner["rows"]
        predicate = {"type": "AMDGPU", "value": {"type": "Processor", "value": arch}} if level == "tuned" else TRUE
        library = {"type": "ProblemMap", "property": {"type": "OperationIdentifier"}, "map": mapping}
        rows.append({"predicate": predicate, "library": library})
    root = {"solutions": [], "library": {"type": "Hardware", "rows": rows}}
    (folder / f"TensileLibrary_lazy_{arch}.dat").write_bytes(msgpack.packb(root))
    return folder
