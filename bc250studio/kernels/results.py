"""What the Tensile client says: its live rows and its CSV files; impossible times are found and taken out.

A row of the client: run, problem progress, solution progress, operation, (M,N,B,K), kernel, validation, time in us,
GFLOPS. A CSV: first header word names the metric, then sizes, leading dimensions, and one column a kernel with its
GFLOPS, -1 where validation failed.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bc250studio import paths
from bc250studio.errors import BadInput, clean
from bc250studio.kernels.chip import Chip

ABOVE_ROOFLINE = 1.10
"""A product faster than this times its roofline was not computed; the timer lied."""
LARGEST_CSV = 64 * 2**20

_ROW = re.compile(
    r'^\s*\d+,\s*(\d+)/(\d+),\s*(\d+)/(\d+),\s*\w+,\s*"?\((\d+),\s*(\d+),\s*(\d+),\s*(\d+)[^)]*\)"?,'
    r"\s*([^,]+),\s*([A-Z_]+),\s*([^,]*),\s*([^,]*)"
)

Size = tuple[int, int, int, int]


@dataclass(frozen=True)
class Row:
    """One kernel on one size. ``time_us`` and ``gflops`` are NaN where the client gave no number."""

    size: Size
    kernel: str
    validation: str
    time_us: float
    gflops: float
    done: int
    total: int

    @property
    def valid(self) -> bool:
        """Whether its result was right (or not checked)."""
        return self.validation in ("PASSED", "NO_CHECK")

    def fault(self, chip: Chip, dtype: str) -> str:
        """Why it cannot count, or an empty string."""
        if not self.valid:
            return self.validation.lower().replace("_", " ")
        return impossible(self.size, self.gflops, self.time_us, chip, dtype)


def parse(line: str) -> Row | None:
    """A live row of the client; None for every other line."""
    match = _ROW.match(line)
    if not match:
        return None
    problem, problems, solution, solutions = (int(match[i]) for i in range(1, 5))
    size = tuple(int(match[i]) for i in range(5, 9))
    total = max(problems, 1) * max(solutions, 1)
    done = min(problem * max(solutions, 1) + solution + 1, total)
    return Row(
        (size[0], size[1], size[2], size[3]),
        clean(match[9].strip()),
        match[10],
        _number(match[11]),
        _number(match[12]),
        done,
        total,
    )


def impossible(size: Size, gflops: float, time_us: float, chip: Chip, dtype: str) -> str:
    """Why this speed cannot be, in words; empty when it can."""
    if not math.isfinite(gflops) or not math.isfinite(time_us):
        return "no number"
    if time_us <= 0 or gflops <= 0:
        return f"a time of {time_us:g} us"
    m, n, batch, k = size
    limit = 2.0 * m * n * batch * k / chip.bound_s(m, n, batch, k, dtype) / 1e9
    if gflops > ABOVE_ROOFLINE * limit:
        return f"{gflops:.0f} GFLOPS where the chip's ceiling is {limit:.0f}"
    return ""


@dataclass
class Table:
    """A benchmark CSV: one row a size, one column a kernel. ``rejected``: cells taken out, as sentences."""

    path: Path
    header: list[str]
    rows: list[list[str]]
    first: int
    rejected: list[str]

    @property
    def kernels(self) -> list[str]:
        """Names of the kernels."""
        return self.header[self.first :]

    def best(self) -> dict[Size, tuple[str, float]]:
        """Size -> fastest valid kernel and its GFLOPS; sizes without a valid one are absent."""
        found: dict[Size, tuple[str, float]] = {}
        for row in self.rows:
            speeds = [(_number(cell), name) for cell, name in zip(row[self.first :], self.kernels, strict=True)]
            good = [pair for pair in speeds if math.isfinite(pair[0]) and pair[0] > 0]
            if good:
                speed, name = max(good)
                found[_size(row)] = (name, speed)
        return found

    def reject_impossible(self, chip: Chip, dtype: str) -> int:
        """Set cells that cannot be to -1, as a failed validation would; returns how many."""
        before = len(self.rejected)
        for row in self.rows:
            size = _size(row)
            for index in range(self.first, len(row)):
                gflops = _number(row[index])
                if gflops == -1:
                    continue
                m, n, batch, k = size
                time_us = 2.0 * m * n * batch * k / gflops / 1e3 if gflops else 0.0
                why = impossible(size, gflops, time_us, chip, dtype)
                if why:
                    row[index] = "-1"
                    self.rejected.append(f"{'x'.join(map(str, size))} {self.header[index][:60]}: {why}")
        return len(self.rejected) - before

    def write(self) -> None:
        """Write it back."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.header, *self.rows])
        paths.write_atomic(self.path, text.getvalue())


def read_csv(path: Path, kernels: int) -> Table:
    """A benchmark CSV whose last ``kernels`` columns are speeds.

    Raises:
        BadInput: unreadable, torn, or with other columns.
    """
    try:
        if path.stat().st_size > LARGEST_CSV:
            raise BadInput(f"{path} is larger than 64 MiB; it is no benchmark table.")
        lines = [
            [cell.strip() for cell in row] for row in csv.reader(io.StringIO(path.read_text("utf-8", "replace"))) if row
        ]
    except (OSError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read as a benchmark table: {clean(error, 160)}.") from error
    if not lines or len(lines[0]) < 5 + kernels or not lines[0][0].startswith("GFlops") or kernels < 1:
        raise BadInput(f"{path} is not a benchmark table with {kernels} kernels.")
    header, first = lines[0], len(lines[0]) - kernels
    rows = []
    for row in lines[1:]:
        # A row that a killed client left half written is not a measurement.
        if len(row) == len(header) and all(cell.isdigit() for cell in row[1:5]):
            rows.append(row)
    return Table(path, header, rows, first, [])


def _size(row: Sequence[str]) -> Size:
    return (int(row[1]), int(row[2]), int(row[3]), int(row[4]))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
