"""The proof is green on right kernels and red on wrong ones, and says which; children, exit codes and blame."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bc250studio.cli import main as cli
from bc250studio.errors import ProofFailed
from bc250studio.jobs.spawn import child_environment
from bc250studio.kernels import prove, store
from bc250studio.kernels.cases import Case, standard, tuned
from bc250studio.kernels.products import Product
from tests.kernel_tables import write_library

torch = pytest.importorskip("torch")

from bc250studio.kernels import proof  # noqa: E402

CPU = torch.device("cpu")


def test_every_type_and_layout_meets_at_least_eleven_shapes_from_one_up() -> None:
    cases = list(standard())
    for dtype in ("fp32", "fp16", "bf16"):
        for layout in ("NN", "NT", "TN"):
            mine = [c for c in cases if (c.dtype, c.layout) == (dtype, layout)]
            assert len({(c.m, c.n, c.k) for c in mine}) >= 11
            assert (1, 1, 1) in {(c.m, c.n, c.k) for c in mine}
            assert {c.what for c in mine} == {
                "plain", "nan in C", "alpha beta", "padded", "strided batch", "broadcast A", "broadcast B",
            }  # fmt: skip


@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
@pytest.mark.parametrize("what", ["plain", "padded", "broadcast A"])
def test_operands_reach_the_blas_in_the_layout_they_claim(layout: str, what: str) -> None:
    from bc250studio.kernels.walk import Recorder

    case = Case("fp32", layout, 12, 10, 14, 3 if "broadcast" in what else 1, what)
    a, b, c = proof.operands(case)
    with Recorder() as recorder:
        proof.multiply(case, proof._on(CPU, a), proof._on(CPU, b), c)
    assert [(key[0], key[1], key[3], key[5]) for key in recorder.counts] == [(12, 10, 14, layout)]


def test_right_kernels_pass() -> None:
    found = proof.prove_products(standard(quick=True), CPU)
    assert not found["failures"] and all(group["elements"] <= 1 for group in found["groups"].values())


def planted(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    """Replace torch.mm for fp16 with K-tailed sizes by ``wrong(product, a, b)``; the rest stays right."""
    right = torch.mm

    def mm(a: Any, b: Any) -> Any:
        result = right(a, b)
        if a.dtype is torch.float16 and a.stride(-1) == 1 and b.stride(-1) != 1 and a.shape[1] == 65:
            return wrong(result, a, b)
        return result

    monkeypatch.setattr(torch, "mm", mm)


WRONG = {
    "a K tail left out": lambda right, a, b: (a[:, :64].float() @ b[:64].float()).half(),
    "one element off": lambda right, a, b: right.clone().index_put_(
        (torch.tensor(2), torch.tensor(3)), torch.tensor(0.5).half(), accumulate=True
    ),
    "not a number": lambda right, a, b: right / torch.zeros_like(right),
    "accumulated in 16 bits": lambda right, a, b: sum(
        (a[:, k : k + 1] * b[k : k + 1] for k in range(65)), torch.zeros_like(right)
    ),
    "every element a percent off": lambda right, a, b: right * 1.01,
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_planted_wrong_product_is_named_by_type_layout_and_shape(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, WRONG[fault])
    record = proof.run({"device": "cpu", "dtypes": ["fp16"], "layouts": ["TN", "NN"], "quick": True, "training": False})
    assert record["verdict"] == "failed"
    assert {(f["dtype"], f["layout"], f["m"], f["n"], f["k"]) for f in record["products"]["failures"]} == {
        ("fp16", "TN", 17, 33, 65)
    }
    assert record["products"]["failures"][0]["name"].startswith("fp16 TN 17x33x65")


def test_large_products_are_seen_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampled rows may miss one wrong row of a thousand; the projection does not."""
    case = next(iter(tuned([Product(700, 1000, 1, 640, "fp32", "TN")])))
    a, b, c = proof.operands(case)
    result = proof.multiply(case, a, b, c)
    assert proof.WHOLE_FLOPS < 2.0 * 700 * 1000 * 640
    assert proof.judge(case, a, b, c, result)[0]
    rows = set(torch.randperm(1000, generator=torch.Generator().manual_seed(7))[: proof.SAMPLED_ROWS].tolist())
    hidden = next(row for row in range(1000) if row not in rows)
    result[0, hidden] = 0
    passed, measured, fault = proof.judge(case, a, b, c, result)
    assert not passed and measured["projection"] > 1 and "whole" in fault


def test_gradients_norms_and_steps_agree_with_float64() -> None:
    from bc250studio.kernels.proof_training import training_checks

    checks = training_checks(CPU)
    assert len(checks) == 7 and all(check["passed"] for check in checks)


def test_wrong_gradients_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from bc250studio.kernels import proof_training

    silu = torch.nn.functional.silu
    monkeypatch.setattr(torch.nn.functional, "silu", lambda x: silu(x) if x.dtype is torch.float64 else silu(x) * 1.001)
    assert not proof_training._check(
        "g", proof_training.LIMITS["fp32"], lambda: proof_training._gradients(CPU, torch.float32)
    )["passed"]


