"""A matrix product as rocBLAS sees it (column-major M, N, batch, K, layout, types), and lists of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bc250studio.errors import BadInput, clean
from bc250studio.kernels.chip import BYTES, Chip

SCHEMA = 1
LAYOUTS = ("NN", "NT", "TN", "TT")
LARGEST = 2**31 - 1

Key = tuple[int, int, int, int, str, str]


@dataclass(frozen=True)
class Product:
    """``count`` times D[m,n] = op(A)[m,k] · op(B)[k,n], column-major, ``batch`` of them in one call.

    ``layout`` is op(A) then op(B) (``TN``: A transposed, B not). ``dtype`` is that of inputs and output;
    16-bit ones accumulate in FP32. ``role`` says which part of a step it belongs to.
    """

    m: int
    n: int
    batch: int
    k: int
    dtype: str
    layout: str
    role: str = ""
    count: int = 1

    @property
    def key(self) -> Key:
        """What a kernel library distinguishes."""
        return (self.m, self.n, self.batch, self.k, self.dtype, self.layout)

    @property
    def flops(self) -> int:
        """Floating-point operations of all ``count`` calls: 2*B*M*N*K each."""
        return 2 * self.batch * self.m * self.n * self.k * self.count

    @property
    def name(self) -> str:
        """``fp16 TN 2048x1024x2048`` (M x N x K), with the batch where there is one."""
        return f"{self.dtype} {self.layout} {self.m}x{self.n}x{self.k}" + (
            f" batch {self.batch}" if self.batch > 1 else ""
        )

    def bytes_held(self) -> int:
        """Memory of both operands and the result, in bytes."""
        return self.batch * (self.m * self.k + self.k * self.n + self.m * self.n) * BYTES[self.dtype]


def merged(products: Iterable[Product]) -> list[Product]:
    """Equal products of one role added up, dearest first; products with an empty side dropped."""
    sums: dict[tuple[Key, str], int] = {}
    for product in products:
        if min(product.m, product.n, product.batch, product.k) > 0 and product.count > 0:
            sums[product.key, product.role] = sums.get((product.key, product.role), 0) + product.count
    found = [Product(*key, role=role, count=count) for (key, role), count in sums.items()]
    return sorted(found, key=lambda p: (-p.flops, p.key, p.role))


def distinct(products: Iterable[Product]) -> list[Product]:
    """One product per size, type and layout whatever the role; roles joined, dearest first."""
    found: dict[Key, Product] = {}
    for product in merged(products):
        known = found.get(product.key)
        if known is None:
            found[product.key] = product
        else:
            role = known.role if product.role in known.role.split(", ") else f"{known.role}, {product.role}"
            found[product.key] = replace(known, count=known.count + product.count, role=role)
    return sorted(found.values(), key=lambda p: (-p.flops, p.key))


@dataclass
class ShapeList:
    """The products of one training step (or of several, for several pass sizes) and where they come from.

    ``flops_counted`` is torch's own FLOP counter over the same step, None where it was not run.
    """

    model: str
    tokens: list[int]
    rank: int
    products: list[Product]
    facts: dict[str, Any] = field(default_factory=dict)
    flops_counted: int | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def flops(self) -> int:
        """Operations of all products together."""
        return sum(product.flops for product in self.products)

    def as_dict(self, chip: Chip) -> dict[str, Any]:
        """The JSON form: sizes, counts, FLOP share, and the roofline time on ``chip`` in milliseconds."""
        total = self.flops or 1
        return {
            "schema": SCHEMA,
            "model": self.model,
            "tokens": self.tokens,
            "rank": self.rank,
            **self.facts,
            "chip": {"name": chip.name, "compute_units": chip.compute_units, "clock_mhz": chip.clock_mhz},
            "flops": self.flops,
            "flops_counted": self.flops_counted,
            "roofline_s": sum(chip.bound_s(p.m, p.n, p.batch, p.k, p.dtype) * p.count for p in self.products),
            "notes": self.notes,
            "shapes": [
                {
                    "m": p.m,
                    "n": p.n,
                    "batch": p.batch,
                    "k": p.k,
                    "dtype": p.dtype,
                    "layout": p.layout,
                    "count": p.count,
                    "role": p.role,
                    "flops": p.flops,
                    "share": p.flops / total,
                    "roofline_ms": 1e3 * chip.bound_s(p.m, p.n, p.batch, p.k, p.dtype) * p.count,
                }
                for p in self.products
            ],
        }


def from_dict(record: object, where: str) -> ShapeList:
    """The reverse of :meth:`ShapeList.as_dict`; only what cannot be computed again is read.

    Raises:
        BadInput: not a shape list; says which entry is wrong.
    """
    if not isinstance(record, dict) or not isinstance(record.get("shapes"), list):
        raise BadInput(
            f"{where} is not a shape list: it needs a list under 'shapes'; "
            "make one with: bc250studio kernels shapes --json."
        )
    products = [_product(entry, where, number) for number, entry in enumerate(record["shapes"], 1)]
    tokens = record.get("tokens")
    known = {"schema", "model", "tokens", "rank", "chip", "flops", "flops_counted", "roofline_s", "notes", "shapes"}
    counted = record.get("flops_counted")
    return ShapeList(
        model=clean(record.get("model", ""), 200),
        tokens=[int(t) for t in tokens if isinstance(t, int)] if isinstance(tokens, list) else [],
        rank=record["rank"] if isinstance(record.get("rank"), int) else 0,
        products=products,
        facts={clean(key, 60): value for key, value in record.items() if key not in known},
        flops_counted=counted if isinstance(counted, int) else None,
        notes=[clean(note, 400) for note in record["notes"]] if isinstance(record.get("notes"), list) else [],
    )


def read(file: Path) -> ShapeList:
    """A shape list from a JSON file.

    Raises:
        BadInput: unreadable, or not one.
    """
    try:
        record = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{file} cannot be read as a shape list: {clean(error, 200)}.") from error
    return from_dict(record, str(file))


def _product(entry: object, where: str, number: int) -> Product:
    if not isinstance(entry, dict):
        raise BadInput(f"{where}: shape {number} is not a table of m, n, batch, k, dtype, layout.")
    sizes = []
    for name, default in (("m", None), ("n", None), ("batch", 1), ("k", None), ("count", 1)):
        value = entry.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST:
            raise BadInput(
                f"{where}: shape {number} has {name} = {clean(value, 40)!r}; it must be a whole number from 1 up."
            )
        sizes.append(value)
    dtype, layout = entry.get("dtype"), entry.get("layout")
    if dtype not in BYTES or layout not in LAYOUTS:
        raise BadInput(
            f"{where}: shape {number} has dtype {clean(dtype, 20)!r} and layout {clean(layout, 20)!r}; "
            f"known are {', '.join(BYTES)} and {', '.join(LAYOUTS)}."
        )
    m, n, batch, k, count = sizes
    return Product(m, n, batch, k, str(dtype), str(layout), clean(entry.get("role", ""), 120), count)
