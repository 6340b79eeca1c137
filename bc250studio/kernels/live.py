"""The live table of a tuning run: design, size, GFLOPS, best so far, share of roofline; and the same as plain lines."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

from bc250studio import paths
from bc250studio.kernels.chip import Chip
from bc250studio.kernels.plan import Part
from bc250studio.kernels.results import Row, Size

_MACRO = re.compile(r"MT(\d+x\d+x\d+)")
_SPLIT = re.compile(r"_GSU(\d+)")
WRITE_EVERY_S = 0.5


class Live:
    """Keeps the best of each size of a part and writes ``live.json`` beside the plan for whoever looks."""

    def __init__(self, file: Path, chip: Chip) -> None:
        self._file, self._chip = file, chip
        self._best: dict[str, dict[Size, tuple[float, str]]] = {}
        self._rejected: dict[str, int] = {}
        self._last: dict[str, Any] = {}
        self._written = 0.0

    def take(self, part: Part, row: Row) -> str:
        """Note a row; returns its plain line."""
        fault = row.fault(self._chip, part.dtype)
        best = self._best.setdefault(part.name, {})
        if fault:
            self._rejected[part.name] = self._rejected.get(part.name, 0) + 1
        elif row.gflops > best.get(row.size, (0.0, ""))[0]:
            best[row.size] = (row.gflops, row.kernel)
        top = best.get(row.size, (0.0, ""))[0]
        share = top / self.ceiling(row.size, part.dtype)
        speed = f"rejected: {fault}" if fault else f"{row.gflops:8.0f} GFLOPS"
        line = (
            f"{part.name}  {row.done:>4}/{row.total}  {'x'.join(map(str, row.size)):<22} {short(row.kernel):<20} "
            f"{speed}  best {top:8.0f}  {100 * share:3.0f} % of roofline"
        )
        self._last = {
            "part": part.name, "size": list(row.size), "design": short(row.kernel), "fault": fault,
            "gflops": None if fault else row.gflops, "best": top, "share": share, "done": row.done, "total": row.total,
        }  # fmt: skip
        self.write()
        return line

    def ceiling(self, size: Size, dtype: str) -> float:
        """GFLOPS at the roofline."""
        m, n, batch, k = size
        return 2.0 * m * n * batch * k / self._chip.bound_s(m, n, batch, k, dtype) / 1e9

    def measured(self) -> dict[str, dict[Size, float]]:
        """Part -> size -> best GFLOPS, for the second pass."""
        return {part: {size: speed for size, (speed, _) in sizes.items()} for part, sizes in self._best.items()}

    def write(self, force: bool = False) -> None:
        """Write the table, at most twice a second."""
        if not force and time.monotonic() - self._written < WRITE_EVERY_S:
            return
        self._written = time.monotonic()
        table = {
            part: [
                {
                    "size": list(size),
                    "design": short(kernel),
                    "gflops": speed,
                    "share": speed / self.ceiling(size, part[:4]),
                }
                for size, (speed, kernel) in sizes.items()
            ]
            for part, sizes in self._best.items()
        }
        paths.write_atomic(self._file, json.dumps({"last": self._last, "best": table, "rejected": self._rejected}))


def short(kernel: str) -> str:
    """``128x64x16`` or ``128x64x16 split 4`` out of a kernel's long name."""
    macro, split = _MACRO.search(kernel), _SPLIT.search(kernel)
    name = macro[1] if macro else kernel[:20]
    return f"{name} split {int(split[1])}" if split and int(split[1]) > 1 else name


def table(record: dict[str, Any]) -> str:
    """``live.json`` as the table a terminal shows."""
    lines = []
    last = record.get("last") or {}
    if last:
        speed = "rejected" if last.get("gflops") is None else f"{last['gflops']:.0f} GFLOPS"
        lines.append(
            f"now   {last['part']} {'x'.join(map(str, last['size']))} {last['design']}: {speed} "
            f"({last['done']}/{last['total']})"
        )
    lines.append(f"{'part':<10} {'M x N x B x K':<24} {'best design':<22} {'GFLOPS':>8}  of roofline")
    for part, sizes in (record.get("best") or {}).items():
        for entry in sizes:
            size = "x".join(map(str, entry["size"]))
            lines.append(
                f"{part:<10} {size:<24} {entry['design']:<22} {entry['gflops']:>8.0f}  {100 * entry['share']:3.0f} %"
            )
    return "\n".join(lines)
