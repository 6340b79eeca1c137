"""The runner over a job folder: a whole run, stop and go on, kill and go on, refusals, the reference."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from bc250studio import data, profiles, telemetry
from bc250studio.errors import BadInput, JobFailed
from bc250studio.jobs import JobFolder, control
from bc250studio.jobs.progress import silent
from bc250studio.jobs.spawn import child_environment
from bc250studio.models import find
from bc250studio.train import checkpoints, reference, runner, stage
from tests.export_tools import base_gguf
from tests.tiny import tiny_model

ROWS = [
    {"instruction": f"Say number {n}.", "output": f"The number {n} is even or odd, and {n + 1} follows."}
    for n in range(48)
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Bit-for-bit comparisons need the same number of threads in every process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.fixture(scope="module")
def data_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS))
    return path


def job_of(data_file: Path, **changes: Any) -> JobFolder:
    settings = {
        "model.base": str(tiny_model("llama")),
        "data.path": str(data_file),
        "data.eval_fraction": 0.2,
        "adapter.rank": 4,
        "train.steps": 8,
        "train.tokens_per_step": 256,
        "train.tokens_per_pass": 256,
        "train.learning_rate": 5e-3,
        "train.checkpoint_every": 3,
        "train.loss_chunk": 64,
        "proof.tokens": 24,
        **changes,
    }
    resolved = profiles.from_text("", "test", "tiny", settings)
    job = JobFolder.create("train", resolved)
    job.own("loading")
    return job


def final_weights(job: JobFolder) -> dict[str, torch.Tensor]:
    return load_file(str(job.path / "checkpoints" / "final" / "adapter_model.safetensors"))


def assert_same(one: JobFolder, other: JobFolder) -> None:
    first, second = final_weights(one), final_weights(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def metrics(job: JobFolder) -> list[tuple[int, float, float]]:
    """(step, loss, lr) of the last time each step was taken."""
    lines = telemetry.read_all(job.path / "metrics.jsonl")
    return sorted({line["step"]: (line["step"], line["loss"], line["lr"]) for line in lines}.values())


@pytest.fixture(scope="module")
def undisturbed(data_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobFolder]:
    """A run that nothing happened to, for the others to be compared with."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BC250STUDIO_HOME", str(tmp_path_factory.mktemp("undisturbed")))
        job = job_of(data_file)
        record = runner.Run(job)()
        job.write_stage("train", **record)
        yield job


def test_a_whole_run_leaves_an_adapter_and_tells_its_story(undisturbed: JobFolder) -> None:
    job, record = undisturbed, undisturbed.stage("train")
    assert record["verdict"] == "done"
    assert record["steps"] == 8
    assert record["eval_loss_after"] < record["eval_loss_before"]
    assert record["eval_tokens"] > 20
    assert set(record["rates"]) == {"all_positions_per_s", "real_tokens_per_s", "labelled_tokens_per_s"}
    assert record["rates"]["labelled_tokens_per_s"] < record["rates"]["real_tokens_per_s"]
    assert [step for step, _, _ in metrics(job)] == list(range(1, 9))
    kinds = [event["event"] for event in job.events()]
    assert kinds.count("checkpoint") == 2 and kinds.count("evaluation") == 2
    assert [c.step for c in checkpoints.whole(job.path / "checkpoints")] == [3, 6]
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(str(tiny_model("llama"))), str(job.path / record["outputs"]["adapter"])
    )
    assert any("lora" in name for name, _ in model.named_parameters())
    for path in (job.path / "checkpoints").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_stopped_and_gone_on_is_the_same_run(data_file: Path, undisturbed: JobFolder) -> None:
    job = job_of(data_file)
    for _ in range(3):
        control.ask(job, "stop")
        assert runner.Run(job)()["verdict"] == "stopped"
    assert [step for step, _, _ in metrics(job)] == [1, 2, 3]
    assert runner.Run(job)()["verdict"] == "done"
    assert metrics(job) == metrics(undisturbed)
    assert_same(job, undisturbed)


@pytest.mark.slow
def test_killed_and_gone_on_is_the_same_run(data_file: Path, undisturbed: JobFolder) -> None:
    job = job_of(data_file, **{"train.checkpoint_every": 1})
    child = subprocess.Popen(
        [sys.executable, "-m", "bc250studio.train.runner", str(job.path)],
        env=child_environment({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}),
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 300
    while not checkpoints.whole(job.path / "checkpoints") and time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.002)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert runner.Run(job)()["verdict"] == "done"
    assert metrics(job) == metrics(undisturbed)
    # checkpoint_every is part of no arithmetic: the adapter is the same
    assert_same(job, undisturbed)


