"""Designs, plans, gfx1013's instructions, TunableOp's file, what to install, and a real Tensile where one is given."""
# ruff: noqa: E501

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from bc250studio.errors import BadInput
from bc250studio.kernels import chip, designs, logic, logs, plan, products, results, tensile, tunableop
from bc250studio.kernels.products import Product, ShapeList
from bc250studio.paths import shipped

BOARD = chip.bc250()
CLASSES = [(dtype, layout) for dtype in ("fp32", "fp16", "bf16") for layout in ("NN", "NT", "TN")]


def minicpm(dtype: str = "fp16") -> ShapeList:
    found = products.read(shipped("assets/shapes/minicpm5-2b.json"))
    found.products = [Product(p.m, p.n, p.batch, p.k, dtype, p.layout, p.role, p.count) for p in found.products]
    return found


@pytest.mark.parametrize("name", sorted(p.name for p in shipped("assets/shapes").glob("*.config.json")))
def test_every_shipped_model_has_its_list_and_torchs_counter_agrees(name: str) -> None:
    config = json.loads(shipped(f"assets/shapes/{name}").read_text())
    found = products.read(shipped(f"assets/shapes/{name.removesuffix('.config.json')}.json"))
    assert found.tokens == [2048] and found.rank == 16
    assert found.flops_counted and abs(found.flops / found.flops_counted - 1) < 0.01
    vocabulary = [p for p in found.products if p.role == "output layer forward"]
    assert [p.m for p in vocabulary] == [config["vocab_size"]] and vocabulary[0].k == config["hidden_size"]


@pytest.mark.parametrize(("dtype", "layout"), CLASSES)
def test_every_candidate_keeps_within_the_chip(dtype: str, layout: str) -> None:
    pool = designs.candidates(dtype, layout)
    assert len(pool) > 500
    for design in pool[::37]:
        assert design.vgprs(dtype) <= 256 and design.lds_bytes(dtype) <= 65536
        assert design.threads % 32 == 0 and design.threads <= 256
        assert design.tile[0] % design.vector == 0 and 4 <= design.vector * chip.BYTES[dtype] <= 16


def test_a_tile_of_128_accumulators_fits_and_one_of_256_does_not() -> None:
    assert not designs.Design((16, 8), (16, 16), 16, 4).fault("fp16", "TN")
    assert "registers" in designs.Design((16, 16), (16, 16), 16, 4).fault("fp16", "TN")


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_a_plan_for_minicpm_has_three_parts_of_32_designs_and_fits_an_evening(dtype: str) -> None:
    made = plan.plan(minicpm(dtype), BOARD)
    assert {part.name for part in made.parts} == {f"{dtype}-{layout}" for layout in ("tn", "nn", "nt")}
    for part in made.parts:
        assert len(part.designs) == 32 == len(set(part.designs))
        assert 10 < part.seconds(BOARD) < 3600
        keys = [(p.m, p.n, p.k) for p in part.products]
        assert len(keys) == len(set(keys)), "the batch is not part of a nearest-size key"


def test_fewer_units_mean_other_designs() -> None:
    stock = plan.plan(minicpm(), chip.bc250(24, 1500))
    assert [p.designs for p in stock.parts] != [p.designs for p in plan.plan(minicpm(), BOARD).parts]


def test_thin_products_get_narrow_tiles_and_square_ones_wide_tiles() -> None:
    thin = designs.choose([Product(16, 2048, 1, 2048, "fp16", "TN", count=1)], BOARD, 4)
    square = designs.choose([Product(6144, 2048, 1, 2048, "fp16", "TN", count=1)], BOARD, 4)
    assert all(d.macro[0] <= 32 for d in thin)
    assert all(d.macro[0] * d.macro[1] >= 4096 for d in square)


def test_types_and_layouts_the_run_never_uses_are_not_planned() -> None:
    made = plan.plan(
        ShapeList("m", [1], 1, [Product(64, 64, 1, 64, "fp16", "TN"), Product(9, 9, 1, 9, "fp16", "TT")]), BOARD
    )
    assert [p.name for p in made.parts] == ["fp16-tn"] and "TT" in made.left_out[0]


