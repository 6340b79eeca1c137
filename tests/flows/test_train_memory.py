"""Memory that really runs out in mid-run: the process's limit is lowered, the run ends as if nothing had been."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]

RUN = """
import json, resource, sys
import torch
torch.set_num_threads(1)
from tests.train_help import model_of, rows_of, trainer_of

lower_at, leave = int(sys.argv[1]), float(sys.argv[2])
SHAPE = dict(hidden_size=128, intermediate_size=512, num_hidden_layers=12)
said = []
trainer = trainer_of(model_of(**SHAPE), rows_of([500] * 16), steps=7, tokens_per_pass=2000, tokens_per_step=2000)
trainer.note = said.append

def data_bytes():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData"))

losses = []
for step in trainer.steps():
    losses.append(step.loss)
    if step.number == lower_at:
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + int(leave * 2**20), resource.RLIM_INFINITY))
print(json.dumps({"losses": losses, "said": said, "plan": trainer.recompute}))
"""


def train(lower_at: int, leave_mib: float = 0) -> tuple[int, dict[str, Any], str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "MALLOC_ARENA_MAX": "1"}
    environment["MALLOC_MMAP_THRESHOLD_"] = (
        "65536"  # what is freed goes back at once, so that the limit means something
    )
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(lower_at), str(leave_mib)], env=environment, cwd=ROOT,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def test_a_lowered_limit_ends_with_the_same_loss() -> None:
    code, undisturbed, error = train(0)
    assert code == 0, error
    assert set(undisturbed["plan"]) == {"none"}
    code, found, error = train(3, leave_mib=150)
    assert code == 0, error
    assert any("the same rows are taken again with a lighter plan" in text for text in found["said"])
    assert "layer" in found["plan"]
    assert found["losses"] == pytest.approx(undisturbed["losses"], rel=1e-5)


def test_when_nothing_fits_the_sentence_says_what_to_lower() -> None:
    code, _, error = train(3, leave_mib=4)
    assert code != 0
    assert "lower train.tokens_per_pass or train.loss_chunk" in error
