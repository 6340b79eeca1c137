"""Are the matrix kernels right? Computes products with torch and compares each with float64 on the CPU.

Runs as a child (``python -m bc250studio.kernels.proof``), because rocBLAS reads its library folder once per
process; prove.py starts it with the library to be judged and reads the record it prints. CPU, CUDA and ROCm.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable
from typing import Any

import torch

from bc250studio.errors import clean
from bc250studio.kernels.cases import ACCUMULATE, UNIT_ROUNDOFF, Case, standard, tuned
from bc250studio.kernels.products import from_dict
from bc250studio.kernels.proof_training import loss_run, training_checks

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
WHOLE_FLOPS = 4e8
"""Products up to this size are compared element by element; larger ones by sampled rows and a projection."""
SAMPLED_ROWS = 48


def exact_mode() -> None:
    """Ask torch for full-precision accumulation: no TF32, no reduction in 16 bits."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def facts(device: torch.device) -> dict[str, Any]:
    """What was judged: torch, HIP or CUDA, and the chip's name and architecture."""
    record: dict[str, Any] = {"torch": torch.__version__, "hip": torch.version.hip, "cuda": torch.version.cuda}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        record["chip"] = str(getattr(properties, "gcnArchName", "") or properties.name).split(":")[0]
        record["chip_name"] = properties.name
        record["compute_units"] = properties.multi_processor_count
    else:
        record["chip"] = record["chip_name"] = "cpu"
    return record


def _stored(rows: int, columns: int, transposed: bool, batch: int, padded: bool, dtype: torch.dtype, seed: int) -> Any:
    """A [batch, rows, columns] view whose storage is row-major, or column-major when ``transposed``."""
    outer, inner = (columns, rows) if transposed else (rows, columns)
    wide = inner + 3 if padded else inner
    generator = torch.Generator().manual_seed(seed)
    storage = torch.randn(batch, outer, wide, generator=generator, dtype=torch.float32).to(dtype)
    view = storage[:, :, :inner]
    return view.transpose(1, 2) if transposed else view


def operands(case: Case, seed: int = 1) -> tuple[Any, Any, Any]:
    """CPU tensors A [B,n,k], B [B,k,m], C [B,n,m] of a case, rounded to its type.

    Row-major C = A·B is column-major M, N, K with op(first) belonging to B: see walk.Recorder.
    """
    dtype = DTYPES[case.dtype]
    padded = case.what == "padded"
    batch_a = 1 if case.what == "broadcast B" else case.batch
    batch_b = 1 if case.what == "broadcast A" else case.batch
    a = _stored(case.n, case.k, case.layout[1] == "T", batch_a, padded, dtype, seed).expand(case.batch, -1, -1)
    b = _stored(case.k, case.m, case.layout[0] == "T", batch_b, padded, dtype, seed + 1).expand(case.batch, -1, -1)
    generator = torch.Generator().manual_seed(seed + 2)
    c = torch.randn(case.batch, case.n, case.m, generator=generator).to(dtype)
    return a, b, c


def _on(device: torch.device, tensor: Any) -> Any:
    """A fresh copy on the device with the same strides (a broadcast batch stays a broadcast)."""
    if tensor.stride(0) == 0 and tensor.shape[0] > 1:
        return _on(device, tensor[:1]).expand(tensor.shape[0], -1, -1)
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return copy.copy_(tensor)


def multiply(case: Case, a: Any, b: Any, c: Any) -> Any:
    """The product by torch's own operators on the operands' device; [B,n,m]."""
    if case.batch == 1 and "batch" not in case.what:
        first, second = a[0], b[0]
        if case.beta:
            return torch.addmm(c[0], first, second, alpha=case.alpha, beta=case.beta)[None]
        if case.what == "nan in C":
            out = torch.full_like(c[0], math.nan)
            return out.addmm_(first, second, beta=0)[None]
        return torch.mm(first, second)[None]
    if case.beta:
        return torch.baddbmm(c, a, b, alpha=case.alpha, beta=case.beta)
    return torch.bmm(a, b)


