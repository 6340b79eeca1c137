"""Sorts a profile of one training step into classes; knows profiler events only by their attributes.

Classes: products by layout and type, attention, conversions, copies, norms and activations, loss,
optimiser, and what is left as host gaps. A class is found from the event's own name, from the names of
the events around it, and for products from the name the dispatch mode gave.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

PRODUCT = "bc250studio product "
"""Prefix of the ranges around matrix products."""

_ATTENTION = ("attention", "scaled_dot_product", "rearrange", "flash_", "fmha", "varlen", "rotary", "rope")
_LOSS = ("cross_entropy", "crossentropy", "nll_loss", "log_softmax", "logsoftmax", "loss")
_OPTIMISER = ("optimizer.step", "adamw", "_foreach_", "clip_grad", "_amp_")
_CONVERSION = ("aten::_to_copy", "aten::to")
_COPY = ("aten::clone", "aten::contiguous", "aten::cat", "aten::copy_", "aten::index", "aten::gather", "memcpy")
_NORM = ("norm", "silu", "swiglu", "gelu", "sigmoid", "rsqrt", "aten::mul", "aten::add", "aten::pow", "aten::mean")


def product_name(
    a: Sequence[int], a_stride: Sequence[int], b: Sequence[int], b_stride: Sequence[int], dtype: str
) -> str:
    """``NT fp16 1x2048x6144x2048`` for a [.., m, k] @ [.., k, n]: layout, type, batch x m x n x k.

    N: a factor is stored row after row as it is used; T: it is used transposed. A linear layer's forward
    product with its [out, in] weight is NT, its input gradient NN, a weight gradient TN.
    """
    layout = _layout(a, a_stride) + _layout(b, b_stride)
    batch = a[0] if len(a) == 3 else 1
    short = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16", "torch.float64": "fp64"}
    return f"{layout} {short.get(dtype, dtype)} {batch}x{a[-2]}x{b[-1]}x{a[-1]}"


def _layout(shape: Sequence[int], stride: Sequence[int]) -> str:
    rows, columns = stride[-2], stride[-1]
    if columns == 1 and (rows != 1 or shape[-1] == 1):
        return "N"
    return "T" if rows == 1 else "N"


def flops_of(name: str) -> float:
    """2 b m n k of a product's name."""
    batch, m, n, k = (int(part) for part in name.rsplit(" ", 1)[1].split("x"))
    return 2.0 * batch * m * n * k


