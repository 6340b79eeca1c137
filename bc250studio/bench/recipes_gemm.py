"""``bench gemm``: TFLOPS of a shape list, stock kernels against tuned ones, and the share of the chip's roofline.

rocBLAS reads its kernel folder once per process, so each turn is a process of its own, in alternating order.
Time is taken twice: by device events and by the host around the same window; where they differ by more than 5 %
the host's counts and the record says so (gfx1013's timer has returned negative numbers). Operands rotate through
sets larger than the last cache, are random (zeros draw less power), and the result is preallocated.
"""

from __future__ import annotations

import argparse
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
from bc250studio.kernels.products import Product, distinct, from_dict

CLOCKS_AGREE = 0.05
WARMUPS = 10
SIDES = ("stock", "tuned")


def add(parser: argparse.ArgumentParser) -> None:
    """Options of ``bench gemm``."""
    from bc250studio.kernels.arguments import add_source

    add_source(parser)
    parser.add_argument(
        "--library", metavar="NAME", help="the tuned side (default: the library in use; none: stock only)"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each side; the median counts")
    parser.add_argument("--window-ms", type=float, default=50.0, help="least time of one measurement")
    parser.add_argument("--most", type=int, default=40, help="measure only so many shapes, dearest first")
    parser.add_argument("--cool-below", type=float, help="start each shape below this temperature (BC-250: 55 °C)")
    parser.add_argument("--clock", action="store_true", help="measure the shader clock before and after")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace) -> int:
    """Measure both sides in turns, keep the record, print it."""
    from bc250studio.kernels.arguments import chip_of, gather, stored

    if options.rounds < 1 or options.most < 1 or not 1 <= options.window_ms <= 10_000:
        raise BadInput("--rounds and --most must be at least 1, --window-ms between 1 and 10000.")
    products = distinct(gather(options).products)[: options.most]
    found = race(products, stored(options.library), vars(options), chip_of(options))
    path = records.write("gemm", found["regime"]["device"], found)
    show({"record": path.stem, **found}, options.json, f"{text(found)}\nrecord: {path.stem}")
    return 0


def race(products: list[Product], library: Any, options: Mapping[str, Any], chip: Any) -> dict[str, Any]:
    """Stock against ``library`` (a ``kernels.store.Stored``; None: stock alone) over ``products``.

    Returns a bench record: per shape TFLOPS, spread, share of roofline, tuned over stock; and per class of shapes
    (type and layout, weighted by FLOP) the gain.
    """
    from bc250studio.kernels.prove import environment_for

    sides = {"stock": None, **({"tuned": library} if library is not None else {})}
    wanted = {
        "shapes": [
            {n: getattr(p, n) for n in ("m", "n", "batch", "k", "dtype", "layout", "count", "role")} for p in products
        ],
        "device": options.get("device", "auto"),
        "window_ms": options.get("window_ms", 50.0),
        "cool_below": options.get("cool_below"),
    }
    turns: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    clocks = [_clock()] if options.get("clock") else []
    for number in range(options.get("rounds", 3)):
        for side in list(sides) if number % 2 == 0 else list(reversed(sides)):
            turns[side].append(run_in_worker("gemm", wanted, environment_for(sides[side])))
    clocks += [_clock()] if options.get("clock") else []
    first = turns["stock"][0]
    shapes = [_shape(i, product, turns, chip if first["gfx"] else None) for i, product in enumerate(products)]
    return {
        "regime": {
            "device": first["device"],
            "torch": first["torch"],
            "library": library.name if library is not None else "stock only",
            "rounds": options.get("rounds", 3),
            "window_ms": wanted["window_ms"],
            "roofline": chip.words if first["gfx"] else "unknown for this device",
            "cooling_limit_c": first["cooling_limit_c"],
        },
        "results": {
            "shapes": shapes,
            "classes": _classes(products, shapes),
            "timers": _timers(turns),
            "board": {side: [turn["board"] for turn in runs] for side, runs in turns.items()},
            "shader_clock": clocks,
        },
        "summary": f"{first['device']}: {len(shapes)} shapes, best {_best(shapes):.2f} TFLOPS stock",
    }


def _best(shapes: list[dict[str, Any]]) -> float:
    return max(shape["stock_tflops"] for shape in shapes)


def _shape(index: int, product: Product, turns: Mapping[str, list[dict[str, Any]]], chip: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": product.name,
        "dtype": product.dtype,
        "layout": product.layout,
        "flops": product.flops,
    }
    for side, runs in turns.items():
        seconds = [run["shapes"][index]["seconds"] for run in runs]
        one = product.flops / product.count
        rates = [one / s / 1e12 for s in seconds]
        entry[f"{side}_tflops"] = statistics.median(rates)
        entry[f"{side}_spread"] = (max(rates) - min(rates)) / statistics.median(rates)
        if chip is not None:
            bound = chip.bound_s(product.m, product.n, product.batch, product.k, product.dtype)
            entry[f"{side}_of_roofline"] = bound / statistics.median(seconds)
    if "tuned" in turns:
        entry["tuned_over_stock"] = entry["tuned_tflops"] / entry["stock_tflops"]
    return entry


