"""Which kernel a product meets, read from selection tables; tables edited; libraries adopted and switched."""
# ruff: noqa: E501

from __future__ import annotations

import json
from pathlib import Path

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bc250studio import profiles
from bc250studio.board import presets
from bc250studio.errors import BadInput, ProofFailed
from bc250studio.kernels import adopt, edit, predict, prove, runtime, selection, store, switch
from bc250studio.kernels.products import Product, ShapeList
from tests.kernel_tables import write_library

SIZES = {(2048, 1024, 2048): 0, (6144, 1024, 2048): 1, (16, 2048, 2048): 2}


def hit(folder: Path, m: int, n: int, k: int, dtype: str = "fp16", layout: str = "TN", batch: int = 1) -> selection.Hit:
    return selection.open_library(folder).hit(Product(m, n, batch, k, dtype, layout))


def test_an_exactly_tuned_size_meets_its_own_kernel(tmp_path: Path) -> None:
    write_library(tmp_path, {("fp16", "TN"): SIZES})
    found = hit(tmp_path, 6144, 1024, 2048)
    assert (found.kind, found.kernel, found.row, found.distance) == ("tuned", "tuned_MT64x64", (6144, 1024, 2048), 0)


def test_euclidean_tables_catch_every_size_of_their_class(tmp_path: Path) -> None:
    write_library(tmp_path, {("fp16", "TN"): SIZES})
    found = hit(tmp_path, 2000, 1000, 2048)
    assert (
        found.kind == "tuned"
        and found.row == (2048, 1024, 2048)
        and found.distance == pytest.approx((48**2 + 24**2) ** 0.5)
    )
    assert hit(tmp_path, 40000, 5, 7).far


def test_equality_tables_leave_other_sizes_to_the_fallback(tmp_path: Path) -> None:
    write_library(tmp_path, {("fp16", "TN"): {(2048, 1024, 1, 2048): 0}}, distance="Equality")
    assert hit(tmp_path, 2048, 1024, 2048).kind == "tuned"
    assert hit(tmp_path, 2048, 1024, 2049).kind == "fallback"
    assert hit(tmp_path, 2048, 1024, 2048, batch=2).kind == "fallback", "the batch counts under Equality"


def test_other_types_and_layouts_meet_the_fallback_and_none_without_it(tmp_path: Path) -> None:
    write_library(tmp_path / "a", {("fp16", "TN"): SIZES})
    assert hit(tmp_path / "a", 2048, 1024, 2048, "bf16").kind == "fallback"
    assert hit(tmp_path / "a", 2048, 1024, 2048, layout="NT").kind == "fallback"
    write_library(tmp_path / "b", {("fp16", "TN"): SIZES}, fallback=False)
    assert hit(tmp_path / "b", 2048, 1024, 2048, "bf16").kind == "none"


def test_a_tagged_library_is_never_used_until_the_tag_is_off(tmp_path: Path) -> None:
    write_library(tmp_path, {("fp16", "TN"): SIZES}, tag=True)
    assert edit.tagged(tmp_path) and hit(tmp_path, 2048, 1024, 2048).kind == "fallback"
    assert edit.strip_tag(tmp_path) == 1
    assert hit(tmp_path, 2048, 1024, 2048).kind == "tuned"
    assert edit.strip_tag(tmp_path) == 0


def test_a_kernel_whose_conditions_fail_gives_way_to_the_next_nearest(tmp_path: Path) -> None:
    conditions = {0: [{"type": "Free0SizeMultiple", "index": 0, "value": 8}]}
    write_library(tmp_path, {("fp16", "TN"): SIZES}, conditions=conditions)
    assert hit(tmp_path, 2048, 1024, 2048).kernel == "tuned_MT128x64"
    assert hit(tmp_path, 2047, 1024, 2048).kernel == "tuned_MT16x16", "the nearest needs M to be a multiple of 8"


def test_classes_without_gain_go_back_to_the_fallback(tmp_path: Path) -> None:
    write_library(tmp_path, {("fp16", "TN"): SIZES, ("fp16", "NT"): SIZES})
    root = tmp_path / "TensileLibrary_lazy_gfx1013.dat"
    assert edit.drop_classes(tmp_path, root, [("fp16", "NT"), ("fp32", "NN")]) == [("fp16", "NT")]
    assert hit(tmp_path, 2048, 1024, 2048, layout="NT").kind == "fallback"
    assert hit(tmp_path, 2048, 1024, 2048).kind == "tuned"


