"""``bench memory``: copy, scale and three-stream add in GB/s, with the counting of bytes written beside it.

Counting decides: 480 GB/s was reported for a board whose memory moves 448 GB/s on paper. Here every array
that is read or written counts once (copy and scale 2 arrays, add 3), GB are 10^9 bytes, nothing is added for
lines a CPU fetches before it overwrites them, and the arrays are far larger than the last cache. A result above
the paper figure is marked, not printed as a record. Time is the host's around a synchronised device, since
gfx1013's own timer has returned negative numbers (GabriWar/bc250-rocm-working docs/10).
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Mapping
from typing import Any

from bc250studio.bench import records
from bc250studio.bench.protocol import Watch, cool
from bc250studio.bench.report import aligned, show
from bc250studio.bench.worker import run_in_worker
from bc250studio.errors import BadInput, JobFailed
from bc250studio.jobs.progress import Progress

ARRAYS = {"copy": 2, "scale": 2, "add": 3}
"""Test -> arrays that cross memory: b = a; b = s*a; c = a + b."""

PAPER_GB_S = {"gfx1013": 448.0}
"""256 bits of GDDR6 at 14 Gbit/s a pin."""

COUNTING = (
    "every array read or written counts once (copy and scale 2, add 3); GB = 10^9 bytes; "
    "the fetch of a line before it is overwritten is not counted"
)


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``bench memory``."""
    parser.add_argument("--mib", type=int, default=256, help="size of each of the three arrays (default 256)")
    parser.add_argument("--rounds", type=int, default=5, help="turns; the median counts")
    parser.add_argument("--seconds", type=float, default=0.5, help="time of one test in a turn")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", choices=("fp32", "fp16"), default="fp32")
    parser.add_argument("--cool-below", type=float, help="start each turn below this temperature (BC-250: 55 °C)")
    parser.add_argument("--fan", choices=("off", "full"), default="off", help="fans at full speed while measuring")
    parser.add_argument("--clock", action="store_true", help="measure the shader clock before and after")
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace) -> int:
    """Measure in the runner's Python, keep the record, print it."""
    from bc250studio.board import guard, presets

    if options.mib < 1 or options.rounds < 1 or not 0 < options.seconds <= 60:
        raise BadInput("--mib and --rounds must be at least 1, --seconds between 0 and 60.")
    chip = presets.detect()
    wanted = {key: value for key, value in vars(options).items() if key not in ("noun", "verb", "json", "clock", "fan")}
    wanted["gfx"] = chip.gfx
    with guard.full_fans() if options.fan == "full" else contextlib.nullcontext():
        clocks = [_clock(chip)] if options.clock else []
        found = run_in_worker("memory", wanted)
        if options.clock:
            clocks.append(_clock(chip))
            found["results"]["shader_clock"] = clocks
    found["regime"]["fan"] = options.fan
    path = records.write("memory", found["regime"]["device"], found)
    show({"record": path.stem, **found}, options.json, f"{text(found)}\nrecord: {path.stem}")
    return 0


def _clock(chip: Any) -> dict[str, Any]:
    """The measured shader clock, or why there is none."""
    from bc250studio.board.doctor.probes import shader_clock

    try:
        return shader_clock(chip)
    except JobFailed as error:
        return {"clock_mhz": None, "why": str(error)}