def test_a_configuration_says_what_the_traps_need() -> None:
    part = plan.plan(minicpm(), BOARD).parts[0]
    config = yaml.safe_load(yaml.safe_dump(plan.config(part, "cyan_skillfish", kernel_time=False)))
    settings_ = config["GlobalParameters"]
    assert settings_["HardwareMonitor"] is False and settings_["PerformanceMetric"] == "DeviceEfficiency"
    assert settings_["CEqualD"] is True and settings_["PristineOnGPU"] is False and settings_["ExitOnFails"] == 0
    assert settings_["KernelTime"] is False and settings_["EnqueuesPerSync"] >= 100, (
        "the host's clock needs long windows"
    )
    problem, body = config["BenchmarkProblems"][0]
    assert (
        problem["HighPrecisionAccumulate"] is True and problem["DataType"] == "h" and problem["ComputeDataType"] == "s"
    )
    assert "MatrixInstruction" not in json.dumps(config)
    assert len(body["ForkParameters"][0]["Groups"][0]) == 32
    assert config["LibraryLogic"]["ScheduleName"] == "cyan_skillfish"


def test_a_second_pass_takes_only_slow_shapes_and_new_designs() -> None:
    first = plan.plan(minicpm(), BOARD)
    part = first.parts[0]
    roofline = {
        (p.m, p.n, p.batch, p.k): p.flops / p.count / BOARD.bound_s(p.m, p.n, p.batch, p.k, p.dtype) / 1e9
        for p in part.products
    }
    slow = next(iter(roofline))
    measured = {part.name: {size: (0.5 if size == slow else 0.9) * best for size, best in roofline.items()}}
    second = plan.widen(first, measured)
    assert [p.name for p in second.parts] == [f"{part.name}-2"]
    assert [(p.m, p.n, p.batch, p.k) for p in second.parts[0].products] == [slow]
    assert not set(second.parts[0].designs) & set(part.designs)


# -- the client's rows and tables ------------------------------------------------------------------------------

ROW = '0,3/10,7/32,Contraction_l_Alik_Bljk_Cijk_Dijk,"(2048,1024,1,2048)",Cijk_MT128x64x16_GSU1,PASSED,1234.5,6958.9,,'


def test_a_row_of_the_client_is_read_quoted_or_not() -> None:
    for line in (ROW, ROW.replace('"', "")):
        row = results.parse(line)
        assert row and row.size == (2048, 1024, 1, 2048) and row.valid and row.gflops == 6958.9
        assert (row.done, row.total) == (3 * 32 + 8, 320) and not row.fault(BOARD, "fp16")


@pytest.mark.parametrize(("old", "new", "words"), [
    ("PASSED", "FAILED", "failed"), ("1234.5", "-3", "a time of -3"), ("6958.9", "99999", "ceiling"), ("6958.9", "nan", "no number"),
])  # fmt: skip
def test_rows_that_cannot_be_do_not_count(old: str, new: str, words: str) -> None:
    row = results.parse(ROW.replace(old, new))
    assert row and words in row.fault(BOARD, "fp16")


