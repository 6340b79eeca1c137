"""``kernels prove``: runs proof.py in children, with the library judged and with stock where a kernel is accused."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from bc250studio.board import presets
from bc250studio.errors import JobFailed, ProofFailed, clean
from bc250studio.jobs.progress import Progress, silent
from bc250studio.jobs.spawn import child_environment
from bc250studio.kernels import store
from bc250studio.kernels.products import Product
from bc250studio.kernels.runtime import runner
from bc250studio.kernels.switch import VARIABLE

LOSS_LIMIT = 1e-3
"""Largest relative difference of a loss between stock and tuned kernels over twelve steps with the same seed."""
TIMEOUT_S = 3600


def prove(
    *,
    device: str = "auto",
    library: store.Stored | None = None,
    environment: Mapping[str, str] | None = None,
    products: Sequence[Product] = (),
    dtypes: Sequence[str] | None = None,
    quick: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Judge the kernels of ``library`` (None: rocBLAS's own, or whatever CUDA and the CPU have).

    Every number type and layout over awkward shapes, the ``products`` given and every size the library was tuned
    for, each twice against float64; gradients, norms, fifty steps; for a tuned library also a fixed-seed run
    against stock. ``environment`` is added to the child's (TunableOp's switches). The verdict is kept for
    :func:`switch.decide` when a library was named.

    Returns the record: ``verdict`` ``passed`` or ``failed``, ``faults`` as sentences, and all figures.

    Raises:
        JobFailed: the child cannot be run.
    """
    sizes = list(products)
    if library is not None:
        from bc250studio.kernels import selection

        sizes += selection.open_library(library.folder, str(library.about.get("architecture") or "gfx1013")).sizes()
    request = {
        "device": device,
        "dtypes": list(dtypes) if dtypes else None,
        "quick": quick,
        "shapes": [_as_shape(p) for p in _unique(sizes)],
    }
    record = run_child(request, library, progress, environment)
    record["library"] = library.name if library else "stock"
    failures = record["products"]["failures"]
    record["faults"] = [f"{f['name']}: {f['fault']} (attempt {f['attempt']})" for f in failures]
    record["faults"] += [
        f"{c['name']}: " + (c["fault"] if c.get("fault") else f"off by {c['measured']:.3g}, limit {c['limit']:g}")
        for c in record.get("training", [])
        if not c["passed"]
    ]
    if failures and library is not None:
        record["blame"] = _blame(failures, device, progress)
    if library is not None and record["verdict"] == "passed":
        _compare_losses(record, device, library, progress)
    if library is not None:
        found = runner()
        key = store.proof_key(found.torch, found.build, library.digest, str(record.get("chip")))
        record["proof"] = str(store.write_proof(key, record))
    return record


def insist(record: Mapping[str, Any]) -> None:
    """Raise when a proof failed.

    Raises:
        ProofFailed: names type, layout and shape of the first wrong product.
    """
    if record["verdict"] != "passed":
        more = f" and {len(record['faults']) - 1} more" if len(record["faults"]) > 1 else ""
        blame = f" {record['blame']}" if record.get("blame") else ""
        raise ProofFailed(
            f"The kernels ({record['library']}) on {record['device']} are wrong: {record['faults'][0]}{more}.{blame}"
        )


def _compare_losses(record: dict[str, Any], device: str, library: store.Stored, progress: Progress) -> None:
    progress("fixed-seed runs, stock and tuned", None, None)
    stock = run_child({"device": device, "loss_run": True}, None, progress)["losses"]
    tuned = run_child({"device": device, "loss_run": True}, library, progress)["losses"]
    runs = {}
    for dtype in stock:
        difference = max(abs(a - b) / max(abs(a), 1e-9) for a, b in zip(stock[dtype], tuned[dtype], strict=True))
        passed = difference <= LOSS_LIMIT  # a NaN is not
        runs[dtype] = {"stock": stock[dtype], "tuned": tuned[dtype], "difference": difference, "passed": passed}
        if not passed:
            record["verdict"] = "failed"
            record["faults"].append(
                f"losses of a fixed-seed run in {dtype} differ by {difference:.2g} between stock and tuned kernels"
            )
    record["loss_runs"] = runs


def _blame(failures: Sequence[Mapping[str, Any]], device: str, progress: Progress) -> str:
    """Repeat what failed with rocBLAS's own kernels: when those fail too, the kernels are not to blame."""
    progress("repeating what failed with rocBLAS's own kernels", None, None)
    fields = ("dtype", "layout", "m", "n", "k", "batch", "what", "alpha", "beta")
    only = [{name: failure[name] for name in fields} for failure in failures[:64]]
    again = run_child({"device": device, "only": only, "training": False}, None, progress)["products"]["failures"]
    suspect = "suspect the driver or the memory first (docs/board.md)"
    if not again:
        return "rocBLAS's own kernels compute the same products rightly: the tuned kernels are at fault; use stock."
    if len(again) < len(only):
        return f"rocBLAS's own kernels fail in {len(again)} of these {len(only)} too; {suspect}."
    return f"rocBLAS's own kernels fail in the same products, so the tuned ones are not to blame; {suspect}."


def run_child(
    request: Mapping[str, Any],
    library: store.Stored | None,
    progress: Progress,
    extra: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A proof.py of the runner's Python with this library; its narration goes to ``progress``.

    Raises:
        JobFailed: it cannot be started or ends badly.
    """
    python = runner().python
    environment = child_environment({**environment_for(library), **(extra or {})})
    if library is None:
        environment.pop(VARIABLE, None)
    try:
        child = subprocess.Popen(
            [python, "-m", "bc250studio.kernels.proof"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
    except OSError as error:
        raise JobFailed(f"The proof cannot be started with {clean(python)}: {error}.") from error
    said: list[str] = []

    def listen() -> None:
        assert child.stderr is not None
        for line in child.stderr:
            said.append(clean(line.rstrip(), 300))
            progress(said[-1], None, None)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    timer = threading.Timer(TIMEOUT_S, child.kill)
    timer.start()
    try:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(json.dumps(request))
        child.stdin.close()
        output = child.stdout.read()
        code = child.wait()
    finally:
        timer.cancel()
        child.kill()
        child.wait()
    listener.join(timeout=5)
    if code != 0:
        tail = " | ".join(said[-3:]) or "no message"
        if "No module named 'torch'" in tail:
            tail = "it has no torch; set [runtime] python to the Python that trains"
        raise JobFailed(f"The proof ended with exit code {code} under {clean(python)}: {tail}")
    record = json.loads(output.strip().splitlines()[-1])
    assert isinstance(record, dict)
    return record


def environment_for(library: store.Stored | None) -> dict[str, str]:
    """The chip's own variables and the library to be loaded, as a run would get them."""
    variables = {v.name: v.value for v in presets.detect().preset.environment}
    if library is not None:
        variables[VARIABLE] = str(library.folder)
    return variables


def _unique(products: Sequence[Product]) -> list[Product]:
    return list({p.key: p for p in products}.values())


def _as_shape(product: Product) -> dict[str, Any]:
    return {name: getattr(product, name) for name in ("m", "n", "batch", "k", "dtype", "layout")}