def test_the_tuned_sizes_of_a_library_are_listed_for_the_proof(tmp_path: Path) -> None:
    write_library(tmp_path, {("fp16", "TN"): SIZES, ("fp32", "NN"): {(8, 9, 10): 0}})
    sizes = {p.key for p in selection.open_library(tmp_path).sizes()}
    assert sizes == {(m, n, 1, k, "fp16", "TN") for m, n, k in SIZES} | {(8, 9, 1, 10, "fp32", "NN")}


def test_a_prediction_counts_the_work_and_warns_of_far_rows(tmp_path: Path) -> None:
    write_library(tmp_path, {("fp16", "TN"): {(2048, 1024, 2048): 0}})
    shapes = ShapeList(
        "m",
        [1],
        1,
        [
            Product(2048, 1024, 1, 2048, "fp16", "TN", count=3),
            Product(9000, 9, 1, 9, "fp16", "TN"),
            Product(5, 5, 1, 5, "fp32", "NN"),
        ],
    )
    found = predict.predict(selection.open_library(tmp_path), shapes)
    assert found["shares"]["tuned"] > 0.99 and found["shares"]["none"] == 0
    assert len(found["warnings"]) == 1 and "fp16 TN 9000x9x9" in found["warnings"][0]
    assert "tuned exactly" in predict.text(found) and json.dumps(found)


def test_a_folder_without_tables_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "Other_gfx906.dat").write_bytes(b"")
    with pytest.raises(BadInput, match=r"Other_gfx906\.dat"):
        selection.open_library(tmp_path)


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_crash_the_table_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.mktemp("dat") / "x.dat"
    file.write_bytes(data)
    with pytest.raises(BadInput):
        selection.read_dat(file)


NODES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "rows",
                    "map",
                    "predicate",
                    "library",
                    "table",
                    "key",
                    "index",
                    "properties",
                    "value",
                    "distance",
                ]
            ),
            inner
            | st.sampled_from(
                ["Hardware", "Problem", "Matching", "Placeholder", "TruePred", "And", "AMDGPU", "SizeMultiple"]
            ),
            max_size=5,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=40, deadline=None)
@given(NODES)
def test_no_tree_crashes_the_walk(tmp_path_factory: pytest.TempPathFactory, tree: object) -> None:
    folder = tmp_path_factory.mktemp("library")
    (folder / "TensileLibrary_lazy_gfx1013.dat").write_bytes(
        msgpack.packb({"solutions": [], "library": tree if isinstance(tree, dict) else {}}, default=str)
    )
    library = selection.open_library(folder)
    assert library.hit(Product(1, 2, 1, 3, "fp16", "TN")).kind in ("none", "tuned", "fallback")
    edit.strip_tag(folder)
    edit.drop_classes(folder, library.root, [("fp16", "TN")])


# -- adopting and switching ------------------------------------------------------------------------------------