@settings(deadline=None)
@given(st.text(max_size=120) | st.just(ROW).flatmap(lambda r: st.integers(0, len(r)).map(lambda n: r[:n])))
def test_no_line_crashes_the_reader(line: str) -> None:
    results.parse(line)


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet="GFlops,Size0123-\n\"' Cijk_nan", max_size=200))
def test_no_csv_crashes_the_reader(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.mktemp("csv") / "x.csv"
    file.write_text(text)
    try:
        table = results.read_csv(file, 1)
        table.reject_impossible(BOARD, "fp16")
        table.best()
    except BadInput:
        pass


def test_a_torn_last_row_is_not_a_measurement(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text(
        "GFlops, SizeI, SizeJ, SizeK, SizeL, LDD, LDC, LDA, LDB, Cijk_a, Cijk_b\n0, 64, 64, 1, 64, 1, 1, 1, 1, 5.0, -1\n1, 64, 64, 1, 12"
    )
    assert results.read_csv(file, 2).best() == {(64, 64, 1, 64): ("Cijk_a", 5.0)}


# -- logic files -----------------------------------------------------------------------------------------------


def logic_items(metric: str | None = "CUEfficiency") -> list:
    kind = {"DataType": 4, "TransposeA": True, "TransposeB": False}
    solutions = [{"SolutionIndex": i, "name": n} for i, n in enumerate("ab")]
    table = [[[64, 64, 1, 64, 64, 64, 64, 64], [0, 100.0]], [[128, 64, 2, 64, 1, 1, 1, 1], [1, 50.5]]]
    return [
        {"MinimumRequiredVersion": "4.44.0"},
        "gfx1013",
        "gfx1013",
        ["Device 13fe"],
        kind,
        solutions,
        [2, 3, 0, 1],
        table,
        None,
        None,
        metric,
        None,
        None,
        None,
    ]


def test_a_logic_file_survives_reading_and_writing(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(logic_items()))
    item = logic.read(tmp_path / "a.yaml")
    assert (item.dtype, item.layout, item.metric, item.distance) == ("fp16", "TN", "CUEfficiency", "Euclidean")
    assert item.set_metric() and not item.set_metric()
    item.set_distance("Equality")
    item.write(tmp_path / "b.yaml")
    again = logic.read(tmp_path / "b.yaml")
    assert again.items == item.items and again.metric is None and again.distance == "Equality"
    assert [(p.m, p.n, p.batch, p.k) for p in again.products] == [(64, 64, 1, 64), (128, 64, 2, 64)]


def test_two_passes_are_merged_by_the_faster_kernel(tmp_path: Path) -> None:
    slow, fast = logic_items(), logic_items()
    fast[7] = [[[64, 64, 1, 64, 64, 64, 64, 64], [1, 200.0]]]
    both = logic.merge(logic.Logic(tmp_path / "a", slow), logic.Logic(tmp_path / "b", fast))
    assert {size: (index, speed) for size, index, speed in both.rows} == {
        (64, 64, 1, 64): (3, 200.0),
        (128, 64, 2, 64): (1, 50.5),
    }
    assert [s["SolutionIndex"] for s in both.items[5]] == [0, 1, 2, 3]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 13),
    st.sampled_from([None, 3, "x", [], {}, [[1]], [[[1, 2, 3, 4], [9, 1.0]]], [[["a"] * 4, [0, 1]]]]),
)
def test_a_damaged_logic_file_is_refused_in_words(
    tmp_path_factory: pytest.TempPathFactory, index: int, value: object
) -> None:
    items = logic_items()
    items[index] = value
    file = tmp_path_factory.mktemp("logic") / "x.yaml"
    file.write_text(yaml.safe_dump(items))
    try:
        item = logic.read(file)
        assert item.products is not None and item.schedule is not None
    except BadInput as error:
        assert "logic file" in str(error)


# -- Tensile, the assembler, TunableOp -------------------------------------------------------------------------


def test_the_stand_in_is_read_like_a_tensile() -> None:
    found = tensile.inspect(Path(__file__).parents[1] / "standin_tensile")
    assert (found.version, found.knows, found.schedule) == ("4.44.0", True, "cyan_skillfish")


def test_tensile_is_never_run_to_look_at_it(tmp_path: Path) -> None:
    (tmp_path / "Tensile" / "bin").mkdir(parents=True)
    (tmp_path / "Tensile" / "bin" / "Tensile").write_text("")
    (tmp_path / "Tensile" / "Common.py").write_text(
        "raise SystemExit('run')\nSupportedISA = [(10,1,3)]\narchitectureMap: dict = {'gfx1013': 'gfx1013'}\n"
    )
    assert tensile.inspect(tmp_path).knows
    with pytest.raises(BadInput, match="holds no Tensile"):
        tensile.inspect(tmp_path / "Tensile" / "bin")


@pytest.mark.clang
@pytest.mark.parametrize(("instruction", "known"), [
    ("v_fma_mix_f32 v0, v1, v2, v3", True),
    ("v_pk_fma_f16 v0, v1, v2, v3", True),
    ("v_dot2_f32_f16 v0, v1, v2, v3", False),
    ("v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]", False),
    ("v_mfma_f32_32x32x1f32 a[0:31], v0, v1, a[0:31]", False),
    ("ds_read_b128 v[0:3], v4", True),
])  # fmt: skip
def test_the_chips_instructions_are_what_designs_assume(tmp_path: Path, instruction: str, known: bool) -> None:
    from bc250studio.board import clock

    found = clock.compilers()
    if not found:
        pytest.skip("no clang with the AMDGPU target (apt install clang lld)")
    done = subprocess.run(
        [found[0].path, "-target", "amdgcn-amd-amdhsa", "-mcpu=gfx1013", "-nogpulib", "-x", "assembler", "-c", "-o", str(tmp_path / "a.o"), "-"],
        input=instruction + "\n", capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode == 0) is known, done.stderr


TENSILE = os.environ.get("BC250STUDIO_TEST_TENSILE")


