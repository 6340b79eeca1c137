"""The rehearsal as a user runs it: everything in two steps, killed in the middle, then the estimate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bc250studio import jobs
from bc250studio.serve import server
from tests.tiny import tiny_model


@pytest.mark.server
@pytest.mark.slow
def test_a_rehearsal_goes_the_whole_way_through_a_kill(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"prompt": f"What is {n}?", "completion": f"{n} is {n}."}) for n in range(60)))
    profile = tmp_path / "tiny.toml"
    profile.write_text(
        f"""
[model]
base = "{tiny_model("llama")}"
device = "cpu"
[data]
path = "{rows}"
[train]
epochs = 20
tokens_per_step = 256
tokens_per_pass = 256
[serve]
device = "cpu"
context = 256
[ask]
prompts = ["What is 7?"]
"""
    )
    done = subprocess.run(
        [sys.executable, "-m", "bc250studio.cli.main", "rehearse", str(profile), "--json"],
        capture_output=True, text=True, timeout=500, env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    (job,) = jobs.all_jobs()
    assert told["stages"] == {
        "train": "done", "export": "done", "reference": "done", "serve": "done", "prove": "passed", "ask": "done"
    }  # fmt: skip
    kinds = [(event["event"], event.get("step")) for event in job.events()]
    assert kinds.index(("checkpoint", 1)) < kinds.index(("rehearsal", None)) < kinds.index(("resumed", 1))
    assert ("evaluation", 1) in kinds
    assert told["steps"] == 2
    assert told["proof"]["tokens"] == 16
    assert told["measured_step_s"] > 0
    # 54 rows of about 20 tokens are 4 or 5 steps an epoch, and there are 20 of them
    assert told["estimated_seconds"] == pytest.approx(
        told["measured_step_s"] * job.stage("train")["steps_per_epoch"] * 20
    )
    assert server.read(job) is None  # a rehearsal leaves no server
