"""From shapes to a prediction, through a stand-in for Tensile (tests/standin_tensile) that misbehaves on request."""
# ruff: noqa: E501

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bc250studio import settings
from bc250studio.errors import BadInput, JobFailed
from bc250studio.jobs import JobFolder, control
from bc250studio.jobs.folder import read_json
from bc250studio.kernels import (
    adopt,
    build,
    chip,
    logic,
    plan,
    predict,
    selection,
    shapes,
    store,
    toolchain,
    tune,
    watch,
)
from bc250studio.kernels.products import Product, ShapeList, merged

STANDIN = Path(__file__).parents[1] / "standin_tensile"
STRUCTURE = {
    "linears": [{"name": "up_proj", "in": 256, "out": 512, "layers": 2, "first": 0}],
    "attention": {"layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 64},
    "head": {"in": 256, "out": 4096, "tied": True},
}


def shape_list(dtype: str = "fp16", tokens: int = 512, layouts: tuple[str, ...] = ("TN", "NN", "NT")) -> ShapeList:
    products = merged(shapes.products_of(STRUCTURE, shapes.Step(tokens=tokens, dtype=dtype, loss_chunk=256)))
    products = [product for product in products if product.layout in layouts]
    return ShapeList("a test model", [tokens], 16, products)


def stock_logic(folder: Path) -> Path:
    """One fallback file as rocBLAS ships them."""
    folder.mkdir(parents=True)
    kind = {"DataType": 4, "DestDataType": 4, "ComputeDataType": 0, "TransposeA": False, "TransposeB": False}
    items = [
        {"MinimumRequiredVersion": "4.3.0"},
        "hip",
        "fallback",
        ["Device 0000"],
        kind,
        [{"SolutionIndex": 0}],
        [2, 3, 0, 1],
        [[[64, 64, 1, 64], [0, 1.0]]],
        None,
    ]
    (folder / "hip_Cijk_Ailk_Bljk_HHS_BH.yaml").write_text(yaml.safe_dump(items))
    return folder


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ROCm that is only names, the stand-in as the user's Tensile, and host timing as on any machine without a GPU."""
    rocm = tmp_path / "rocm" / "bin"
    rocm.mkdir(parents=True)
    for name in ("amdclang++", "clang-offload-bundler"):
        (rocm / name).write_text("#!/bin/sh\n")
        (rocm / name).chmod(0o755)
    monkeypatch.setenv("ROCM_PATH", str(rocm.parent))
    settings.put("kernels.tensile", str(STANDIN))
    monkeypatch.setattr(tune, "timers", lambda: (False, "torch sees no GPU here"))
    return rocm.parent


def misbehave(monkeypatch: pytest.MonkeyPatch, **faults: str) -> None:
    monkeypatch.setenv("STANDIN", json.dumps({part.replace("_", "-"): fault for part, fault in faults.items()}))


def tuned(job: JobFolder) -> dict[str, Any]:
    verdicts = tune.Tuning(job).run()
    return {name: record["verdict"] for name, record in verdicts.items()}


def test_from_shapes_to_a_prediction_with_a_hang_and_a_crash_inside(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    board = chip.bc250()
    wanted = ShapeList("m", [512], 16, merged([*shape_list("fp16").products, *shape_list("fp32").products]))
    misbehave(monkeypatch, fp16_nt="hang", fp32_tn="crash")
    job = tune.create(wanted, board, most=6, widen=False, quiet_s=1.5)
    verdicts = tuned(job)
    assert verdicts == {
        "fp16-tn": "done",
        "fp16-nn": "done",
        "fp16-nt": "hung",
        "fp32-tn": "failed",
        "fp32-nn": "done",
        "fp32-nt": "done",
    }
    # the live table, as plain lines and as a file
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fp16-tn")]
    sizes, designs = (
        len(getattr(next(p for p in plan.plan(wanted, board, 6).parts if p.name == "fp16-tn"), w))
        for w in ("products", "designs")
    )
    assert len(lines) == sizes * designs and "% of roofline" in lines[-1] and "GFLOPS" in lines[-1]
    assert set(read_json(job.path / "tune" / "live.json")["best"]) >= {"fp16-tn", "fp16-nn", "fp32-nn"}
    # logic: tag off, nearest-size tables for 16 bits, exact ones for fp32
    files = {(item.dtype, item.layout): item for item in logic.read_folder(job.path / "tune" / "logic")}
    assert set(files) == {("fp16", "TN"), ("fp16", "NN"), ("fp32", "NN"), ("fp32", "NT")}
    assert files["fp16", "TN"].distance == "Euclidean" and files["fp32", "NN"].distance == "Equality"
    assert all(
        item.metric in (None, "DeviceEfficiency") and "cyan_skillfish" in item.path.name for item in files.values()
    )
    # build inputs, library, prediction
    place, said = build.build(job.path / "tune" / "logic", name="made", stock=stock_logic(tmp_path / "stock"))
    assert store.library("made").about["architecture"] == "gfx1013" and any("1 fallback" in line for line in said)
    found = predict.predict(selection.open_library(place / "library"), wanted)
    kinds = {(row["dtype"], row["layout"]): row["kind"] for row in found["shapes"]}
    assert kinds["fp16", "TN"] == "tuned" and kinds["fp16", "NT"] == "fallback" and kinds["fp32", "TN"] == "fallback"
    exact = [row for row in found["shapes"] if row["kind"] == "tuned" and row["distance"] == 0]
    assert len(exact) >= sum(len(item.rows) for item in files.values()) - 2 and found["shares"]["none"] == 0
    assert not [p for p in os.listdir("/proc") if p.isdigit() and "tensile_client" in _command(int(p))], (
        "nothing hangs on"
    )


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def test_a_second_run_goes_on_where_the_first_stopped(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    misbehave(monkeypatch, fp16_nn="crash")
    job = tune.create(shape_list(), chip.bc250(), most=4, widen=False)
    assert tuned(job) == {"fp16-tn": "done", "fp16-nn": "failed", "fp16-nt": "done"}
    before = (job.path / "tune" / "fp16-tn.json").read_bytes()
    misbehave(monkeypatch)
    assert set(tuned(job).values()) == {"done"}
    assert (job.path / "tune" / "fp16-tn.json").read_bytes() == before, "a finished part is not run again"
    assert sum("is done already" in e["text"] for e in job.events()) == 2


@pytest.mark.parametrize(("fault", "verdict", "reason"), [
    ("no csv", "failed", "left no results"),
    ("rejected", "failed", "rejected every kernel"),
    ("crash", "failed", "left no results"),
    ("failed validation", "done", "sizes"),
    ("slow", "done", "sizes"),
    ("cu efficiency", "done", "sizes"),
])  # fmt: skip
def test_each_fault_ends_in_words(
    tools: Path, monkeypatch: pytest.MonkeyPatch, fault: str, verdict: str, reason: str
) -> None:
    misbehave(monkeypatch, fp16_tn=fault)
    job = tune.create(shape_list(layouts=("TN",)), chip.bc250(), most=4, widen=False, quiet_s=30)
    if verdict == "failed":
        with pytest.raises(JobFailed, match=reason):
            tuned(job)
    else:
        tuned(job)
    record = read_json(job.path / "tune" / "fp16-tn.json")
    assert record["verdict"] == verdict and reason in record["why"], record
    if fault == "cu efficiency":
        assert logic.read(next((job.path / "tune" / "logic").glob("*Alik_Bljk*"))).metric is None


@pytest.mark.parametrize("fault", ["negative", "impossible"])
def test_impossible_times_never_win(tools: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    misbehave(monkeypatch, fp16_tn=fault)
    job = tune.create(shape_list(layouts=("TN",)), chip.bc250(), most=4, widen=False)
    tuned(job)
    record = read_json(job.path / "tune" / "fp16-tn.json")
    assert record["verdict"] == "done" and record["rejected"] > 0
    item = logic.read(next((job.path / "tune" / "logic").glob("*Alik_Bljk*")))
    ceiling = chip.bc250().peak_tflops * 1000
    assert item.rows and all(0 < speed <= 1.1 * ceiling for _, _, speed in item.rows)


def test_slow_shapes_get_a_second_pass_with_new_designs(tools: Path) -> None:
    job = tune.create(shape_list(), chip.bc250(), most=3, widen=True)
    verdicts = tuned(job)
    second = [name for name in verdicts if name.endswith("-2")]
    assert second and all(verdicts[name] == "done" for name in second)
    first_pass = yaml.safe_load((job.path / "tune" / "plan" / f"{second[0][:-2]}.yaml").read_text())
    second_pass = yaml.safe_load((job.path / "tune" / "plan" / f"{second[0]}.yaml").read_text())
    groups = [c["BenchmarkProblems"][0][1]["ForkParameters"][0]["Groups"][0] for c in (first_pass, second_pass)]
    assert not [d for d in groups[1] if d in groups[0]]
    for item in logic.read_folder(job.path / "tune" / "logic"):
        assert len({size for size, _, _ in item.rows}) == len(item.rows), "passes are merged, the faster kernel wins"


def test_a_stop_request_ends_the_group_and_keeps_what_is_done(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    misbehave(monkeypatch, fp16_nn="hang")
    job = tune.create(shape_list(), chip.bc250(), most=4, widen=False, quiet_s=600)
    tuning = tune.Tuning(job)
    tell = tuning.say

    def say(line: str) -> None:
        tell(line)
        if line.startswith("fp16-nn"):
            control.ask(job, "stop")

    tuning.say = say  # type: ignore[method-assign]
    verdicts = tuning.run()
    assert tuning.stopped and "fp16-nn" not in verdicts and not (job.path / "tune" / "fp16-nn.json").exists()


def test_the_job_process_writes_state_events_and_log(tools: Path) -> None:
    from bc250studio.jobs import spawn

    job = tune.create(shape_list(layouts=("TN",)), chip.bc250(), most=2, widen=False)
    child = spawn.spawn(job, spawn.python_job("bc250studio.kernels.tune", str(job.path)), "tune")
    assert child.wait(timeout=120) == 0
    state = job.state()
    assert state["phase"] == "done" and state["parts_done"] == state["parts"] == 1
    assert "% of roofline" in (job.path / "logs" / "tune.log").read_text()
    assert "timed by the host" in job.events()[0]["text"]


def test_an_unpatched_tensile_is_refused_before_anything_runs(tmp_path: Path) -> None:
    package = tmp_path / "Tensile"
    (package / "bin").mkdir(parents=True)
    (package / "bin" / "Tensile").write_text("")
    (package / "Common.py").write_text(
        'globalParameters["SupportedISA"] = [(10,1,0)]\narchitectureMap = {"gfx1010": "navi10"}\n'
    )
    settings.put("kernels.tensile", str(tmp_path))
    with pytest.raises(BadInput, match="does not know gfx1013"):
        tune.create(shape_list(), chip.bc250())


def test_building_says_what_is_missing(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="stock-logic"):
        build.build(tmp_path)
    with pytest.raises(BadInput, match="no logic file"):
        build.build(stock_logic(tmp_path / "s").parent / "nothing", stock=tmp_path / "s")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "none"))
    if not Path("/opt/rocm").exists():
        with pytest.raises(BadInput, match="No ROCm compiler"):
            toolchain.find()


def test_classes_without_gain_are_left_out_of_a_build(tools: Path, tmp_path: Path) -> None:
    job = tune.create(shape_list(), chip.bc250(), most=2, widen=False)
    tuned(job)
    stock = stock_logic(tmp_path / "stock")
    place, said = build.build(
        job.path / "tune" / "logic", name="x", stock=stock, leave_out=[("fp16", "NT")], equality=[("fp16", "NN")]
    )
    library = selection.open_library(place / "library")
    product = shape_list().products[0]
    assert library.hit(Product(product.m, product.n, 1, product.k + 1, "fp16", "NT")).kind == "fallback"
    assert library.hit(Product(40, 40, 1, 40, "fp16", "TN")).kind == "tuned"
    assert library.hit(Product(40, 40, 1, 40, "fp16", "NN")).kind == "fallback", "only exactly tuned sizes"
    assert any("no gain" in line for line in said)


def test_adopting_logic_builds_it_first(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tune.create(shape_list(layouts=("TN",)), chip.bc250(), most=2, widen=False)
    tuned(job)
    stock = stock_logic(tmp_path / "rocBLAS" / "library/src/blas3/Tensile/Logic/asm_full" / "hip")
    (tmp_path / "Tensile").symlink_to(STANDIN / "Tensile")
    settings.put("kernels.tensile", str(tmp_path))
    record = adopt.adopt(job.path / "tune" / "logic", name="mine", prove_it=False)
    assert stock.is_dir() and record["name"] == "mine" and record["classes"] == ["fp16 TN"]
    assert "Not proven" in record["said"][-1]


def test_a_build_that_fails_leaves_a_log_and_no_library(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tune.create(shape_list(layouts=("TN",)), chip.bc250(), most=2, widen=False)
    tuned(job)
    monkeypatch.setattr(
        build,
        "command",
        lambda *_: [
            sys.executable,
            "-c",
            "import sys; print('ModuleNotFoundError: No module named \\'msgpack\\''); sys.exit(1)",
        ],
    )
    with pytest.raises(JobFailed, match=r"lacks msgpack.*Log:"):
        build.build(job.path / "tune" / "logic", stock=stock_logic(tmp_path / "stock"))
    assert not store.libraries() and list((store.home() / "logs").glob("build-*.log"))


def test_install_builds_races_leaves_out_proves_and_uses(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The race and the proof need a board; here they answer what a board might."""
    from bc250studio.bench import recipes_gemm
    from bc250studio.cli import main as cli
    from bc250studio.kernels import prove

    job = tune.create(shape_list(), chip.bc250(), most=2, widen=False)
    tuned(job)
    capsys.readouterr()
    raced: list[list[Product]] = []

    def race(products: list[Product], library: store.Stored, options: Any, board: chip.Chip) -> dict[str, Any]:
        assert library is not None and board.compute_units == 40
        raced.append(products)
        gains = {"fp16 TN": 2.0, "fp16 NN": 1.5 if len(raced) == 1 else 0.7, "fp16 NT": 1.0}
        return {
            "results": {
                "classes": {f"{p.dtype} {p.layout}": {"gain": gains[f"{p.dtype} {p.layout}"]} for p in products}
            }
        }

    monkeypatch.setattr(recipes_gemm, "race", race)
    monkeypatch.setattr(
        prove,
        "prove",
        lambda **_: {
            "verdict": "passed",
            "chip": "gfx1013",
            "chip_name": "BC-250",
            "products": {"cases": 5},
            "faults": [],
        },
    )
    stock = stock_logic(tmp_path / "stock")
    assert cli.main(["kernels", "install", job.name, "--name", "mine", "--stock-logic", str(stock), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["verdict"] == "passed" and store.choice() == ("auto", "mine")
    assert {p.key for p in raced[0]} == {
        p.key for item in logic.read_folder(job.path / "tune" / "logic") for p in item.products
    }
    assert not {p.key for p in raced[1]} & {p.key for p in raced[0]}, "then sizes off the list"
    assert len(store.libraries()) == 1 and store.library("mine").about["left_out"] == ["fp16 NT"]
    library = selection.open_library(store.library("mine").folder)
    assert [library.hit(Product(40, 40, 1, 40, "fp16", o)).kind for o in ("TN", "NN", "NT")] == [
        "tuned",
        "fallback",
        "fallback",
    ]
    assert library.hit(next(p for p in raced[0] if p.layout == "NN")).kind == "tuned", "NN serves exactly its own sizes"
    assert cli.main(["kernels", "use", "stock"]) == 0 and store.choice()[0] == "stock"


# -- the watchdog ----------------------------------------------------------------------------------------------


def watched(tmp_path: Path, script: str, **options: Any) -> watch.Outcome:
    return watch.run(
        [sys.executable, "-u", "-c", script], folder=tmp_path, environment=os.environ, log=tmp_path / "log", **options
    )


def test_silence_ends_the_whole_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import subprocess, sys, time; c = subprocess.Popen([sys.executable, '-c', 'import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)']); print(c.pid, flush=True); time.sleep(600)"
    lines: list[str] = []
    monkeypatch.setattr(watch, "GRACE_S", 0.5)
    outcome = watched(tmp_path, script, on_line=lines.append, quiet_s=1.0)
    assert outcome.silent and not outcome.ok and "fell silent" in outcome.words
    assert not Path(f"/proc/{lines[0]}").exists() or "Z" in Path(f"/proc/{lines[0]}/stat").read_text().split()[2]


def test_a_growing_file_counts_as_life(tmp_path: Path) -> None:
    script = f"import time\nfor i in range(12):\n open({str(tmp_path / 'grow')!r}, 'a').write('x'); time.sleep(0.15)"
    assert watched(tmp_path, script, quiet_s=1.0, growing=lambda: [tmp_path / "grow"]).ok


def test_output_is_cleaned_for_the_screen_and_kept_whole_in_the_log(tmp_path: Path) -> None:
    lines: list[str] = []
    assert watched(tmp_path, "print('\\x1b[31mred\\x1b[0m'); print('a\\rb')", on_line=lines.append).code == 0
    assert lines == ["red", "a", "b"] and b"\x1b[31m" in (tmp_path / "log").read_bytes()


def test_the_command_line_plans_without_anything_running(tmp_path: Path) -> None:
    from bc250studio.jobs.spawn import child_environment
    from bc250studio.kernels import products

    file = tmp_path / "shapes.json"
    file.write_text(json.dumps(shape_list().as_dict(chip.bc250())))
    assert products.read(file).products
    done = subprocess.run(
        [sys.executable, "-m", "bc250studio.cli.main", "kernels", "plan", "--shapes", str(file), "--out", str(tmp_path / "plan"), "--json"],
        capture_output=True, text=True, env=child_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert {part["name"] for part in record["parts"]} == {"fp16-tn", "fp16-nn", "fp16-nt"}
    assert sorted(p.name for p in (tmp_path / "plan").glob("*.yaml")) == [
        "fp16-nn.yaml",
        "fp16-nt.yaml",
        "fp16-tn.yaml",
    ]
