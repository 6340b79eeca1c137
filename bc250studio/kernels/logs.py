"""Products out of logs: rocBLAS's bench lines and profile lines, and TunableOp's file of untuned products.

Formats: rocm.docs.amd.com/projects/rocBLAS (logging), pytorch aten/src/ATen/cuda/tunable/README.md.
Lines are read as option pairs, never by position; lines about other functions are passed over and counted.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bc250studio import profiles, settings
from bc250studio.board import presets
from bc250studio.errors import BadInput, JobFailed, clean
from bc250studio.jobs.spawn import child_environment
from bc250studio.kernels.products import LARGEST, Product, ShapeList, from_dict, merged
from bc250studio.profiles import Resolved

RUN_TIMEOUT_S = 1800
MARK = "bc250studio-step"
"""What walk.py prints on stderr around the second step."""

_TYPES = {
    "f32_r": "fp32", "s": "fp32", "f16_r": "fp16", "h": "fp16", "bf16_r": "bf16",
    "float": "fp32", "half": "fp16", "bfloat16": "bf16",
}  # fmt: skip
_PROFILE = re.compile(r"^\s*-\s*\{(.*)\}\s*$")
_PAIR = re.compile(r"""([A-Za-z_]\w*):\s*("[^"]*"|'[^']*'|[^,]*)""")
_TUNABLE = re.compile(
    r"^Gemm(AndBias|StridedBatched|)TunableOp_(\w+?)_([NT])([NT])\s*,\s*[nt]{2}_(\d+)_(\d+)_(\d+)(?:_B_(\d+))?",
    re.IGNORECASE,
)
LARGEST_LOG = 256 * 2**20


def read(file: Path) -> ShapeList:
    """The products of a log, merged; ``notes`` says what was passed over.

    Raises:
        BadInput: the file cannot be read, is too large, or holds no product at all.
    """
    try:
        if file.stat().st_size > LARGEST_LOG:
            raise BadInput(f"{file} is larger than 256 MiB; log two steps only.")
        text = file.read_text("utf-8", "replace")
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error}.") from error
    return parse(text, str(file))


def parse(text: str, where: str) -> ShapeList:
    """Products of a log given as text. See :func:`read`."""
    found: list[Product] = []
    passed: dict[str, int] = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith(("#", "Validator,")):
            continue
        product, reason = _line(line)
        if product is not None:
            found.append(product)
        elif reason:
            passed[reason] = passed.get(reason, 0) + 1
    if not found:
        raise BadInput(
            f"{clean(where)} holds no matrix product: neither rocblas-bench lines, nor a rocBLAS profile, "
            "nor TunableOp's untuned file."
        )
    notes = [f"{count} lines passed over: {clean(reason, 80)}" for reason, count in sorted(passed.items())]
    return ShapeList(
        model=Path(where).name, tokens=[], rank=0, products=merged(found), facts={"source": "log"}, notes=notes
    )