def measure(options: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """In the runner's process: the three tests in turns, their order flipped each round."""
    import torch

    from bc250studio.bench.recipes_model import TYPES, device_name, pick_device
    from bc250studio.board.sensors import Sensors

    device, dtype = pick_device(options["device"]), TYPES[options["dtype"]]
    sensors = Sensors.discover()
    limit_c = options["cool_below"]
    if limit_c is None and sensors.device is not None and sensors.device.is_bc250 and device.type != "cpu":
        limit_c = 55.0
    count = options["mib"] * 2**20 // dtype.itemsize
    try:
        a, b, c = (torch.full((count,), value, dtype=dtype, device=device) for value in (1.0, 2.0, 0.0))
    except (torch.cuda.OutOfMemoryError, RuntimeError) as error:
        raise BadInput(f"Three arrays of {options['mib']} MiB do not fit on {device}; give a smaller --mib.") from error
    work = {
        "copy": lambda: b.copy_(a),
        "scale": lambda: torch.mul(a, 3.0, out=b),
        "add": lambda: torch.add(a, b, out=c),
    }

    def finish() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    turns: dict[str, list[float]] = {name: [] for name in ARRAYS}
    board, cooling = [], []
    for number in range(options["rounds"]):
        cooling.append(cool(sensors, limit_c, progress))
        order = list(ARRAYS) if number % 2 == 0 else list(reversed(ARRAYS))
        with Watch(sensors) as watch:
            for name in order:
                progress(f"{name}, turn {number + 1} of {options['rounds']}", number, options["rounds"])
                turns[name].append(_rate(work[name], finish, ARRAYS[name] * a.nbytes, options["seconds"]))
        board.append(watch.summary())
    # The sums say that the work was done: b = 3a = 3, c = a + b with b either copy's 1 or scale's 3.
    work["scale"]()
    work["add"]()
    if float(b[-1]) != 3.0 or float(c[0]) != 4.0:
        raise JobFailed(f"{device_name(device)} computes wrongly: 3 × 1 = {float(b[-1])}, 1 + 3 = {float(c[0])}.")
    tests = [_test(name, rates, PAPER_GB_S.get(options["gfx"])) for name, rates in turns.items()]
    best = max(test["gb_per_s"] for test in tests)
    regime = {
        "device": device_name(device),
        "array_mib": options["mib"],
        "dtype": options["dtype"],
        "counting": COUNTING,
        "rounds": options["rounds"],
        "torch": torch.__version__,
        "cooling_limit_c": limit_c,
    }
    return {
        "regime": regime,
        "results": {
            "tests": tests,
            "paper_gb_per_s": PAPER_GB_S.get(options["gfx"]),
            "board": board,
            "cooling": cooling,
        },
        "summary": f"{regime['device']}: {best:.1f} GB/s at best",
    }


def _rate(work: Any, finish: Any, moved_bytes: int, seconds: float) -> float:
    """GB/s over at least ``seconds`` of repeats, doubled until they take that long."""
    work()
    finish()
    repeats = 1
    while True:
        began = time.perf_counter()
        for _ in range(repeats):
            work()
        finish()
        took = time.perf_counter() - began
        if took >= seconds or repeats >= 1 << 20:
            return moved_bytes * repeats / took / 1e9
        repeats = max(repeats * 2, int(repeats * seconds / max(took, 1e-6)))


def _test(name: str, rates: list[float], paper: float | None) -> dict[str, Any]:
    median = statistics.median(rates)
    remark = None
    if paper is not None and median > paper:
        remark = f"above the {paper:.0f} GB/s of the memory on paper: a cache or the counting, not the memory"
    return {
        "name": name,
        "arrays_counted": ARRAYS[name],
        "gb_per_s": round(median, 2),
        "lowest": round(min(rates), 2),
        "highest": round(max(rates), 2),
        "share_of_paper": round(median / paper, 3) if paper else None,
        "remark": remark,
    }


def text(record: Mapping[str, Any]) -> str:
    """The table for a terminal."""
    regime, results = record["regime"], record["results"]
    rows = [
        (
            test["name"],
            str(test["arrays_counted"]),
            f"{test['gb_per_s']:.1f}",
            f"{test['lowest']:.1f} to {test['highest']:.1f}",
        )
        for test in results["tests"]
    ]
    lines = [
        f"{regime['device']}, arrays of {regime['array_mib']} MiB, {regime['dtype']}, torch {regime['torch']}",
        "counted: every array read or written once (copy, scale 2; add 3); GB = 10^9",
        "",
        aligned(("test", "arrays", "GB/s", "lowest to highest"), rows),
    ]
    lines += [f"{test['name']}: {test['remark']}" for test in results["tests"] if test["remark"]]
    for clock in results.get("shader_clock", []):
        measured = clock.get("clock_mhz")
        lines.append(f"shader clock: {measured:.0f} MHz" if measured else f"shader clock: {clock['why']}")
    return "\n".join(lines)