@pytest.mark.skipif(
    not TENSILE, reason="BC250STUDIO_TEST_TENSILE names no checkout of ROCm/Tensile patched for gfx1013"
)
@pytest.mark.slow
def test_the_real_front_end_takes_a_plan_and_rejects_nothing(tmp_path: Path) -> None:
    """Needs a Tensile checkout, ROCM_PATH with amdclang++ in it, and a Python with Tensile's packages
    (BC250STUDIO_TEST_TENSILE_PYTHON); docs/kernels.md says how. The client is a stand-in."""
    python = os.environ.get("BC250STUDIO_TEST_TENSILE_PYTHON", sys.executable)
    found = tensile.insist(tensile.inspect(Path(TENSILE or "")))
    made = plan.plan(minicpm(), BOARD, most=4)
    file = plan.write(plan.Plan("m", BOARD, made.parts[:1]), tmp_path / "plan", found.schedule)[0]
    client = tmp_path / "client"
    client.write_text(
        f'#!/bin/sh\nexec {python} {Path(__file__).parents[1]}/standin_tensile/Tensile/bin/tensile_client "$@"\n'
    )
    client.chmod(0o755)
    command = [python, str(found.program), str(file), str(tmp_path / "out"), "--prebuilt-client", str(client)]
    cache = os.environ.get("BC250STUDIO_TEST_TENSILE_CACHE")
    command += ["--asm-cache", cache] if cache else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    said = done.stdout.replace("\r", "\n")
    assert "Actual Solutions: 4 / 4" in said and "reject" not in said.lower(), said[-3000:] + done.stderr[-3000:]
    item = logic.read_folder(tmp_path / "out" / "3_LibraryLogic")[0]
    assert (item.dtype, item.layout) == (made.parts[0].dtype, made.parts[0].layout) and item.rows


def test_tunableops_file_names_the_products_that_its_log_would() -> None:
    listed = [
        Product(2048, 512, 1, 64, "fp16", "TN"),
        Product(8, 9, 12, 10, "bf16", "NT"),
        Product(1, 9, 1, 9, "fp32", "NN"),
    ]
    text = tunableop.untuned(listed)
    assert text.splitlines() == [
        "GemmTunableOp_Half_TN,tn_2048_512_64_ld_64_64_2048",
        "GemmStridedBatchedTunableOp_BFloat16_NT,nt_8_9_10_B_12_ld_8_9_8",
    ]
    assert {p.key for p in logs.parse(text, "x").products} == {p.key for p in listed[:2]}


def test_tunableops_choices_are_used_only_with_their_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    from bc250studio.kernels.runtime import digest

    tunableop.folder().mkdir(parents=True)
    tunableop.results_file().write_text("Validator,PT_VERSION,2.9\n")
    assert tunableop.proven("2.9") == {}
    proof = {"verdict": "passed", "torch": "2.9", "file": digest(tunableop.results_file())}
    (tunableop.folder() / "proof.json").write_text(json.dumps(proof))
    assert tunableop.proven("2.9")["PYTORCH_TUNABLEOP_TUNING"] == "0" and tunableop.proven("2.10") == {}
    tunableop.results_file().write_text("Validator,PT_VERSION,2.9\nchanged,x\n")
    assert tunableop.proven("2.9") == {}


# -- what to install -------------------------------------------------------------------------------------------


def test_classes_without_gain_stay_on_stock_and_greedy_ones_serve_only_their_sizes() -> None:
    from bc250studio.bench.recipes_gemm import decide

    found = decide(
        {"fp16 TN": {"gain": 3.0}, "fp16 NT": {"gain": 1.0}, "fp16 NN": {"gain": 2.0}, "fp32 NN": {"gain": 1.3}},
        {"fp16 TN": {"gain": 1.5}, "fp16 NN": {"gain": 0.8}},
    )
    assert found["leave_out"] == [("fp16", "NT")] and found["equality"] == [("fp16", "NN")] and found["keeps"]
    assert not decide({"fp16 NT": {"gain": 1.0}}, {})["keeps"]


def test_sizes_off_the_list_are_near_it_and_not_on_it() -> None:
    from bc250studio.bench.recipes_gemm import off_list

    tuned = [p for p in minicpm().products if p.layout == "TN"]
    beside = off_list(tuned)
    assert len(beside) == 6 and not {p.key for p in beside} & {p.key for p in tuned}


@pytest.mark.parametrize(("k", "largest"), [(16, 1), (256, 1), (2048, 8), (130560, 32)])
def test_kernels_that_split_k_are_not_tried_where_tensile_refuses_them(k: int, largest: int) -> None:
    chosen = designs.choose([Product(2048, 2048, 1, k, "fp16", "TN")], BOARD, 32)
    assert max(design.split for design in chosen) <= largest