def judge(case: Case, a: Any, b: Any, c: Any, result: Any) -> tuple[bool, dict[str, float], str]:
    """Compare ``result`` with float64. Returns passed, the measured errors over their bounds, and the fault in words.

    An element may be off by 2u|C| + 2(K+1)*2^-24*(|A||B|): the first term rounds the output (u of its type), the second
    is the worst case of K fused multiply-adds in FP32 (Higham, Accuracy and Stability of Numerical Algorithms,
    section 3.5), twice for alpha and beta. For the whole see ``Case.norm_limit``.
    """
    if not bool(torch.isfinite(result).all()):
        bad = int((~torch.isfinite(result)).sum())
        return False, {"elements": math.inf, "norm": math.inf}, f"{bad} of {result.numel()} elements are not finite"
    whole = 2.0 * case.batch * case.m * case.n * case.k <= WHOLE_FLOPS
    generator = torch.Generator().manual_seed(7)
    rows = torch.arange(case.n) if whole else torch.randperm(case.n, generator=generator)[:SAMPLED_ROWS].sort().values
    batches = range(case.batch) if whole else sorted({0, case.batch - 1, case.batch // 2})
    worst, square_error, square_exact, place = 0.0, 0.0, 0.0, (0, 0, 0)
    for index in batches:
        left, right = a[index][rows].double(), b[index].double()
        added = case.beta * c[index][rows].double()
        exact = case.alpha * (left @ right) + added
        magnitude = abs(case.alpha) * (left.abs() @ right.abs()) + added.abs()
        error = (result[index][rows].double() - exact).abs()
        # With beta a library may round the product to the output type before it adds C (cuBLAS does).
        rounded = exact.abs() if not case.beta else (exact - added).abs() + added.abs()
        limit = 2 * UNIT_ROUNDOFF[case.dtype] * rounded + 2 * (case.k + 1) * ACCUMULATE * magnitude
        ratio = error / limit.clamp_min(torch.finfo(torch.float64).tiny)
        if float(ratio.max()) > worst:
            worst = float(ratio.max())
            row, column = divmod(int(ratio.argmax()), case.m)
            place = (index, int(rows[row]), column)
        square_error += float(error.square().sum())
        square_exact += float(exact.square().sum())
    norm = math.sqrt(square_error / square_exact) if square_exact else math.sqrt(square_error)
    measured = {"elements": worst}
    if case.n * case.m >= 64:
        measured["norm"] = norm / case.norm_limit
    if not whole:
        measured["projection"] = _projected(case, a, b, c, result) / (3 * case.norm_limit)
    if worst > 1:
        return False, measured, f"element {place} (batch, n, m) is wrong by {worst:.3g} times the bound"
    if max(measured.values()) > 1:
        return False, measured, f"the whole is wrong by {max(measured.values()):.3g} times the bound"
    return True, measured, ""


def _projected(case: Case, a: Any, b: Any, c: Any, result: Any) -> float:
    """Relative error of C·v against A·(B·v), v random signs, in float64: sees every element of a large product."""
    sign = torch.randint(0, 2, (case.m,), generator=torch.Generator().manual_seed(9)).double() * 2 - 1
    error = exact = 0.0
    for index in range(case.batch):
        inner = torch.cat([part.double() @ sign for part in b[index].split(1024)])
        for start in range(0, case.n, 1024):
            rows = slice(start, start + 1024)
            right = case.alpha * (a[index][rows].double() @ inner)
            if case.beta:
                right += case.beta * (c[index][rows].double() @ sign)
            error += float((result[index][rows].double() @ sign - right).square().sum())
            exact += float(right.square().sum())
    return math.sqrt(error / exact) if exact else math.sqrt(error)


def prove_products(cases: Iterable[Case], device: torch.device, narrate: Any = None) -> dict[str, Any]:
    """Every case twice, each time in fresh buffers. Returns counts, worst figures by type and layout, and failures."""
    groups: dict[str, dict[str, Any]] = {}
    failures: list[dict[str, Any]] = []
    count = 0
    said = time.monotonic()
    for case in cases:
        count += 1
        group = groups.setdefault(
            f"{case.dtype} {case.layout}", {"cases": 0, "elements": 0.0, "norm": 0.0, "repeatable": True, "failed": 0}
        )
        group["cases"] += 1
        a, b, c = operands(case)
        first = None
        for attempt in (1, 2):
            try:
                result = multiply(case, _on(device, a), _on(device, b), c.to(device)).cpu()
                passed, measured, fault = judge(case, a, b, c, result)
            except RuntimeError as error:
                result, passed, measured = None, False, {"elements": math.inf, "norm": math.inf}
                fault = f"cannot be computed: {clean(str(error).splitlines()[0], 160)}"
            group["elements"] = max(group["elements"], measured["elements"])
            group["norm"] = max(group["norm"], measured.get("norm", 0.0))
            if not passed:
                group["failed"] += 1
                failures.append({**case_dict(case), "name": case.name, "attempt": attempt, "fault": fault, **measured})
                break
            if first is not None and result is not None and not torch.equal(first, result):
                group["repeatable"] = False
            first = result
        if narrate and time.monotonic() - said > 5:
            said = time.monotonic()
            narrate(f"{count} products, {len(failures)} wrong; now {case.name}")
    return {"cases": count, "groups": groups, "failures": failures}


def compare_timers(device: torch.device) -> dict[str, Any]:
    """Device events against the host over a window of one large product; they must agree within 5 %.

    Returns ``agree``, ``event_ms``, ``host_ms`` and ``why``. Negative event times have been seen on gfx1013.
    """
    if device.type != "cuda":
        return {"agree": False, "event_ms": None, "host_ms": None, "why": "torch sees no GPU here"}
    a = torch.randn(2048, 2048, device=device)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    ratios, event_ms, host_ms = [], 0.0, 0.0
    for _ in range(4):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        start.record()
        for _ in range(20):
            torch.mm(a, a)
        end.record()
        torch.cuda.synchronize(device)
        host_ms, event_ms = 1e3 * (time.perf_counter() - began), float(start.elapsed_time(end))
        ratios.append(event_ms / host_ms)
    agree = all(abs(ratio - 1) <= 0.05 for ratio in ratios[1:])
    return {
        "agree": agree,
        "event_ms": event_ms,
        "host_ms": host_ms,
        "why": f"events say {event_ms:.1f} ms, the host {host_ms:.1f} ms",
    }


def case_dict(case: Case) -> dict[str, Any]:
    """A case as JSON."""
    return {name: getattr(case, name) for name in Case.__dataclass_fields__}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """A whole proof: ``{device, dtypes, layouts, quick, shapes, only, training, loss_run}`` -> record."""

    def narrate(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    began = time.monotonic()
    wanted = request.get("device") or "auto"
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else torch.device(wanted)
    exact_mode()
    if request.get("timers"):
        return {"device": str(device), **facts(device), **compare_timers(device)}
    if request.get("loss_run"):
        losses = {name: loss_run(device, DTYPES[name]) for name in request.get("dtypes") or list(DTYPES)}
        return {"device": str(device), **facts(device), "losses": losses}
    if request.get("only") is not None:
        cases: list[Case] = [Case(**entry) for entry in request["only"]]
    else:
        dtypes, layouts = request.get("dtypes") or list(DTYPES), request.get("layouts") or ["NN", "NT", "TN"]
        cases = list(standard(dtypes, layouts, bool(request.get("quick"))))
        if request.get("shapes"):
            listed = from_dict({"shapes": request["shapes"]}, "the request").products
            cases += [case for case in tuned(listed) if case.dtype in dtypes]
    record: dict[str, Any] = {
        "device": str(device),
        **facts(device),
        "products": prove_products(cases, device, narrate),
    }
    if request.get("training", True):
        record["training"] = training_checks(device, bool(request.get("quick")))
    failed = bool(record["products"]["failures"]) or any(not c["passed"] for c in record.get("training", []))
    record["verdict"] = "failed" if failed else "passed"
    record["seconds"] = round(time.monotonic() - began, 2)
    return record


if __name__ == "__main__":
    print(json.dumps(run(json.load(sys.stdin))))