def _classes(products: list[Product], shapes: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Seconds a step spends in each class of shapes on either side, and their ratio."""
    found: dict[str, dict[str, float]] = {}
    for product, shape in zip(products, shapes, strict=True):
        entry = found.setdefault(f"{product.dtype} {product.layout}", {})
        for side in SIDES:
            if f"{side}_tflops" in shape:
                seconds = product.flops / (shape[f"{side}_tflops"] * 1e12)
                entry[f"{side}_s"] = entry.get(f"{side}_s", 0.0) + seconds
    for entry in found.values():
        if "tuned_s" in entry:
            entry["gain"] = entry["stock_s"] / entry["tuned_s"]
    return found


def _timers(turns: Mapping[str, list[dict[str, Any]]]) -> str:
    off = [s for runs in turns.values() for run in runs for s in run["shapes"] if s["timer"] == "host"]
    if not off:
        return "events and host agree within 5 %"
    return f"host time counts in {len(off)} measurements: {off[0]['why']}"


def _clock() -> dict[str, Any]:
    """The measured shader clock, or why there is none."""
    from bc250studio.board import presets
    from bc250studio.board.doctor.probes import shader_clock

    try:
        return shader_clock(presets.detect())
    except JobFailed as error:
        return {"clock_mhz": None, "why": str(error)}


def measure(options: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """In one process: every shape once, in order."""
    import torch

    from bc250studio.bench.recipes_model import device_name, pick_device
    from bc250studio.board.sensors import Sensors

    device = pick_device(options["device"])
    sensors = Sensors.discover()
    limit_c = options["cool_below"]
    on_board = sensors.device is not None and sensors.device.is_bc250 and device.type == "cuda"
    if limit_c is None and on_board:
        limit_c = 55.0
    products = from_dict({"shapes": options["shapes"]}, "the request").products
    found, board = [], []
    for number, product in enumerate(products, 1):
        cool(sensors, limit_c, progress)
        progress(product.name, number, len(products))
        with Watch(sensors) as watch:
            found.append({"name": product.name, **time_product(product, device, options["window_ms"])})
        board.append(watch.summary())
    gfx = ""
    if device.type == "cuda" and torch.version.hip:
        gfx = str(torch.cuda.get_device_properties(device).gcnArchName).split(":")[0]
    return {
        "device": device_name(device),
        "torch": torch.__version__,
        "gfx": gfx,
        "cooling_limit_c": limit_c,
        "shapes": found,
        "board": board,
    }


def time_product(product: Product, device: Any, window_ms: float) -> dict[str, Any]:
    """Seconds of one product: median over five windows of at least ``window_ms``.

    Returns ``seconds``, ``timer`` (``events`` or ``host``), ``why``, ``host_s``, ``event_s`` and ``windows``.
    """
    import torch

    dtypes = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    dtype = dtypes[product.dtype]
    cache = 4 * 2**20 if device.type == "cuda" else 32 * 2**20
    if device.type == "cuda":
        cache = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", cache) or cache)
    sets = max(2, min(16, 1 + 2 * cache // max(product.bytes_held(), 1)))
    operands = []
    for index in range(sets):
        torch.manual_seed(index)
        a = _operand(product.batch, product.n, product.k, product.layout[1] == "T", dtype, device)
        b = _operand(product.batch, product.k, product.m, product.layout[0] == "T", dtype, device)
        operands.append((a, b))
    out = torch.empty(product.batch, product.n, product.m, dtype=dtype, device=device)
    single = product.batch == 1

    def work(count: int) -> None:
        for index in range(count):
            a, b = operands[index % sets]
            if single:
                torch.mm(a[0], b[0], out=out[0])
            else:
                torch.bmm(a, b, out=out)

    def finish() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    work(WARMUPS if product.flops / product.count < 1e12 else 2)
    finish()
    repeats = 1
    while True:
        host_s, event_s = _window(work, finish, repeats, device)
        if host_s * 1e3 >= window_ms or repeats >= 1 << 16:
            break
        repeats = max(repeats * 2, int(repeats * window_ms / max(host_s * 1e3, 1e-3) * 1.1))
    windows = [_window(work, finish, repeats, device) for _ in range(5)]
    host_s = statistics.median(host for host, _ in windows) / repeats
    if device.type != "cuda":
        return {
            "seconds": host_s,
            "timer": "host",
            "why": "the CPU has no events",
            "host_s": host_s,
            "event_s": None,
            "windows": 5,
        }
    event_s = statistics.median(event for _, event in windows) / repeats
    timer, why = "events", ""
    if event_s <= 0 or abs(event_s - host_s) > CLOCKS_AGREE * host_s:
        timer, why = "host", f"device events say {event_s * 1e6:.1f} µs and the host {host_s * 1e6:.1f} µs"
    return {
        "seconds": event_s if timer == "events" else host_s, "timer": timer, "why": why,
        "host_s": host_s, "event_s": event_s, "windows": 5,
    }  # fmt: skip


def _operand(batch: int, rows: int, columns: int, transposed: bool, dtype: Any, device: Any) -> Any:
    import torch

    if transposed:
        return torch.randn(batch, columns, rows, dtype=torch.float32, device=device).to(dtype).transpose(1, 2)
    return torch.randn(batch, rows, columns, dtype=torch.float32, device=device).to(dtype)


def _window(work: Any, finish: Any, repeats: int, device: Any) -> tuple[float, float]:
    """(host seconds, event seconds) of ``repeats`` products; event seconds are 0 on the CPU."""
    import torch

    if device.type != "cuda":
        began = time.perf_counter()
        work(repeats)
        return time.perf_counter() - began, 0.0
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    finish()
    began = time.perf_counter()
    start.record()
    work(repeats)
    end.record()
    finish()
    return time.perf_counter() - began, start.elapsed_time(end) / 1e3


def text(record: Mapping[str, Any]) -> str:
    """The table for a terminal."""
    regime, results = record["regime"], record["results"]
    tuned = any("tuned_tflops" in shape for shape in results["shapes"])
    head = ["product (M x N x K)", "stock TFLOPS", "spread", "of roofline"]
    head += ["tuned TFLOPS", "spread", "of roofline", "tuned / stock"] if tuned else []
    rows = []
    for shape in results["shapes"]:
        row = [shape["name"]]
        for side in SIDES if tuned else SIDES[:1]:
            share = shape.get(f"{side}_of_roofline")
            row += [f"{shape[f'{side}_tflops']:.3f}", f"{100 * shape[f'{side}_spread']:.0f} %"]
            row.append(f"{100 * share:.0f} %" if share is not None else "-")
        if tuned:
            row.append(f"{shape['tuned_over_stock']:.2f}")
        rows.append(tuple(row))
    lines = [
        f"{regime['device']}, torch {regime['torch']}, kernels: {regime['library']}, roofline {regime['roofline']}",
        f"{regime['rounds']} processes a side in turns, windows of {regime['window_ms']:.0f} ms; {results['timers']}",
        "",
        aligned(tuple(head), rows),
    ]
    for name, entry in results["classes"].items():
        if "gain" in entry:
            lines.append(
                f"{name}: {entry['stock_s']:.3f} s stock, {entry['tuned_s']:.3f} s tuned, gain {entry['gain']:.2f}"
            )
    for clock in results["shader_clock"]:
        measured = clock.get("clock_mhz")
        lines.append(f"shader clock: {measured:.0f} MHz" if measured else f"shader clock: {clock['why']}")
    return "\n".join(lines)


LEAST_GAIN = 1.02
"""A class of shapes that gains less than 2 % stays on rocBLAS's own kernels."""


def install_decision(items: list[Any], library: Any, progress: Progress) -> dict[str, Any]:
    """Which classes of a freshly built library stay on stock, and which serve only exactly tuned sizes.

    ``items`` are its logic files. Tuned sizes are raced against stock, and for nearest-size (Euclidean) classes so are
    sizes off the list, which such a table takes too: where those lose, the class is switched to Equality.
    """
    from bc250studio.kernels.chip import bc250

    tuned = [product for item in items for product in item.products]
    nearest = {(i.dtype, i.layout) for i in items if i.distance != "Equality"}
    beside = off_list([p for p in tuned if (p.dtype, p.layout) in nearest])
    progress("racing tuned sizes against stock", None, None)
    first = race(tuned, library, {"rounds": 3}, bc250())["results"]["classes"]
    progress("racing sizes off the list against stock", None, None)
    second = race(beside, library, {"rounds": 3}, bc250())["results"]["classes"] if beside else {}
    return decide(first, second)


def off_list(products: list[Product]) -> list[Product]:
    """For each class up to six sizes near tuned ones and not among them: a third fewer columns, and odd sides."""
    known = {p.key for p in products}
    found: dict[tuple[str, str], list[Product]] = {}
    for p in sorted(products, key=lambda p: -p.flops):
        for m, n in ((p.m, max(p.n * 2 // 3, 1)), (max(p.m * 3 // 4, 1), p.n), (p.m, p.n + 1)):
            near = Product(m, n, p.batch, p.k, p.dtype, p.layout, "off the list")
            group = found.setdefault((p.dtype, p.layout), [])
            if near.key not in known and len(group) < 6 and near not in group:
                group.append(near)
    return [product for group in found.values() for product in group]


def decide(on_list: Mapping[str, Mapping[str, float]], off: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """The decision from the gains of classes (``fp16 TN`` -> stock over tuned seconds) on and off the list."""
    leave_out, equality, said = [], [], []
    for name, entry in on_list.items():
        dtype, layout = name.split()
        gain, beside = entry["gain"], off.get(name, {}).get("gain")
        words = f"{name}: tuned sizes {gain:.2f} times as fast as stock"
        if gain < LEAST_GAIN:
            leave_out.append((dtype, layout))
            words += ", too little: this class stays on stock"
        elif beside is not None:
            words += f", sizes off the list {beside:.2f}"
            if beside < 1:
                equality.append((dtype, layout))
                words += ": only exactly tuned sizes are served"
        said.append(words + ".")
    keeps = len(leave_out) < len(on_list)
    return {"leave_out": leave_out, "equality": equality, "keeps": keeps, "said": said}
