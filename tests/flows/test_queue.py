"""The queue over real runs: three one after the other, the middle one fails, the last one still runs."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from bc250studio import jobs, pipeline, profiles
from bc250studio.pipeline import queue, report
from tests import survival


@pytest.mark.slow
def test_three_in_a_row_with_one_failing_in_the_middle(tmp_path: Path) -> None:
    model = survival.byte_model(tmp_path / "model")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"prompt": f"{n}?", "completion": f" {n}!"}) for n in range(20)))
    for name, targets in (("first", "all-linear"), ("second", ["no_such_layer"]), ("third", "all-linear")):
        settings = {
            "model.base": str(model), "model.device": "cpu", "data.path": str(rows), "adapter.targets": targets,
            "train.steps": 2, "train.tokens_per_step": 256, "train.tokens_per_pass": 256,
        }  # fmt: skip
        queue.add(profiles.from_text("", "test", name, settings), ("train",))
    job = queue.ensure_runner()
    assert queue.ensure_runner().name == job.name  # one queue, however often it is asked for
    most_at_once, deadline = 0, time.monotonic() + 300
    while jobs.standing(job).live:
        assert time.monotonic() < deadline
        most_at_once = max(most_at_once, sum(found.state.get("kind") == "train" for found in jobs.live()))
        time.sleep(0.05)
    runs = {run.state()["profile"]: run for run in jobs.all_jobs() if run.state().get("kind") == "train"}
    assert {name: jobs.standing(run).verdict for name, run in runs.items()} == {
        "first": "done", "second": "failed", "third": "done"
    }  # fmt: skip
    assert most_at_once == 1
    assert queue.waiting() == []
    assert (job.state()["phase"], job.state()["exit_code"]) == ("done", 1)
    ends = [event["text"] for event in job.events() if " ended: " in event["text"]]
    assert ends == ["first ended: done.", "second ended: failed.", "third ended: done."]
    assert runs["first"].state()["created"] < runs["third"].state()["created"]
    assert "does not fit this model" in report.write(runs["second"])
    assert runs["third"].profile().profile.thermal.start_below_c == queue.COOL_START_C


def test_an_entry_keeps_its_stages() -> None:
    entry = queue.add(profiles.from_text("", "x", "a"), ("train", "export"))
    assert queue.stages_of(entry.read_text()) == ("train", "export")
    assert queue.stages_of("# stages: nonsense\n") == pipeline.STAGES
    assert queue.stages_of("[train]\n") == pipeline.STAGES
