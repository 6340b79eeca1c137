"""Looking in on a training: it stops at a checkpoint, answers, and goes on as if nothing had been."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bc250studio import jobs, pipeline, profiles, telemetry
from bc250studio.jobs import control
from bc250studio.serve import server
from tests.tiny import tiny_model


@pytest.mark.server
@pytest.mark.slow
def test_peek_answers_and_the_training_goes_on(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"prompt": f"What is {n}?", "completion": f"{n} is {n}."}) for n in range(60)))
    settings = {
        "model.base": str(tiny_model("llama")), "model.device": "cpu", "data.path": str(rows), "train.steps": 100_000,
        "train.tokens_per_step": 128, "train.tokens_per_pass": 128, "serve.device": "cpu", "serve.context": 256,
    }  # fmt: skip
    job = pipeline.launch(profiles.from_text("", "test", "peeked", settings), ("train",))
    try:
        deadline = time.monotonic() + 120
        while not telemetry.read_all(job.path / "metrics.jsonl"):
            assert time.monotonic() < deadline
            assert jobs.standing(job).live
            time.sleep(0.05)
        done = subprocess.run(
            [sys.executable, "-m", "bc250studio.cli.main", "peek", job.name],
            input="What is 7?\n/quit\n", capture_output=True, text=True, timeout=300, env=dict(os.environ),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        assert "base> " in done.stdout  # random weights: what comes is no language, but it comes
        stopped_at = job.stage("export") and job.stage("train")["steps"]
        assert server.read(job) is None
        assert job.state()["stages"] == ["train"]
        while not any(e["event"] == "resumed" and e.get("step") == stopped_at for e in job.events()):
            assert time.monotonic() < deadline + 300
            time.sleep(0.05)
    finally:
        if jobs.standing(job).live:
            control.ask(job, "stop")
        while jobs.standing(job).live:
            time.sleep(0.05)
    steps = [line["step"] for line in telemetry.read_all(job.path / "metrics.jsonl")]
    assert steps == list(range(1, len(steps) + 1))  # none twice, none left out
