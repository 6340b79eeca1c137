"""Reads rocBLAS's own selection tables (msgpack) and answers, without a GPU, which kernel a product will meet.

A library folder holds ``TensileLibrary*.dat``: a tree of hardware and problem predicates over tables of tuned
sizes. Where tables are loaded lazily, the tree ends in the name of another ``.dat``. Names are never assumed,
only followed or globbed: they change between releases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

from bc250studio.errors import BadInput, clean
from bc250studio.kernels.products import Product

OPERATIONS = {
    "NN": "Contraction_l_Ailk_Bljk_Cijk_Dijk",
    "NT": "Contraction_l_Ailk_Bjlk_Cijk_Dijk",
    "TN": "Contraction_l_Alik_Bljk_Cijk_Dijk",
    "TT": "Contraction_l_Alik_Bjlk_Cijk_Dijk",
}
TYPES = {"fp32": "Float", "fp16": "Half", "bf16": "BFloat16"}
LARGEST_DAT = 512 * 2**20
FAR = 0.25
"""A tuned row further away than this share of the product's own size is called far."""


@dataclass(frozen=True)
class Hit:
    """The kernel one product meets. ``kind``: ``tuned``, ``fallback`` or ``none`` (rocBLAS would abort).

    ``row``: the tuned size (M, N, K, or M, N, B, K) whose kernel is taken; ``distance``: sqrt of the summed
    squares of the differences, in elements; ``far``: the row is so far that its tuning says little.
    """

    product: Product
    kind: str
    kernel: str = ""
    file: str = ""
    row: tuple[int, ...] = ()
    method: str = ""
    distance: float = 0.0
    far: bool = False


@dataclass
class Library:
    """A library folder, its root table and the tables that were followed."""

    folder: Path
    root: Path
    architecture: str
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)

    def table(self, name: str) -> dict[str, Any]:
        """A parsed ``.dat`` of this folder.

        Raises:
            BadInput: missing, too large, or not msgpack.
        """
        if name not in self.tables:
            self.tables[name] = read_dat(self.folder / name)
        return self.tables[name]

    def hit(self, product: Product) -> Hit:
        """Which kernel ``product`` meets."""
        return _Walk(self, product).run()

    def sizes(self) -> list[Product]:
        """Every tuned size of every table that belongs to this chip, as products (for the proof)."""
        found: list[Product] = []
        for file in sorted(self.folder.glob("*.dat")):
            if "fallback" in file.name or "lazy" in file.name:
                continue
            if self.architecture not in file.name and file != self.root:
                continue
            table = self.table(file.name)
            first: dict[str, Any] = next(iter(solutions_of(table).values()), {})
            _sizes(table["library"], *says(first.get("problemPredicate")), found)
        return found


def open_library(folder: Path, architecture: str = "gfx1013") -> Library:
    """A library folder as rocBLAS would open it: its own subfolder first, then the lazy root, then the plain one.

    Raises:
        BadInput: there is no root table.
    """
    place = folder / architecture if (folder / architecture).is_dir() else folder
    for pattern in (
        f"TensileLibrary_lazy_{architecture}.dat",
        f"TensileLibrary_{architecture}.dat",
        "TensileLibrary.dat",
    ):
        if (place / pattern).is_file():
            return Library(place, place / pattern, architecture)
    others = sorted(p.name for p in place.glob("*.dat"))[:3] if place.is_dir() else []
    seen = f"it holds {', '.join(map(clean, others))} ..." if others else "it holds no .dat file"
    raise BadInput(
        f"{folder} is not a rocBLAS kernel library for {architecture}: {seen}; "
        f"give the folder with TensileLibrary_lazy_{architecture}.dat."
    )


