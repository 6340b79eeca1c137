"""bench gemm: real timings on the CPU, sides in alternating processes, gains by class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bc250studio.bench import recipes_gemm
from bc250studio.errors import BadInput
from bc250studio.kernels import chip, store
from bc250studio.kernels.products import Product
from tests.kernel_tables import write_library

PRODUCTS = [
    Product(96, 64, 1, 80, "fp32", "TN", count=3),
    Product(64, 48, 2, 32, "bf16", "NT"),
    Product(40, 30, 1, 20, "fp32", "NN"),
]


def as_shapes(products: list[Product]) -> list[dict[str, Any]]:
    return [{n: getattr(p, n) for n in ("m", "n", "batch", "k", "dtype", "layout", "count", "role")} for p in products]


def test_every_shape_is_timed_by_the_host_on_a_cpu() -> None:
    pytest.importorskip("torch")
    found = recipes_gemm.measure(
        {"device": "cpu", "shapes": as_shapes(PRODUCTS), "window_ms": 2.0, "cool_below": None}, lambda *_: None
    )
    assert [s["name"] for s in found["shapes"]] == [p.name for p in PRODUCTS]
    assert all(s["seconds"] > 0 and s["timer"] == "host" for s in found["shapes"]) and found["gfx"] == ""


def test_a_timer_that_lies_is_not_believed() -> None:
    torch = pytest.importorskip("torch")
    from unittest import mock

    device = mock.Mock(type="cuda")
    with (
        mock.patch.object(recipes_gemm, "_window", side_effect=lambda work, finish, n, d: (0.05 * n, -1.0)),
        mock.patch.object(recipes_gemm, "_operand", side_effect=lambda b, r, c, t, dt, d: torch.zeros(b, r, c)),
        mock.patch.object(torch, "empty", side_effect=lambda *s, **_: torch.zeros(*s)),
        mock.patch.object(torch.cuda, "synchronize"),
        mock.patch.object(torch.cuda, "get_device_properties", return_value=mock.Mock(L2_cache_size=1 << 20)),
    ):
        found = recipes_gemm.time_product(PRODUCTS[0], device, 1.0)
    assert found["timer"] == "host" and found["seconds"] == pytest.approx(0.05) and "events say" in found["why"]


def test_stock_and_tuned_alternate_and_classes_get_their_gain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def worker(recipe: str, options: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
        tuned = "ROCBLAS_TENSILE_LIBPATH" in environment
        order.append("tuned" if tuned else "stock")
        shapes = [
            {"seconds": 1e-4 / (2 if tuned and s["layout"] == "TN" else 1), "timer": "events", "why": ""}
            for s in options["shapes"]
        ]
        return {"device": "x", "torch": "2", "gfx": "gfx1013", "cooling_limit_c": 55.0, "board": [], "shapes": shapes}

    monkeypatch.setattr(recipes_gemm, "run_in_worker", worker)
    library = store.Stored("mine", write_library(tmp_path, {("fp32", "TN"): {(96, 64, 80): 0}}), {})
    record = recipes_gemm.race(PRODUCTS, library, {"rounds": 3}, chip.bc250())
    assert order == ["stock", "tuned", "tuned", "stock", "stock", "tuned"]
    gains = {name: round(entry["gain"], 3) for name, entry in record["results"]["classes"].items()}
    assert gains == {"fp32 TN": 2.0, "bf16 NT": 1.0, "fp32 NN": 1.0}
    assert record["results"]["shapes"][0]["tuned_over_stock"] == pytest.approx(2)
    assert 0 < record["results"]["shapes"][0]["stock_of_roofline"] < 1
    assert "fp32 TN: " in recipes_gemm.text(record)


def test_the_command_keeps_a_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import json

    from bc250studio.bench import records
    from bc250studio.cli import main as cli
    from bc250studio.kernels.products import ShapeList

    file = tmp_path / "shapes.json"
    file.write_text(json.dumps(ShapeList("m", [1], 1, PRODUCTS).as_dict(chip.bc250())))
    monkeypatch.setattr(
        recipes_gemm,
        "run_in_worker",
        lambda recipe, options, environment: recipes_gemm.measure(options, lambda *_: None),
    )
    pytest.importorskip("torch")
    assert (
        cli.main(
            [
                "bench",
                "gemm",
                "--shapes",
                str(file),
                "--device",
                "cpu",
                "--rounds",
                "1",
                "--window-ms",
                "1",
                "--most",
                "2",
            ]
        )
        == 0
    )
    assert "stock TFLOPS" in capsys.readouterr().out
    assert [records.read(name)["kind"] for name in records.names()] == ["gemm"]
    assert cli.main(["bench", "gemm", "--shapes", str(file), "--rounds", "0"]) == BadInput.exit_code