def test_the_command_proves_and_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["kernels", "prove", "--device", "cpu", "--quick", "--types", "fp32", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["verdict"] == "passed" and record["products"]["cases"] == 36 and record["library"] == "stock"


def test_a_failed_proof_exits_3_and_names_the_product(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = {
        **proof.case_dict(Case("bf16", "NT", 5, 7, 3)),
        "name": "bf16 NT 5x7x3 (M x N x K), plain",
        "attempt": 1,
        "fault": "wrong",
    }
    record = {
        "verdict": "failed", "device": "cuda", "chip": "gfx1013", "chip_name": "x", "torch": "2", "seconds": 1.0,
        "products": {"cases": 1, "groups": {}, "failures": [failure]},
    }  # fmt: skip
    monkeypatch.setattr(prove, "run_child", lambda *_, **__: json.loads(json.dumps(record)))
    assert cli.main(["kernels", "prove"]) == 3
    assert "bf16 NT 5x7x3" in capsys.readouterr().err


def stored(tmp_path: Path) -> store.Stored:
    folder = write_library(tmp_path / "l", {("fp16", "TN"): {(2048, 1024, 2048): 0}})
    return store.Stored("l", folder, {"architecture": "gfx1013"})


@pytest.mark.parametrize(
    ("stock_fails", "expected"), [(False, "the tuned kernels are at fault"), (True, "suspect the driver")]
)
def test_a_failure_is_repeated_with_stock_before_a_kernel_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stock_fails: bool, expected: str
) -> None:
    asked: list[tuple[dict[str, Any], str | None]] = []
    failure = {
        **proof.case_dict(Case("fp16", "TN", 17, 33, 65)),
        "name": "fp16 TN 17x33x65",
        "attempt": 2,
        "fault": "wrong",
    }

    def child(
        request: dict[str, Any], library: store.Stored | None, _progress: Any, _extra: Any = None
    ) -> dict[str, Any]:
        asked.append((request, library.name if library else None))
        failed = [failure] if library or stock_fails else []
        return {
            "verdict": "failed" if failed else "passed",
            "device": "cuda",
            "chip": "gfx1013",
            "products": {"cases": 1, "groups": {}, "failures": failed},
        }

    monkeypatch.setattr(prove, "run_child", child)
    record = prove.prove(library=stored(tmp_path))
    assert [name for _, name in asked] == ["l", None]
    assert asked[0][0]["shapes"] == [{"m": 2048, "n": 1024, "batch": 1, "k": 2048, "dtype": "fp16", "layout": "TN"}], (
        "every tuned size"
    )
    assert asked[1][0]["only"][0]["layout"] == "TN"
    assert expected in record["blame"]
    assert json.loads(Path(record["proof"]).read_text())["verdict"] == "failed"
    with pytest.raises(ProofFailed, match="fp16 TN 17x33x65"):
        prove.insist(record)


def test_losses_that_differ_between_stock_and_tuned_fail_the_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def child(
        request: dict[str, Any], library: store.Stored | None, _progress: Any, _extra: Any = None
    ) -> dict[str, Any]:
        if request.get("loss_run"):
            return {"losses": {"fp16": [2.0, 1.9 if library else 1.8]}}
        return {
            "verdict": "passed",
            "device": "cuda",
            "chip": "gfx1013",
            "products": {"cases": 1, "groups": {}, "failures": []},
        }

    monkeypatch.setattr(prove, "run_child", child)
    record = prove.prove(library=stored(tmp_path))
    assert record["verdict"] == "failed" and "losses of a fixed-seed run in fp16" in record["faults"][0]


def test_the_fixed_seed_run_learns_and_repeats_itself() -> None:
    from bc250studio.kernels.proof_training import loss_run

    one, two = (loss_run(CPU, torch.float32, steps=6, width=64, tokens=64) for _ in range(2))
    assert one == two and all(loss == loss for loss in one)


def test_the_child_carries_the_library_in_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prove.environment_for(stored(tmp_path))["ROCBLAS_TENSILE_LIBPATH"] == str(tmp_path / "l")
    assert "ROCBLAS_TENSILE_LIBPATH" not in prove.environment_for(None)


def test_nothing_but_the_proof_needs_torch() -> None:
    script = """
import sys, importlib, pkgutil
class No:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers"): raise ImportError("blocked " + name)
sys.meta_path.insert(0, No())
import bc250studio.kernels as k
names = [m.name for m in pkgutil.iter_modules(k.__path__)]
for name in names:
    if name != "proof": importlib.import_module("bc250studio.kernels." + name)
import bc250studio.cli.kernels_shapes, bc250studio.cli.kernels_library, bc250studio.bench.recipes_gemm
print(len(names))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=child_environment())
    assert done.returncode == 0, done.stderr