def read_dat(file: Path) -> dict[str, Any]:
    """One parsed table: ``{"solutions": [...], "library": tree}``.

    Raises:
        BadInput: missing, too large, damaged, or something else.
    """
    try:
        if file.stat().st_size > LARGEST_DAT:
            raise BadInput(f"{file} is larger than 512 MiB; it is no selection table.")
        record = msgpack.unpackb(file.read_bytes(), strict_map_key=False, raw=False)
    except (OSError, ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise BadInput(
            f"{file} cannot be read as a selection table: {clean(error, 160) or type(error).__name__}."
        ) from error
    if not isinstance(record, dict) or not isinstance(record.get("library"), dict):
        raise BadInput(f"{file} is not a selection table: it has no 'library'.")
    return record


class _Walk:
    """One product's way through the tree."""

    def __init__(self, library: Library, product: Product) -> None:
        self.library, self.product = library, product
        self.file = library.root.name
        self.tuned = False
        self.depth = 0

    def run(self) -> Hit:
        root = self.library.table(self.file)
        return self._node(root["library"], solutions_of(root)) or Hit(self.product, "none")

    def _node(self, node: Any, solutions: Mapping[int, Any]) -> Hit | None:
        self.depth += 1
        try:
            if self.depth > 64 or not isinstance(node, dict):
                return None
            kind = node.get("type")
            if kind in ("Hardware", "Problem"):
                return self._rows(node, solutions, hardware=kind == "Hardware")
            if kind == "ProblemMap":
                table = node.get("map")
                return (
                    self._node(table.get(OPERATIONS[self.product.layout]), solutions)
                    if isinstance(table, dict)
                    else None
                )
            if kind == "Placeholder":
                return self._follow(str(node.get("value", "")))
            if kind == "Matching":
                return self._matching(node, solutions)
            if kind == "Single":
                return self._solution(node.get("index"), solutions, (), "Single", 0.0)
            self.library.unknown.add(f"a table of type {clean(kind, 40)}")
            return None
        finally:
            self.depth -= 1

    def _rows(self, node: dict[str, Any], solutions: Mapping[int, Any], hardware: bool) -> Hit | None:
        for row in _list(node.get("rows")):
            if not isinstance(row, dict) or not self._holds(row.get("predicate")):
                continue
            before = self.tuned
            if hardware:
                predicate = row["predicate"]
                self.tuned = isinstance(predicate, dict) and predicate.get("type") != "TruePred"
            found = self._node(row.get("library"), solutions)
            if found is not None:
                return found
            self.tuned = before
        return None

    def _follow(self, prefix: str) -> Hit | None:
        name = Path(prefix).name + ".dat"
        if not prefix or not (self.library.folder / name).is_file():
            self.library.unknown.add(f"a missing file {clean(name, 120)}")
            return None
        before, self.file = self.file, name
        table = self.library.table(name)
        found = self._node(table["library"], solutions_of(table))
        self.file = before if found is None else self.file
        return found

    def _matching(self, node: dict[str, Any], solutions: Mapping[int, Any]) -> Hit | None:
        method = str(node.get("distance", "Euclidean"))
        key = [_property(p, self.product) for p in _list(node.get("properties"))]
        if None in key:
            self.library.unknown.add("a table over other properties than sizes")
            return None
        sizes = [int(v) for v in key if v is not None]
        rows: list[tuple[float, float, tuple[int, ...], Any]] = []
        for entry in _list(node.get("table")):
            if not isinstance(entry, dict) or not _numbers(entry.get("key"), len(sizes)):
                continue
            row = tuple(entry["key"])
            away = _distance(method, sizes, row)
            if method == "Equality" and away:
                continue
            speed = entry.get("speed")
            rows.append((away, -float(speed) if isinstance(speed, (int, float)) else 0.0, row, entry.get("index")))
        for away, _, row, index in sorted(rows, key=lambda r: r[:3]):
            found = self._solution(index, solutions, row, method, away)
            if found is not None:
                return found
        return None

    def _solution(
        self, index: Any, solutions: Mapping[int, Any], row: tuple[int, ...], method: str, away: float
    ) -> Hit | None:
        solution = solutions.get(index) if isinstance(index, int) else None
        if not isinstance(solution, dict):
            return None
        if not self._holds(solution.get("problemPredicate", {"type": "TruePred"})):
            return None
        sizes = (self.product.m, self.product.n, self.product.k)
        own = math.sqrt(sum(size * size for size in sizes))
        return Hit(
            self.product,
            "tuned" if self.tuned else "fallback",
            clean(solution.get("name", ""), 400),
            self.file,
            row,
            method,
            away,
            away > FAR * own,
        )

    def _holds(self, predicate: Any) -> bool:
        if not isinstance(predicate, dict):
            return False
        p, name, value = self.product, predicate.get("type"), predicate.get("value")
        sizes = {0: p.m, 1: p.n, 2: p.batch, 3: p.k}
        index = predicate.get("index")
        number = value if isinstance(value, (int, float)) else 1
        at = sizes.get(index if isinstance(index, int) else -1, 0)
        if name == "And":
            return isinstance(value, list) and all(self._holds(v) for v in value)
        if name == "Or":
            return isinstance(value, list) and any(self._holds(v) for v in value)
        if name == "Not":
            return not self._holds(value)
        if name == "AMDGPU":
            return self._holds(value)
        answers = {
            "TruePred": lambda: True,
            "Processor": lambda: value == self.library.architecture,
            "TypesEqual": lambda: isinstance(value, list) and all(v == TYPES[p.dtype] for v in value),
            "HighPrecisionAccumulate": lambda: bool(value) == (p.dtype != "fp32"),
            "OperationIdentifierEqual": lambda: value == OPERATIONS[p.layout],
            "StridedBatched": lambda: bool(value),
            "StochasticRounding": lambda: not value,
            "CUEfficiency": lambda: False,
            "Fp16AltImpl": lambda: False,
            "Fp16AltImplRound": lambda: False,
            "EqualityMatching": lambda: True,
            "DeterministicMode": lambda: not value,
            "Free0SizeMultiple": lambda: p.m % max(int(number), 1) == 0,
            "Free1SizeMultiple": lambda: p.n % max(int(number), 1) == 0,
            "BoundSizeMultiple": lambda: p.k % max(int(number), 1) == 0,
            "LeadingFree0SizesGreaterOrEqual": lambda: p.m >= number,
            "LeadingFree1SizesGreaterOrEqual": lambda: p.n >= number,
            "SizeEqual": lambda: at == number,
            "SizeGreaterThan": lambda: at > number,
            "SizeLessThan": lambda: at < number,
            "SizeMultiple": lambda: at % max(int(number), 1) == 0,
            "GlobalSplitUCheckMinK": lambda: p.k >= number,
        }
        if name in answers:
            return bool(answers[str(name)]())
        # Everything else (buffer limits, alignment, kernel language) holds for plain products; it is listed as granted.
        self.library.unknown.add(f"the condition {clean(name, 60)}")
        return True


def solutions_of(table: Mapping[str, Any]) -> dict[int, Any]:
    """Index -> kernel of one table."""
    found = table.get("solutions")
    return (
        {s["index"]: s for s in found if isinstance(s, dict) and isinstance(s.get("index"), int)}
        if isinstance(found, list)
        else {}
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _property(entry: Any, product: Product) -> int | None:
    name = entry.get("type") if isinstance(entry, dict) else None
    known = {"FreeSizeA": product.m, "FreeSizeB": product.n, "BatchSize": product.batch, "BoundSize": product.k}
    return known.get(str(name))


def _numbers(value: Any, length: int) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == length and all(isinstance(v, int) for v in value)


def _distance(method: str, sizes: list[int], row: tuple[int, ...]) -> float:
    if method == "Manhattan":
        return float(sum(abs(a - b) for a, b in zip(sizes, row, strict=True)))
    if method == "Ratio":
        return sum(abs(math.log(max(a, 1) / max(b, 1))) for a, b in zip(sizes, row, strict=True))
    return math.dist(sizes, row)


def _sizes(node: Any, dtype: str | None, layout: str | None, found: list[Product], depth: int = 0) -> None:
    """Collect the rows of all Matching tables below ``node`` with the type and layout on the way to them."""
    if not isinstance(node, dict) or depth > 64:
        return
    if node.get("type") == "ProblemMap" and isinstance(node.get("map"), dict):
        by_operation = {name: key for key, name in OPERATIONS.items()}
        for name, inner in node["map"].items():
            _sizes(inner, dtype, by_operation.get(name), found, depth + 1)
    for row in _list(node.get("rows")):
        if isinstance(row, dict):
            kind, operation = says(row.get("predicate"))
            _sizes(row.get("library"), kind or dtype, operation or layout, found, depth + 1)
    if node.get("type") == "Matching" and dtype and layout:
        names = [p.get("type") for p in _list(node.get("properties")) if isinstance(p, dict)]
        for entry in _list(node.get("table")):
            if isinstance(entry, dict) and _numbers(entry.get("key"), len(names)):
                size = dict(zip(names, entry["key"], strict=True))
                m, n, k = (size.get(name, 0) for name in ("FreeSizeA", "FreeSizeB", "BoundSize"))
                if min(m, n, k) > 0:
                    found.append(Product(m, n, max(size.get("BatchSize", 1), 1), k, dtype, layout, "tuned"))


def says(predicate: Any) -> tuple[str | None, str | None]:
    """Type and layout a predicate asks for."""
    if not isinstance(predicate, dict):
        return None, None
    value = predicate.get("value")
    if predicate.get("type") == "And" and isinstance(value, list):
        pairs = [says(v) for v in value]
        return next((a for a, _ in pairs if a), None), next((b for _, b in pairs if b), None)
    if predicate.get("type") == "TypesEqual" and isinstance(value, list) and value:
        return {name: key for key, name in TYPES.items()}.get(value[0]), None
    if predicate.get("type") == "OperationIdentifierEqual":
        return None, {name: key for key, name in OPERATIONS.items()}.get(str(value))
    return None, None