@dataclass
class Sorted:
    """Seconds, operations and floating-point operations by class."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    flop: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    by_product: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))
    by_name: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))
    launches: int = 0

    def operations(self, limit: int = 24) -> list[dict[str, Any]]:
        """The dearest operations that are no products: class, name, seconds, calls."""
        rows = sorted(self.by_name.items(), key=lambda item: -item[1][0])[:limit]
        return [
            {"class": label, "name": name, "seconds": round(seconds, 6), "calls": int(calls)}
            for (label, name), (seconds, calls) in rows
        ]

    @property
    def busy_s(self) -> float:
        """What the classes fill."""
        return sum(self.seconds.values())

    @property
    def flops(self) -> float:
        """Floating-point operations of all products."""
        return sum(self.flop.values())

    def table(self, step_s: float) -> list[dict[str, Any]]:
        """One entry a class, largest first, host gaps last; shares of the unprofiled step."""
        rows = [
            {
                "name": name,
                "seconds": round(seconds, 6),
                "share": round(seconds / step_s, 4),
                "calls": self.counts[name],
                "tflops": round(self.flop[name] / seconds / 1e12, 3) if self.flop.get(name) and seconds > 0 else None,
            }
            for name, seconds in sorted(self.seconds.items(), key=lambda item: -item[1])
        ]
        gap = max(step_s - self.busy_s, 0.0)
        return [
            *rows,
            {
                "name": "host gaps",
                "seconds": round(gap, 6),
                "share": round(gap / step_s, 4),
                "calls": 0,
                "tflops": None,
            },
        ]

    def products(self, limit: int = 24) -> list[dict[str, Any]]:
        """The dearest product sizes: seconds, calls, TFLOPS."""
        rows = sorted(self.by_product.items(), key=lambda item: -item[1][0])[:limit]
        return [
            {
                "name": name,
                "seconds": round(seconds, 6),
                "calls": int(calls),
                "tflops": round(calls * flops_of(name) / seconds / 1e12, 3) if seconds > 0 else None,
            }
            for name, (seconds, calls) in rows
        ]


def classify(events: Iterable[Any], on_gpu: bool, vocabulary: int) -> Sorted:
    """Sort profiler events: on a GPU by their kernels' time, on a CPU by their own (self) time.

    Kernels that no operation launched (Triton's, called from plain Python) are sorted by their own names.
    """
    found = Sorted()
    named: set[int] = set()
    operations = [event for event in events if not _on_device(event)]
    linked: Counter[tuple[str, float]] = Counter()
    for event in operations:
        if on_gpu:
            kernels = list(getattr(event, "kernels", ()))
            seconds = sum(kernel.duration for kernel in kernels) / 1e6
            found.launches += len(kernels)
            linked.update((kernel.name, kernel.duration) for kernel in kernels)
            if not kernels:
                continue
        else:
            seconds = event.self_cpu_time_total / 1e6
        name, product = class_of(event, vocabulary)
        found.seconds[name] += seconds
        if product is None:
            found.counts[name] += 1
            operation = found.by_name[name, event.name]
            operation[0] += seconds
            operation[1] += 1
            continue
        entry = found.by_product[product[1]]
        entry[0] += seconds
        if id(product[0]) not in named:
            # A product's range holds several events; it counts once.
            named.add(id(product[0]))
            entry[1] += 1
            found.counts[name] += 1
            found.flop[name] += flops_of(product[1])
    if on_gpu:
        # The device's list repeats the ranges of the host under the same names; those are no kernels.
        ranges = {event.name for event in operations}
        for event in events:
            if not _on_device(event) or event.name in ranges:
                continue
            elapsed_us = event.time_range.elapsed_us()
            key = (event.name, elapsed_us)
            if linked[key] > 0:
                linked[key] -= 1
                continue
            name = class_of_name(event.name.lower())
            found.seconds[name] += elapsed_us / 1e6
            found.counts[name] += 1
            found.launches += 1
    return found


def _on_device(event: Any) -> bool:
    return str(getattr(event, "device_type", "")).endswith(("CUDA", "HIP"))


def class_of_name(name: str) -> str:
    """The class of a kernel that is known by its name only."""
    words = (("loss", _LOSS), ("attention", _ATTENTION), ("optimiser", _OPTIMISER), ("copies", _COPY))
    for label, parts in (*words, ("norms and activations", _NORM)):
        if any(part in name for part in parts):
            return label
    return "others"


def class_of(event: Any, vocabulary: int) -> tuple[str, tuple[Any, str] | None]:
    """The class of one event, and for a product its range and name."""
    chain: list[str] = []
    product: tuple[Any, str] | None = None
    wide = False
    current = event
    while current is not None:
        if product is None and current.name.startswith(PRODUCT):
            product = (current, current.name[len(PRODUCT) :])
        chain.append(current.name.lower())
        shapes = getattr(current, "input_shapes", None) or ()
        wide = wide or any(shape and shape[-1] == vocabulary for shape in shapes if isinstance(shape, (list, tuple)))
        current = current.cpu_parent
    around = " ".join(chain)
    if any(word in around for word in _OPTIMISER):
        return "optimiser", None
    if product is not None and str(vocabulary) in product[1].rsplit(" ", 1)[1].split("x"):
        return "loss: products", product
    if any(word in around for word in _ATTENTION):
        return ("attention: products", product) if product else ("attention", None)
    if product is not None:
        layout, dtype, _ = product[1].split(" ")
        return f"products {layout} {dtype}", product
    if wide or any(word in around for word in _LOSS):
        return "loss", None
    if any(word in around for word in _CONVERSION):
        return "conversions", None
    # The innermost names decide between copying and computing: a norm may also copy.
    if any(word in chain[0] for word in _COPY):
        return "copies", None
    if any(word in around for word in _NORM):
        return "norms and activations", None
    return "others", None
