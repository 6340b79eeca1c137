"""The derived products are what a step of the engine really multiplies, seen by a torch dispatch mode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bc250studio import profiles
from bc250studio.kernels import of_profile, shapes
from bc250studio.kernels.products import distinct
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

    from bc250studio.kernels import walk
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