RUNNER = runtime.Runner("/usr/bin/python3", "2.10.0", "7.2", None, None, None)
GFX1013 = presets.of("gfx1013")


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A proof that always passes, as the real one would on a chip these tests do not have."""
    proven: list[str] = []

    def record(*, library: store.Stored, **_: object) -> dict:
        proven.append(library.name)
        proof = {"verdict": "passed", "chip": "gfx1013", "chip_name": "BC-250", "products": {"cases": 3}, "faults": []}
        store.write_proof(store.proof_key(RUNNER.torch, RUNNER.build, library.digest, "gfx1013"), proof)
        return proof

    monkeypatch.setattr(prove, "prove", record)
    return proven


def profile(choice: str = "auto") -> profiles.Profile:
    return profiles.from_text(f"[kernels]\nlibrary = '{choice}'\n", "test").profile


def test_adopting_copies_strips_proves_and_uses(tmp_path: Path, passed: list[str]) -> None:
    theirs = write_library(tmp_path / "mine" / "library", {("fp16", "TN"): SIZES}, tag=True)
    before = {p.name: p.read_bytes() for p in theirs.iterdir()}
    record = adopt.adopt(theirs)
    assert record["name"] == "mine" and record["verdict"] == "passed" and passed == ["mine"]
    assert {p.name: p.read_bytes() for p in theirs.iterdir()} == before, "the owner's folder is not changed"
    stored = store.library("mine")
    assert selection.open_library(stored.folder).hit(Product(2048, 1024, 1, 2048, "fp16", "TN")).kind == "tuned"
    decision = switch.decide(profile(), GFX1013, RUNNER)
    assert decision.environment == {"ROCBLAS_TENSILE_LIBPATH": str(stored.folder)} and "proven" in decision.why


def test_stock_undoes_it(tmp_path: Path, passed: list[str]) -> None:
    adopt.adopt(write_library(tmp_path / "a", {("fp16", "TN"): SIZES}))
    store.choose("stock")
    assert switch.decide(profile(), GFX1013, RUNNER).environment == {}
    assert switch.decide(profile("tuned"), GFX1013, RUNNER).library is not None, "a profile may insist"


def test_another_torch_chip_or_changed_file_needs_a_new_proof(tmp_path: Path, passed: list[str]) -> None:
    adopt.adopt(write_library(tmp_path / "a", {("fp16", "TN"): SIZES}))
    newer = runtime.Runner("/usr/bin/python3", "2.11.0", "7.2", None, None, None)
    assert "no proof" in switch.decide(profile(), GFX1013, newer).why
    assert (
        "for gfx1013 and this chip is gfx1030"
        in switch.decide(profile(), presets.of("rdna2", gfx="gfx1030"), RUNNER).why
    )
    with next(store.library().folder.glob("*.co")).open("ab") as file:
        file.write(b"x")
    assert switch.decide(profile(), GFX1013, RUNNER).library is None
    with pytest.raises(ProofFailed, match="kernels prove --library a"):
        switch.decide(profile("tuned"), GFX1013, RUNNER)


def test_a_library_without_fallback_or_of_another_build_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInput, match="no fallback"):
        adopt.adopt(write_library(tmp_path / "a", {("fp16", "TN"): SIZES}, fallback=False))
    stock = write_library(tmp_path / "stock", {})
    for file in stock.glob("*fallback*.dat"):
        table = msgpack.unpackb(file.read_bytes(), strict_map_key=False)
        for entry in table["solutions"]:
            entry["sizeMapping"]["newField"] = 1
        file.write_bytes(msgpack.packb(table))
    theirs = write_library(tmp_path / "b", {("fp16", "TN"): SIZES})
    monkeypatch.setattr(
        adopt, "runner", lambda: runtime.Runner("python", "2", "7", None, stock / "librocblas.so", stock)
    )
    with pytest.raises(BadInput, match=r"does not belong to this rocBLAS.*other fields"):
        adopt.adopt(theirs)
    assert not store.libraries()


def test_a_folder_with_nothing_in_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="neither kernel tables"):
        adopt.adopt(tmp_path)
    with pytest.raises(BadInput, match="not a folder"):
        adopt.adopt(tmp_path / "nothing")


def test_the_same_build_is_recognised(tmp_path: Path) -> None:
    assert adopt.compare(write_library(tmp_path / "a", {}), write_library(tmp_path / "b", {}))[0] is True
    assert adopt.compare(tmp_path / "a", None)[0] is None


def test_cpu_runs_have_nothing_to_switch(passed: list[str]) -> None:
    assert switch.decide(profile(), presets.of("cpu"), RUNNER).environment == {}
    with pytest.raises(BadInput, match="AMD GPUs"):
        switch.decide(profile("tuned"), presets.of("cpu"), RUNNER)


def test_a_process_is_asked_what_it_really_loaded(tmp_path: Path) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "environ").write_bytes(b"A=1\0ROCBLAS_TENSILE_LIBPATH=/x/library\0")
    (tmp_path / "77" / "maps").write_text(
        "7f00-7f01 r-xp 00000000 08:01 12 /venv/torch/lib/librocblas.so.5\n7f02-7f03 r--p 0 08:01 13 /x/library/K_gfx1013.co\n7f04-7f05 rw-p 0 0:0 0\n"
    )
    found = switch.kernel_tables(77, str(tmp_path))
    assert found["variable"] == "/x/library" and found["rocblas"] == ["/venv/torch/lib/librocblas.so.5"]
    assert found["kernel_files"] == ["/x/library/K_gfx1013.co"]
    assert switch.kernel_tables(78, str(tmp_path))["variable"] is None


def test_the_runner_is_asked_without_importing_torch() -> None:
    import sys

    found = runtime.probe(sys.executable)
    assert found.python == sys.executable and (found.torch is None or found.torch[0].isdigit())
