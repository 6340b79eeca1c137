"""Products, their lists and logs: what is derived, read and refused."""
# ruff: noqa: E501

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bc250studio.errors import BadInput
from bc250studio.kernels import chip, logs, products, shapes
from bc250studio.kernels.products import Product, ShapeList

STRUCTURE = {
    "linears": [{"name": "q_proj", "in": 64, "out": 64, "layers": 2, "first": 1}],
    "attention": {"layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16},
    "head": {"in": 64, "out": 1000, "tied": True},
}


def test_the_ceiling_of_the_unlocked_board() -> None:
    assert chip.bc250().peak_tflops == pytest.approx(10.24)
    assert chip.bc250(24, 1500).peak_tflops == pytest.approx(4.608)


def test_low_rank_products_are_bound_by_memory_and_square_ones_by_arithmetic() -> None:
    board = chip.bc250()
    square = 2 * 2048**3 / (board.peak_tflops * 1e12)
    assert board.bound_s(2048, 2048, 1, 2048, "fp16") == pytest.approx(square)
    assert board.bound_s(16, 2048, 1, 2048, "fp32") > 2 * 16 * 2048 * 2048 / (board.peak_tflops * 1e12)


@pytest.mark.parametrize("units", [0, 41])
def test_a_board_has_2_to_40_units(units: int) -> None:
    with pytest.raises(BadInput, match="compute units"):
        chip.bc250(units)


def test_each_layout_of_a_linear_layer() -> None:
    found = {
        (p.role, p.layout, p.m, p.n, p.k): p.count
        for p in products.merged(shapes.products_of(STRUCTURE, shapes.Step(tokens=128, rank=8)))
    }
    assert found["linear forward", "TN", 64, 128, 64] == 2
    assert found["linear input gradient", "NN", 64, 128, 64] == 1, "layer 0 reads the frozen embedding"
    assert found["adapter forward", "TN", 8, 128, 64] == found["adapter forward", "TN", 64, 128, 8] == 2
    assert found["adapter weight gradient", "NT", 64, 8, 128] == found["adapter weight gradient", "NT", 8, 64, 128] == 2


def test_full_training_has_weight_gradients_and_no_adapter() -> None:
    found = shapes.products_of(STRUCTURE, shapes.Step(tokens=128, full=True))
    assert any(p.role == "linear weight gradient" and (p.layout, p.m, p.n, p.k) == ("NT", 64, 64, 128) for p in found)
    assert not any("adapter" in p.role for p in found)


def test_layer_recompute_runs_forward_products_twice() -> None:
    def forward(recompute: str) -> int:
        step = shapes.Step(tokens=128, recompute=recompute)
        return sum(
            p.count for p in shapes.products_of(STRUCTURE, step) if p.role in ("linear forward", "attention values")
        )

    assert forward("layer") == 2 * forward("none") == 2 * forward("light")


@pytest.mark.parametrize(
    ("labelled", "expected"),
    [
        (0, []),
        (5, [(256, 1)]),
        (300, [(512, 1)]),
        (600, [(1024, 1)]),
        (1024, [(1024, 1)]),
        (2100, [(1024, 2), (256, 1)]),
    ],
)
def test_loss_chunks(labelled: int, expected: list[tuple[int, int]]) -> None:
    assert shapes.chunks(labelled, 1024) == expected


def test_loss_chunks_are_the_engines() -> None:
    loss = pytest.importorskip("bc250studio.train.loss")
    for labelled in range(0, 3000, 37):
        ours = sorted(size for size, count in shapes.chunks(labelled, 512) for _ in range(count))
        assert ours == sorted(size for _, size in loss.chunks(labelled, 512))


def test_a_list_survives_its_json() -> None:
    made = ShapeList("m", [128], 8, products.merged(shapes.products_of(STRUCTURE, shapes.Step(tokens=128))))
    back = products.from_dict(json.loads(json.dumps(made.as_dict(chip.bc250()))), "test")
    assert back.products == made.products and back.flops == made.flops
    assert sum(s["share"] for s in made.as_dict(chip.bc250())["shapes"]) == pytest.approx(1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(
    JSON
    | st.fixed_dictionaries(
        {
            "shapes": st.lists(
                st.dictionaries(st.sampled_from(["m", "n", "k", "batch", "dtype", "layout"]), JSON), max_size=3
            )
        }
    )
)
def test_any_json_is_read_or_refused_in_a_sentence(record: object) -> None:
    try:
        products.from_dict(record, "f")
    except BadInput as error:
        assert str(error).endswith(".")


BENCH = """\
./rocblas-bench -f gemm_ex --transposeA T --transposeB N -m 2048 -n 512 -k 64 --alpha 1 --a_type f16_r --lda 64 --b_type f16_r \
--ldb 64 --beta 0 --c_type f16_r --ldc 2048 --d_type f16_r --ldd 2048 --compute_type f32_r --algo 0 --solution_index 0 --flags 0
./rocblas-bench --api 1 -f gemm_strided_batched_ex --transposeA N --transposeB T -m 8 -n 9 -k 10 --alpha -1 --a_type bf16_r --lda 8 \
--stride_a 80 --b_type bf16_r --ldb 9 --stride_b 90 --beta nan --c_type bf16_r --ldc 8 --stride_c 72 --batch_count 12 --compute_type f32_r # x
./rocblas-bench -f gemm -r f32_r --transposeA N --transposeB N -m 5 -n 6 -k 7 --alpha 1 --lda 5 --ldb 7 --beta 0 --ldc 5 --atomics_not_allowed
./rocblas-bench -f axpy -r f32_r -n 5
"""
PROFILE = """\
- { rocblas_function: "rocblas_gemm_ex", atomics_mode: atomics_allowed, a_type: "f16_r", b_type: "f16_r", c_type: "f16_r", d_type: "f16_r", compute_type: "f32_r", transA: 'T', transB: 'N', M: 2048, N: 512, K: 64, alpha: 1.0, lda: 64, ldb: 64, beta: 0.0, ldc: 2048, ldd: 2048, algo: 0, solution_index: 0, flags: 0, call_count: 28 }
- { rocblas_function: "rocblas_sgemm", transA: 'N', transB: 'N', M: 5, N: 6, K: 7, alpha: 1, lda: 5, ldb: 7, beta: 0, ldc: 5, call_count: 3 }
"""
UNTUNED = """\
Validator,PT_VERSION,2.9.0
GemmTunableOp_Half_TN,tn_2048_512_64_ld_64_64_2048
GemmStridedBatchedTunableOp_BFloat16_NT,nt_8_9_10_B_12_ld_8_9_8
GemmTunableOp_float_NN,nn_5_6_7
"""


def keys(text: str) -> set[tuple]:
    return {p.key for p in logs.parse(text, "log").products}


def test_three_kinds_of_log_name_the_same_products() -> None:
    assert keys(BENCH) == keys(UNTUNED)
    assert keys(PROFILE) < keys(BENCH)
    assert {p.count for p in logs.parse(PROFILE, "log").products} == {28, 3}
    assert (8, 9, 12, 10, "bf16", "NT") in keys(BENCH)
    assert any("axpy" in note for note in logs.parse(BENCH, "log").notes)


def test_a_log_without_products_is_refused() -> None:
    with pytest.raises(BadInput, match="no matrix product"):
        logs.parse("hello\nworld\n", "x")


@given(
    st.text(alphabet=st.sampled_from(list("-fmnk0123456789 {}:,'\"abcGemmTunableOp_NT\n./rocblas-bench")), max_size=300)
)
def test_no_log_line_crashes_the_reader(text: str) -> None:
    try:
        assert all(p.flops > 0 for p in logs.parse(text, "x").products)
    except BadInput:
        pass


def test_equal_products_of_two_roles_are_one_for_the_tuner() -> None:
    one, two = Product(1, 2, 1, 3, "fp16", "NN", "a", 2), Product(1, 2, 1, 3, "fp16", "NN", "b", 3)
    assert [(p.count, p.role) for p in products.distinct([one, two])] == [(5, "b, a")], "dearest role first"
