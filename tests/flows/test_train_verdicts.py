"""Runs that go wrong on purpose, and what they say: NaN, zero, a dead matrix, a wrong kernel, a stall, a full disk."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bc250studio import jobs, profiles, telemetry
from bc250studio.jobs import JobFolder, control
from bc250studio.jobs.identity import Identity
from bc250studio.pipeline import stall, supervisor
from bc250studio.train import adapters, checkpoints, graph, light, runner, start_check
from tests import survival


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    handler = signal.getsignal(signal.SIGTERM)
    yield
    torch.set_num_threads(before)
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "good": survival.byte_model(root / "good"),
        "poisoned": survival.byte_model(root / "poisoned", poisoned="Z"),
    }


@pytest.fixture
def job_of(models: dict[str, Path], tmp_path: Path) -> Callable[..., JobFolder]:
    def make(model: str = "good", rows: list[str] | None = None, **settings: Any) -> JobFolder:
        texts = rows or [f"{n} and {n}" for n in range(24)]
        file = tmp_path / "rows.jsonl"
        file.write_text("\n".join(json.dumps({"prompt": t, "completion": f" yes, {t}"}) for t in texts))
        wanted = {
            "model.base": str(models[model]), "model.device": "cpu", "data.path": str(file), "data.eval_fraction": 0.0,
            "adapter.rank": 4, "train.steps": 12, "train.tokens_per_step": 256, "train.tokens_per_pass": 256,
            "train.learning_rate": 1e-2, "train.loss_chunk": 64, "train.checkpoint_every": 3,
            **{key.replace("__", "."): value for key, value in settings.items()},
        }  # fmt: skip
        return JobFolder.create("train", profiles.from_text("", "verdicts", "tiny", wanted))

    return make


def outcome(job: JobFolder) -> tuple[int, dict[str, Any]]:
    nice, out_of_memory = os.nice, Path("/proc/self/oom_score_adj").read_text()
    os.nice = lambda by: 0  # the test's own process keeps its priority
    try:
        code = runner.main([str(job.path)])
    finally:
        os.nice = nice
        Path("/proc/self/oom_score_adj").write_text(out_of_memory)
    return code, json.loads((job.path / "checkpoints" / runner.RESULT).read_text())


def test_nan_ends_the_run_and_names_the_row(job_of) -> None:
    rows = [f"{n} and {n}" for n in range(5)] + ["here is Z"] + [f"{n} or {n}" for n in range(4)]
    code, result = outcome(job_of("poisoned", rows, train__tokens_per_step=4096, train__tokens_per_pass=4096))
    assert code == 1
    assert result["error"].startswith(
        "8 bad steps in a row, the last one step 8: the loss is NaN. Bad when alone: line 6 of "
    )
    assert "here is Z" in result["error"]
    assert "3 and 3" not in result["error"]


def test_nan_in_one_step_of_several_is_skipped_counted_and_learnt_past(job_of) -> None:
    rows = [f"number {n} and number {n} again" for n in range(30)] + ["here is Z"]
    job = job_of("poisoned", rows)
    code, result = outcome(job)
    assert (code, result["verdict"]) == (0, "done")
    assert result["skipped"] >= 1
    warnings = [event for event in job.events() if event["event"] == "warning" and "was skipped" in event["text"]]
    assert len(warnings) == result["skipped"]
    values = survival.checkpoints.whole(job.path / "checkpoints")[-1].state
    assert values["skipped"] <= result["skipped"]


def test_a_kernel_that_writes_nothing_is_a_verdict(job_of, monkeypatch) -> None:
    monkeypatch.setattr(graph.Passes, "forward_backward", lambda self, batch, factor: torch.zeros(()))
    code, result = outcome(job_of())
    assert code == 1
    assert "8 bad steps in a row" in result["error"]
    assert "the loss is exactly zero" in result["error"]


def test_a_gradient_that_never_arrives_is_named_after_one_step(job_of, monkeypatch) -> None:
    real = adapters.add_product

    def broken(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, scale: float) -> None:
        if tuple(total.shape) != (48, 4):  # B of gate_proj and up_proj
            real(total, left, right, scale)

    monkeypatch.setattr(adapters, "add_product", broken)
    monkeypatch.setattr(light, "add_product", broken)
    code, result = outcome(job_of())
    assert code == 1
    assert "After step 1" in result["error"]
    assert "gate_proj.lora_B" in result["error"]


def test_a_wrong_kernel_stops_the_run_before_its_first_step(job_of, monkeypatch) -> None:
    real = start_check.check
    monkeypatch.setattr(start_check, "check", lambda trainer: real(trainer, lambda a, b: (a @ b) * 1.01))
    job = job_of()
    code, result = outcome(job)
    assert code == 1
    assert "computes wrongly on cpu" in result["error"]
    assert telemetry.read_all(job.path / "metrics.jsonl") == []


def test_a_changed_setting_is_refused_by_name(job_of) -> None:
    job = job_of()
    control.ask(job, "stop")
    assert outcome(job)[1]["verdict"] == "stopped"
    profile = (job.path / "profile.toml").read_text()
    (job.path / "profile.toml").write_text(profile.replace("learning_rate = 0.01", "learning_rate = 0.02"))
    code, result = outcome(job)
    assert code == 1
    assert "train.learning_rate (0.01 then, 0.02 now) changed since" in result["error"]
    (job.path / "profile.toml").write_text(profile)
    assert outcome(job)[1]["verdict"] == "done"


def test_the_best_evaluated_step_is_the_result_with_samples_on_the_way(job_of) -> None:
    job = job_of(
        data__eval_fraction=0.3, train__eval_every=1, train__early_stop_patience=3, train__steps=40,
        train__learning_rate=2.0, train__schedule="constant",  # runs away after a while
    )  # fmt: skip
    code, result = outcome(job)
    assert code == 0
    evaluations = {e["step"]: e["loss"] for e in job.events() if e["event"] == "evaluation" and e["step"]}
    best = min(evaluations, key=evaluations.__getitem__)
    assert best < result["steps"] < 40
    assert result["result_step"] == best
    assert result["eval_loss_after"] == evaluations[best]
    kept = next(c for c in checkpoints.whole(job.path / "checkpoints") if c.step == best)
    final = job.path / "checkpoints" / "final" / "adapter_model.safetensors"
    assert final.read_bytes() == (kept.path / "adapter_model.safetensors").read_bytes()
    samples = [event for event in job.events() if event["event"] == "sample"]
    assert [event["step"] for event in samples] == [0, *evaluations]
    # Gone on after the end: patience is over, no further step is taken.
    steps = len(telemetry.read_all(job.path / "metrics.jsonl"))
    newest = checkpoints.whole(job.path / "checkpoints")[-1]
    assert outcome(job)[1]["result_step"] == best
    assert len(telemetry.read_all(job.path / "metrics.jsonl")) - steps <= result["steps"] - newest.step


@pytest.mark.slow
def test_a_hung_worker_is_a_stall_event_and_goes_on(job_of) -> None:
    job = job_of(train__steps=400)
    supervising = os.fork()
    if supervising == 0:
        code = 70
        try:
            stall.AFTER_S, stall.LOOK_EVERY_S = 2.0, 0.2
            code = supervisor.supervise(job, ("train",))
        finally:
            os._exit(code)
    wait(lambda: telemetry.read_all(job.path / "metrics.jsonl"))
    worker = Identity.from_dict(job.state()["worker"])
    assert worker is not None
    status = Path(f"/proc/{worker.pid}/oom_score_adj").read_text()
    assert int(status) >= 500  # the kernel takes the runner before sshd
    assert os.getpriority(os.PRIO_PROCESS, worker.pid) == 10
    os.kill(worker.pid, signal.SIGSTOP)
    wait(lambda: [e for e in job.events() if e["event"] == "stall" and e["process"] == "T"])
    os.kill(worker.pid, signal.SIGCONT)
    wait(lambda: [e for e in job.events() if "goes on again" in e["text"]])
    control.ask(job, "stop")
    assert os.waitstatus_to_exitcode(os.waitpid(supervising, 0)[1]) == 1
    assert jobs.standing(job).verdict == "stopped"
    event = next(e for e in job.events() if e["event"] == "stall" and e["process"] == "T")
    assert "stopped by a signal" in event["text"]


def wait(condition: Callable[[], Any], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
