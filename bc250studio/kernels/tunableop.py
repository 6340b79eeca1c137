"""PyTorch's TunableOp for chips whose library has several kernels a size: offline, from our shape list, proven.

TunableOp only chooses among kernels the library already has. Its untuned file is written from the shape list, tuned by
torch in a child, and the result is used only after the same proof as a tuned library, with the file switched on.
Format: pytorch aten/src/ATen/cuda/tunable/README.md.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bc250studio import paths
from bc250studio.errors import JobFailed, ProofFailed, clean
from bc250studio.jobs.progress import Progress, silent
from bc250studio.jobs.spawn import child_environment
from bc250studio.kernels import prove, store
from bc250studio.kernels.products import Product, ShapeList, distinct
from bc250studio.kernels.runtime import digest, runner

TYPES = {"fp32": "float", "fp16": "Half", "bf16": "BFloat16"}
TIMEOUT_S = 3600.0

_CHILD = """
import sys, torch
from torch.cuda import tunable
if not torch.cuda.is_available():
    sys.exit("torch sees no GPU")
tunable.enable(True); tunable.tuning_enable(True)
tunable.set_filename(sys.argv[2])
tunable.tune_gemm_in_file(sys.argv[1])
tunable.write_file(sys.argv[2])
print(torch.cuda.get_device_name())
"""


def folder() -> Path:
    """Where its files lie."""
    return store.home() / "tunableop"


def results_file() -> Path:
    """The choices TunableOp made."""
    return folder() / "tunableop_results.csv"


def untuned(products: Iterable[Product]) -> str:
    """TunableOp's untuned file for these products, without duplicates.

    A line: signature, then ``tn_M_N_K_ld_A_B_C`` (batched: ``tn_M_N_K_B_b_ld_A_B_C``), leading dimensions packed.
    Products with a side of 1 are left out: offline tuning skips them.
    """
    lines: dict[str, None] = {}
    for p in products:
        if min(p.m, p.n, p.k) < 2 or p.layout == "TT":
            continue
        lda = p.k if p.layout[0] == "T" else p.m
        ldb = p.n if p.layout[1] == "T" else p.k
        batched = "StridedBatched" if p.batch > 1 else ""
        batch = f"_B_{p.batch}" if p.batch > 1 else ""
        shape = f"{p.layout.lower()}_{p.m}_{p.n}_{p.k}{batch}_ld_{lda}_{ldb}_{p.m}"
        lines[f"Gemm{batched}TunableOp_{TYPES[p.dtype]}_{p.layout},{shape}"] = None
    return "".join(f"{line}\n" for line in lines)


def tune(shapes: ShapeList, progress: Progress = silent) -> dict[str, Any]:
    """Tune offline and prove with the file in use.

    Returns ``said``, ``file``, ``verdict``.

    Raises:
        JobFailed: torch sees no GPU, or the tuning ended early. ProofFailed: the chosen kernels compute wrongly; the
        file is put aside.
    """
    place = paths.private_dir(folder())
    products = distinct(shapes.products)
    paths.write_atomic(place / "untuned.csv", untuned(products))
    progress(f"tuning {len(products)} products with TunableOp", None, None)
    command = [runner().python, "-c", _CHILD, str(place / "untuned.csv"), str(results_file())]
    environment = child_environment({**prove.environment_for(None), "PYTORCH_TUNABLEOP_ROTATING_BUFFER_SIZE": "0"})
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JobFailed(f"TunableOp could not be run: {clean(error, 200)}.") from error
    if done.returncode != 0 or not results_file().is_file():
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise JobFailed(f"TunableOp's offline tuning failed: {clean(last, 300)}.")
    chosen = sum(1 for line in results_file().read_text("utf-8", "replace").splitlines() if line.startswith("Gemm"))
    record = prove.prove(products=products, environment=environment_of(results_file()), progress=progress)
    about = {
        "verdict": record["verdict"],
        "torch": record["torch"],
        "chip": record["chip"],
        "file": digest(results_file()),
    }
    paths.write_atomic(place / "proof.json", json.dumps({**about, "record": record}))
    if record["verdict"] != "passed":
        results_file().replace(place / "refused.csv")
        raise ProofFailed(f"The kernels TunableOp chose are wrong: {record['faults'][0]}; its file is put aside.")
    said = [
        f"{chosen} products tuned on {record['chip_name']} and proven.",
        'Use it in a profile: kernels.library = "tunableop"',
    ]
    return {"said": said, "file": str(results_file()), "chosen": chosen, "verdict": record["verdict"]}


def environment_of(file: Path) -> dict[str, str]:
    """What makes torch use the choices without tuning further."""
    return {"PYTORCH_TUNABLEOP_ENABLED": "1", "PYTORCH_TUNABLEOP_TUNING": "0", "PYTORCH_TUNABLEOP_FILENAME": str(file)}


def proven(torch_version: str | None) -> dict[str, str]:
    """The environment of a run, or nothing where no proof of this very file with this torch is on record."""
    from bc250studio.jobs.folder import read_json

    about = read_json(folder() / "proof.json")
    if not results_file().is_file() or about.get("verdict") != "passed":
        return {}
    if about.get("torch") != torch_version or about.get("file") != digest(results_file()):
        return {}
    return environment_of(results_file())