def test_a_torn_checkpoint_is_passed_over(data_file: Path, undisturbed: JobFolder) -> None:
    job = job_of(data_file)
    for _ in range(2):
        control.ask(job, "stop")
        runner.Run(job)()
    newest = checkpoints.whole(job.path / "checkpoints")[-1]
    assert newest.step == 2
    torn = newest.path / checkpoints.TENSORS
    torn.write_bytes(torn.read_bytes()[:100])
    (job.path / "checkpoints" / ".step-000009.1.tmp").mkdir()
    assert runner.Run(job)()["verdict"] == "done"
    assert_same(job, undisturbed)
    assert not list((job.path / "checkpoints").glob(".*.tmp"))


def test_another_dataset_is_refused(data_file: Path, tmp_path: Path) -> None:
    own = tmp_path / "rows.jsonl"
    own.write_text(data_file.read_text())
    job = job_of(own)
    control.ask(job, "stop")
    runner.Run(job)()
    own.write_text(own.read_text().replace("follows", "comes next"))
    with pytest.raises(JobFailed, match="data changed since"):
        runner.Run(job)()


def test_pause_saves_and_resume_goes_on(data_file: Path, undisturbed: JobFolder) -> None:
    job = job_of(data_file)
    control.ask(job, "pause")
    control.ask(job, "resume")
    assert runner.Run(job)()["verdict"] == "done"
    kinds = [event["event"] for event in job.events()]
    assert kinds.index("paused") < kinds.index("resumed")
    assert_same(job, undisturbed)


def test_early_stop_keeps_the_best(data_file: Path) -> None:
    job = job_of(
        data_file,
        **{"train.eval_every": 1, "train.early_stop_patience": 2, "train.early_stop_min_delta": 100.0},
    )
    record = runner.Run(job)()
    assert record["steps"] == 3  # the first evaluation is the best, two more are not better
    assert any("Stopped early" in event["text"] for event in job.events())


def test_full_training_leaves_a_model_folder(data_file: Path) -> None:
    job = job_of(data_file, **{"adapter.kind": "full", "train.learning_rate": 1e-3, "train.steps": 3})
    record = runner.Run(job)()
    assert record["eval_loss_after"] < record["eval_loss_before"]
    saved = AutoModelForCausalLM.from_pretrained(str(job.path / record["outputs"]["model"]))
    held_out = data.prepare(job.profile().profile, find.find(str(tiny_model("llama")))).evaluation
    total = 0.0
    for ids, labels in held_out:
        tokens = torch.from_numpy(ids.astype(np.int64))[None]
        marked = torch.where(torch.from_numpy(labels.copy())[None], tokens, torch.tensor(-100))
        with torch.no_grad():
            total += float(saved(input_ids=tokens, labels=marked).loss) * int(labels.sum())
    assert total / held_out.labelled_count == pytest.approx(record["eval_loss_after"], rel=1e-4)


@pytest.mark.slow
def test_the_stage_runs_the_child_and_passes_its_sentence_on(data_file: Path) -> None:
    job = job_of(data_file, **{"train.steps": 1})
    record = stage.run(job, job.profile(), silent)
    assert record["verdict"] == "done"
    assert job.state()["step"] == 1
    broken = job_of(data_file, **{"adapter.targets": ["no_such_layer"]})
    with pytest.raises(BadInput, match="does not fit this model"):
        stage.run(broken, broken.profile(), silent)
    assert stage.inputs(job, job.profile()) != stage.inputs(broken, broken.profile())


def test_the_reference_holds_what_the_model_says(undisturbed: JobFolder, tmp_path: Path, monkeypatch: Any) -> None:
    job = undisturbed
    monkeypatch.setenv("BC250STUDIO_HOME", str(job.path.parents[2]))
    folder = tiny_model("llama")
    gguf = base_gguf(folder, tmp_path / "base.gguf")
    job.write_stage("export", verdict="done", outputs={"base_gguf": str(gguf)})
    record = reference.Reference(job)()
    assert record["tokens"] == 24 and record["held_out"]
    tensors: dict[str, Any] = {}
    with safe_open(str(job.path / "reference.safetensors"), "np") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        facts = json.loads(file.metadata()["facts"])
    assert facts["adapter_sha256"] and facts["gguf_sha256"] and facts["type"] == "float32"
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(str(folder)), str(job.path / "checkpoints" / "final")
    ).eval()
    where = 5
    sequence, position = int(tensors["sequence"][where]), int(tensors["position"][where])
    begin = int(tensors["offsets"][sequence])
    before = torch.from_numpy(tensors["ids"][begin : begin + position].astype(np.int64))[None]
    with torch.no_grad():
        truth = torch.log_softmax(model(before).logits[0, -1].float(), -1).numpy()
        with model.disable_adapter():
            base = torch.log_softmax(model(before).logits[0, -1].float(), -1).numpy()
    for variant, expected in (("trained_adapter", truth), ("served_adapter", truth), ("served_base", base)):
        ids, logp = tensors[f"{variant}.ids"][where], tensors[f"{variant}.logp"][where]
        np.testing.assert_allclose(logp, expected[ids], atol=2e-3)
        assert ids[0] == expected.argmax()
