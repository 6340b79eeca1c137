"""``kernels predict``: what every product of a shape list meets in a library, as a record and as lines. No GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bc250studio.kernels.products import ShapeList, distinct
from bc250studio.kernels.selection import Hit, Library


def predict(library: Library, shapes: ShapeList) -> dict[str, Any]:
    """What every product of a list meets, FLOP shares by kind, and warnings about far rows and missing kernels."""
    total = shapes.flops or 1
    rows, shares = [], {"tuned": 0.0, "fallback": 0.0, "none": 0.0}
    far: list[Hit] = []
    for product in distinct(shapes.products):
        hit = library.hit(product)
        shares[hit.kind] += product.flops / total
        if hit.far and hit.kind == "tuned":
            far.append(hit)
        rows.append(
            {
                "name": product.name, "m": product.m, "n": product.n, "batch": product.batch, "k": product.k,
                "dtype": product.dtype, "layout": product.layout, "count": product.count,
                "share": product.flops / total, "kind": hit.kind, "kernel": hit.kernel, "file": hit.file,
                "row": list(hit.row), "method": hit.method, "distance": hit.distance, "far": hit.far,
            }
        )  # fmt: skip
    warnings = []
    if far:
        first = far[0]
        warnings.append(
            f"{len(far)} products meet a row tuned for another size, first {first.product.name} -> "
            f"{'x'.join(map(str, first.row))} "
            f"({first.distance:.0f} away); measure them with `bench gemm` or tune their sizes."
        )
    if shares["none"]:
        warnings.append(
            "some products have no kernel at all, so rocBLAS would abort; the library lacks its fallback files."
        )
    granted = sorted(library.unknown)
    return {
        "library": str(library.folder), "architecture": library.architecture, "shares": shares, "shapes": rows,
        "warnings": warnings, "granted": granted,
    }  # fmt: skip


def text(found: Mapping[str, Any]) -> str:
    """A prediction as lines."""
    lines = []
    for row in found["shapes"]:
        what = row["kind"]
        if row["kind"] == "tuned":
            what = (
                "tuned exactly"
                if row["distance"] == 0
                else f"tuned for {'x'.join(map(str, row['row']))}, {row['distance']:.0f} away"
            )
            what += " (far)" if row["far"] else ""
        lines.append(f"{100 * row['share']:6.2f} %  {row['name']:<34} {what}  {row['kernel'][:60]}")
    shares = found["shares"]
    lines.append(
        f"\n{100 * shares['tuned']:.1f} % of the FLOP meet tuned kernels, "
        f"{100 * shares['fallback']:.1f} % the fallback, "
        f"{100 * shares['none']:.1f} % none."
    )
    return "\n".join(lines)
