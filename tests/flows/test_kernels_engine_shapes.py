"""The derived products are what a step of the engine really multiplies, seen by a torch dispatch mode."""
# ruff: noqa: E501

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bc250studio import profiles
from bc250studio.kernels import of_profile, shapes, walk
from bc250studio.kernels.products import Product, distinct
from tests import tiny

torch = pytest.importorskip("torch")


def rows_of(lengths: list[int], seed: int = 0):
    from bc250studio.data.rows import Rows

    rng = np.random.default_rng(seed)
    made = []
    for length in lengths:
        ids = [int(i) for i in rng.integers(0, 1000, length)]
        made.append((ids, [False] * (length // 3) + [True] * (length - length // 3)))
    for _, labelled in made:
        labelled[0] = False
    return Rows.of(made)


CASES = {
    "llama": ({}, 200),
    "one key head": ({"num_key_value_heads": 1}, 200),
    "one row fills a pass": ({}, 513),
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_multiplies_exactly_the_derived_products(case: str) -> None:
    from transformers import AutoModelForCausalLM

    from bc250studio.train.engine import Trainer

    overrides, longest = CASES[case]
    folder = tiny.tiny_model(case if case in tiny.FAMILIES else "llama", **overrides)
    text = (
        "[train]\ntokens_per_pass = 512\ntokens_per_step = 512\nattention = 'math16'\nsteps = 3\nrecompute = 'none'\n"
        "loss_chunk = 128\nlayer_kernels = 'off'\ngraph = 'off'\n[adapter]\nrank = 4\n[model]\nprecision = 'fp32'\n"
    )
    resolved = profiles.from_text(text, "test")
    lengths = [512] * 4 if longest == 513 else [int(n) for n in np.random.default_rng(1).integers(20, longest, 40)]
    rows = rows_of(lengths)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    trainer = Trainer(model, rows, resolved.profile.train, resolved.profile.adapter, sizes="fixed")
    planned = trainer.plan[0][0]
    with walk.Recorder() as recorder:
        trainer.step()

    _, config = shapes.config_of(str(folder))
    steps = of_profile.steps_of_rows(resolved, rows)
    groups = trainer.sizes.layouts[planned.layout].groups
    labelled = sum(s * c for s, c in shapes.chunks(trainer.feed.labelled_of(planned.rows), 128))
    step = replace(steps[0], segments=groups, labelled=labelled, passes=1)
    structure = walk.structure(config)[1]
    derived = {p.key: p.count for p in distinct(shapes.products_of(structure, step))}
    missing = {key: count for key, count in derived.items() if recorder.counts.get(key) != count}
    extra = {key: count for key, count in recorder.counts.items() if key not in derived}
    assert not missing and not extra, f"derived but not seen: {missing}; seen but not derived: {extra}"
    assert step in [replace(s, passes=1) for s in steps]


def test_the_ways_agree_on_a_profile(tmp_path: Path) -> None:
    """Derived from the profile, dispatched in its second step, and written as rocBLAS and TunableOp would write them."""
    from bc250studio.kernels import logs, tunableop

    folder = tiny.tiny_model("llama")
    data = tmp_path / "rows.jsonl"
    talk = [
        {"prompt": f"What is {n} times {n + 1}?", "completion": f"It is {n * (n + 1)}. " * (1 + n % 7)}
        for n in range(60)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in talk))
    text = f"""
[model]
base = {json.dumps(str(folder))}
precision = "fp32"
device = "cpu"
[data]
path = {json.dumps(str(data))}
max_length = 256
[adapter]
rank = 4
[train]
tokens_per_pass = 256
tokens_per_step = 256
loss_chunk = 64
"""
    resolved = profiles.from_text(text, "test")
    run = logs.of_run(resolved)
    assert run.facts["source"] == "dispatch" and "no rocBLAS" in run.notes[0]
    _, config = shapes.config_of(str(folder))
    structure = walk.structure(config)[1]
    derived = {p.key for step in of_profile.steps(resolved) for p in shapes.products_of(structure, step)}
    dispatched = {p.key for p in run.products}
    assert dispatched <= derived
    ours = {
        p.key
        for step in of_profile.steps(resolved)
        for p in shapes.products_of(structure, step)
        if "linear" in p.role or "adapter" in p.role
    }
    assert ours <= dispatched
    # The same step as rocBLAS's bench log with its marks, with a step of other sizes before it.
    lines = "".join(bench_line(p) * p.count for p in run.products)
    other = bench_line(Product(7, 7, 1, 7, "fp32", "NN"))
    answer = {
        "device": "cuda",
        "rocblas": True,
        "recorded": [
            {n: getattr(p, n) for n in ("m", "n", "batch", "k", "dtype", "layout", "count")} for p in run.products
        ],
    }
    logged = logs.second_step(answer, f"{other}{logs.MARK}\n{lines}{logs.MARK}\n", "x")
    assert {p.key: p.count for p in logged.products} == {p.key: p.count for p in run.products} and not logged.notes
    assert any("not in rocBLAS" in n for n in logs.second_step(answer, f"{logs.MARK}\n{other}{logs.MARK}\n", "x").notes)
    # TunableOp's untuned file skips sides of 1 and nothing else.
    listed = {p.key for p in logs.parse(tunableop.untuned(run.products), "x").products}
    assert listed == {key for key in dispatched if min(key[0], key[1], key[3]) > 1}


def bench_line(p: Product) -> str:
    """A product as ROCBLAS_LAYER=2 writes it."""
    kind = {"fp32": "f32_r", "fp16": "f16_r", "bf16": "bf16_r"}[p.dtype]
    name = "gemm_strided_batched_ex" if p.batch > 1 else "gemm_ex"
    batch = f" --batch_count {p.batch}" if p.batch > 1 else ""
    return (
        f"./rocblas-bench -f {name} --transposeA {p.layout[0]} --transposeB {p.layout[1]} -m {p.m} -n {p.n} -k {p.k} --alpha 1 "
        f"--a_type {kind} --lda 1 --b_type {kind} --ldb 1 --beta 0 --c_type {kind} --ldc 1 --d_type {kind} --ldd 1{batch} --compute_type f32_r\n"
    )
