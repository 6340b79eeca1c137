"""Tensile's logic files: the YAML lists that say which kernel serves which size. Read, checked, edited, written.

Items of the list (Tensile 4.44, LibraryIO.py): 0 version, 1 schedule name, 2 architecture, 3 device names,
4 problem type, 5 solutions, 6 index order, 7 table of [[M, N, B, K, ldd, ldc, lda, ldb], [solution, GFLOPS]],
8 range logic, 9 tile selection, 10 performance metric, 11 Fp16AltImpl, 12 distance, 13 Fp16AltImplRound.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bc250studio import paths
from bc250studio.errors import BadInput, clean
from bc250studio.kernels.products import Product

LARGEST_LOGIC = 256 * 2**20
METRIC, DISTANCE, ITEMS = 10, 12, 14
_CODES = {0: "fp32", 4: "fp16", 7: "bf16"}
DISTANCES = ("Euclidean", "Equality")

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass
class Logic:
    """One logic file. ``items`` is the YAML list as Tensile wrote it; edits go there."""

    path: Path
    items: list[Any]

    @property
    def schedule(self) -> str:
        """Name the file goes by in Tensile; TensileCreateLibrary matches the *file's* name against the chip's."""
        return clean(self.items[1], 80)

    @property
    def architecture(self) -> str:
        """``gfx1013``, or ``fallback``."""
        found = self.items[2]
        return clean(found.get("Architecture", "") if isinstance(found, dict) else found, 40)

    @property
    def dtype(self) -> str | None:
        """Our name of the input type; None for types we do not tune."""
        kind = self.items[4]
        return _CODES.get(kind.get("DataType")) if isinstance(kind.get("DataType"), int) else None

    @property
    def layout(self) -> str:
        """NN, NT, TN or TT."""
        kind = self.items[4]
        return ("T" if kind.get("TransposeA") else "N") + ("T" if kind.get("TransposeB") else "N")

    @property
    def metric(self) -> str | None:
        """The performance tag: None or DeviceEfficiency for normal use, CUEfficiency for never."""
        return self.items[METRIC] if len(self.items) > METRIC else None

    @property
    def distance(self) -> str:
        """How sizes off the list find a row."""
        found = self.items[DISTANCE] if len(self.items) > DISTANCE else None
        return str(found or "Euclidean")

    @property
    def rows(self) -> list[tuple[tuple[int, int, int, int], int, float]]:
        """((M, N, B, K), solution, GFLOPS) of every tuned size."""
        return [((*(int(v) for v in row[0][:4]),), int(row[1][0]), float(row[1][1])) for row in self.items[7] or []]  # type: ignore[misc]

    @property
    def products(self) -> list[Product]:
        """Tuned sizes as products."""
        if self.dtype is None:
            return []
        return [Product(m, n, b, k, self.dtype, self.layout, "tuned") for (m, n, b, k), _, _ in self.rows]

    def set_metric(self, metric: str | None = None) -> bool:
        """Take the performance tag off; True when there was one that kept rocBLAS away."""
        before = self.metric
        if before in (None, "DeviceEfficiency"):
            return False
        self.items[METRIC] = metric
        return True

    def set_distance(self, distance: str) -> None:
        """``Euclidean`` (nearest tuned size serves all) or ``Equality`` (only exactly tuned sizes)."""
        if distance not in DISTANCES:
            raise ValueError(distance)
        self.items += [None] * (ITEMS - len(self.items))
        self.items[DISTANCE] = distance

    def write(self, path: Path) -> None:
        """Write the list as Tensile reads it."""
        body = yaml.dump(self.items, Dumper=_DUMPER, default_flow_style=None, sort_keys=False, width=1 << 20)
        paths.write_atomic(path, body, mode=0o644)


def read(path: Path) -> Logic:
    """One logic file.

    Raises:
        BadInput: unreadable, not YAML, or not a logic file; says what is wrong.
    """
    try:
        if path.stat().st_size > LARGEST_LOGIC:
            raise BadInput(f"{path} is larger than 256 MiB; it is no logic file.")
        items = yaml.load(path.read_bytes(), Loader=_LOADER)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise BadInput(
            f"{path} cannot be read as a logic file: {clean(str(error).splitlines()[0] if str(error) else error, 160)}."
        ) from error
    fault = _fault(items)
    if fault:
        raise BadInput(f"{path} is not a Tensile logic file: {fault}.")
    return Logic(path, items)


def read_folder(folder: Path) -> list[Logic]:
    """Every logic file below ``folder``; other YAML files are passed over.

    Raises:
        BadInput: there is none.
    """
    found = []
    faults: list[str] = []
    for file in sorted({*folder.rglob("*.yaml"), *folder.rglob("*.yml")}):
        try:
            found.append(read(file))
        except BadInput as error:
            faults.append(str(error))
    if not found:
        why = faults[0] if faults else "it holds no .yaml file."
        raise BadInput(f"{folder} holds no logic file: {why}")
    return found


def _fault(items: Any) -> str:
    if not isinstance(items, list) or len(items) < 9:
        return "it is not a list of at least 9 items"
    if not isinstance(items[0], dict) or "MinimumRequiredVersion" not in items[0]:
        return "item 0 has no MinimumRequiredVersion"
    if not isinstance(items[4], dict) or "DataType" not in items[4]:
        return "item 4 is not a problem type"
    if not isinstance(items[5], list):
        return "item 5 is not a list of solutions"
    for number, row in enumerate(items[7] or [] if isinstance(items[7], list | None) else [None]):
        good = isinstance(row, list) and len(row) == 2 and all(isinstance(part, list) for part in row)
        if not good or len(row[0]) < 4 or len(row[1]) < 2:
            return f"row {number} of its table is not [[M, N, B, K, ...], [solution, speed]]"
        if not all(isinstance(v, int) for v in row[0][:4]) or not isinstance(row[1][0], int):
            return f"row {number} of its table holds something else than numbers"
        if not isinstance(row[1][1], (int, float)) or not 0 <= row[1][0] < max(len(items[5]), 1):
            return f"row {number} of its table names solution {clean(row[1][0], 20)}, which is not there"
    return ""


def merge(first: Logic, second: Logic) -> Logic:
    """One logic file out of two of the same type and layout: for each size the faster kernel wins.

    Tensile's own lazy tables keep only one file per type and layout, so a second pass must be merged in.
    """
    assert (first.dtype, first.layout) == (second.dtype, second.layout)
    items = list(first.items)
    shift = len(first.items[5])
    items[5] = [*first.items[5], *second.items[5]]
    for index, solution in enumerate(items[5]):
        if isinstance(solution, dict) and "SolutionIndex" in solution:
            items[5][index] = {**solution, "SolutionIndex": index}
    rows: dict[tuple[int, ...], list[Any]] = {tuple(row[0]): row for row in first.items[7] or []}
    for row in second.items[7] or []:
        key = tuple(row[0])
        moved = [row[0], [row[1][0] + shift, *row[1][1:]]]
        if key not in rows or moved[1][1] > rows[key][1][1]:
            rows[key] = moved
    items[7] = list(rows.values())
    return Logic(first.path, items)
