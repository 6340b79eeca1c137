"""Killed at random moments, inside writes, by power loss and on a full disk: the same adapter, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import load_file, save_file

from bc250studio.train import checkpoints
from tests import survival


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[survival.Arena]:
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BC250STUDIO_HOME", str(tmp_path_factory.mktemp("survival")))
        yield survival.Arena(tmp_path_factory.mktemp("arena"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", survival.KINDS)
def test_a_disturbed_run_ends_with_the_same_adapter(arena: survival.Arena, kind: str) -> None:
    tally = survival.Tally()
    for seed in range(100, 120):
        survival.round_of(arena, kind, seed, tally)
        if tally.kills[kind] >= 3 or tally.wrong:
            break
    assert tally.wrong == []
    assert tally.kills[kind] >= 3  # the disturbance did land


@pytest.mark.slow
def test_the_harness_would_see_a_difference(arena: survival.Arena) -> None:
    job = arena.job()
    arena.attempt(job, lambda: survival.die_at_call(job, arena.calls // 2, False))
    newest = checkpoints.whole(job.path / "checkpoints")[-1]
    assert newest.step < arena.result["result_step"]
    tensors = load_file(newest.path / checkpoints.TENSORS)
    tensors["exp_avg"] *= 1.01
    save_file(tensors, newest.path / checkpoints.TENSORS)
    code = arena.attempt(job, lambda: None)
    assert code == 0
    assert survival.final_of(job) != arena.final