def of_run(resolved: Resolved) -> ShapeList:
    """Run two steps of a profile with rocBLAS's bench log on and read the second.

    The log's path stays unset and stderr is caught: every rocBLAS handle opens the file anew and empties it, and
    PyTorch makes a second handle for the autograd thread. On a device without rocBLAS the products are those torch
    dispatched in that step, and a note says so.

    Raises:
        JobFailed: the two steps could not be run; names the reason.
    """
    python = settings.load().runtime.python or sys.executable
    variables = {v.name: v.value for v in presets.detect().preset.environment}
    variables |= {"ROCBLAS_LAYER": "2", "TORCH_BLAS_PREFER_HIPBLASLT": "0", "DISABLE_ADDMM_HIP_LT": "1"}
    environment = child_environment(variables)
    for name in ("ROCBLAS_LOG_PATH", "ROCBLAS_LOG_BENCH_PATH", "ROCBLAS_LOG_TRACE_PATH", "ROCBLAS_LOG_PROFILE_PATH"):
        environment.pop(name, None)
    try:
        done = subprocess.run(
            [python, "-m", "bc250studio.kernels.walk"],
            input=json.dumps({"profile": profiles.dump(resolved)}),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=RUN_TIMEOUT_S,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JobFailed(f"Two steps could not be run with {python}: {clean(error, 200)}.") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise JobFailed(f"Two steps could not be run with {python}: {clean(last, 300)}.")
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    return second_step(answer, done.stderr, resolved.name)


def second_step(answer: Mapping[str, Any], stderr: str, name: str) -> ShapeList:
    """The products of the second step: rocBLAS's lines between the two marks, else what torch dispatched."""
    recorded = [replace(p, role="dispatched") for p in from_dict({"shapes": answer["recorded"]}, "the run").products]
    found = ShapeList(name, [], 0, merged(recorded), facts={"source": "dispatch", "device": answer["device"]})
    if not answer["rocblas"]:
        found.notes.append(f"{clean(answer['device'], 40)} has no rocBLAS; these are the products torch dispatched")
        return found
    parts = stderr.split(MARK + "\n")
    logged = parse(parts[1] if len(parts) == 3 else stderr, name)
    logged.facts = {"source": "rocBLAS", "device": answer["device"]}
    if len(parts) != 3:
        logged.notes.append("the two steps could not be told apart, so counts are of both")
    missing = {p.key for p in found.products} - {p.key for p in logged.products}
    if missing:
        logged.notes.append(f"{len(missing)} products that torch dispatched are not in rocBLAS's log")
    return logged


def _line(line: str) -> tuple[Product | None, str]:
    tunable = _TUNABLE.match(line)
    if tunable:
        return _tunable(tunable)
    profile = _PROFILE.match(line)
    if profile:
        pairs = {key: value.strip().strip("\"'") for key, value in _PAIR.findall(profile[1])}
        return _profiled(pairs)
    if "rocblas-bench" in line.split(" ")[0] or line.startswith("rocblas-bench"):
        return _bench(line.split("#")[0].split())
    return None, "not a line of a known log"


def _tunable(match: re.Match[str]) -> tuple[Product | None, str]:
    dtype = _TYPES.get(match[2].lower())
    if dtype is None:
        return None, f"type {match[2]}"
    m, n, k, batch = (int(value) for value in (match[5], match[6], match[7], match[8] or 1))
    return _product(m, n, batch, k, dtype, (match[3] + match[4]).upper(), 1)


def _bench(words: list[str]) -> tuple[Product | None, str]:
    options: dict[str, str] = {}
    position = 1
    while position < len(words):
        word = words[position]
        follows = words[position + 1] if position + 1 < len(words) else ""
        if word.startswith("-") and follows and not (follows.startswith("-") and not _number(follows)):
            options[word.lstrip("-")] = follows
            position += 2
        else:
            position += 1
    function = options.get("f", options.get("function", ""))
    if not function.startswith("gemm"):
        return None, f"function {clean(function, 30) or 'without a name'}"
    kind = options.get("a_type") or options.get("r") or options.get("precision") or ""
    return _sized(
        options.get("m"), options.get("n"), options.get("batch_count", "1"), options.get("k"), kind,
        options.get("transposeA", "N") + options.get("transposeB", "N"), "1",
    )  # fmt: skip


def _profiled(pairs: dict[str, str]) -> tuple[Product | None, str]:
    function = pairs.get("rocblas_function", "")
    if "gemm" not in function:
        return None, f"function {clean(function, 30) or 'without a name'}"
    kind = pairs.get("a_type", "")
    if not kind:
        short = re.match(r"rocblas_([a-z])gemm", function)
        kind = {"s": "s", "h": "h"}.get(short[1] if short else "", function)
    layout = pairs.get("transA", "N") + pairs.get("transB", "N")
    return _sized(
        pairs.get("M"),
        pairs.get("N"),
        pairs.get("batch_count", "1"),
        pairs.get("K"),
        kind,
        layout,
        pairs.get("call_count", "1"),
    )


def _sized(
    m: str | None, n: str | None, batch: str, k: str | None, kind: str, layout: str, count: str
) -> tuple[Product | None, str]:
    dtype = _TYPES.get(kind.lower())
    if dtype is None:
        return None, f"type {clean(kind, 30) or 'not given'}"
    layout = layout.upper().replace("C", "T")
    if layout not in ("NN", "NT", "TN", "TT"):
        return None, f"layout {clean(layout, 10)}"
    try:
        return _product(int(m or ""), int(n or ""), int(batch), int(k or ""), dtype, layout, int(count))
    except ValueError:
        return None, "a size is missing or no number"


def _product(m: int, n: int, batch: int, k: int, dtype: str, layout: str, count: int) -> tuple[Product | None, str]:
    if not all(1 <= value <= LARGEST for value in (m, n, batch, k, count)):
        return None, "an empty or impossible size"
    return Product(m, n, batch, k, dtype, layout, "logged", count), ""


def _number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
