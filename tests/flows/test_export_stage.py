"""The export stage of a run and ``export RUN``: the record names files that are there, and repeats nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bc250studio import profiles
from bc250studio.cli.main import main
from bc250studio.errors import BadInput
from bc250studio.export import stage
from bc250studio.jobs import JobFolder
from bc250studio.jobs.progress import silent
from bc250studio.models.gguf_file import GgufFile
from tests.export_tools import make_adapter, tiny


def job_with(tmp_path: Path, **options: object) -> tuple[JobFolder, profiles.Resolved]:
    """A run whose training left an adapter with ``options`` on a tiny Llama."""
    folder, base = tiny("llama", tie_word_embeddings=True)
    adapter, _ = make_adapter(folder, tmp_path / "adapter", r=4, lora_alpha=8, **options)
    resolved = profiles.from_text("", "test", "tiny", {"model.base": str(folder), "model.gguf": str(base)})
    job = JobFolder.create("train", resolved)
    shutil.copytree(adapter, job.path / "checkpoints" / "final")
    (job.path / "checkpoints" / "final" / "trainer.safetensors").write_bytes(b"the optimiser's state")
    job.write_stage(
        "train", verdict="done", outputs={"adapter": "checkpoints/final"}, eval_loss_before=3.25, eval_loss_after=1.5
    )
    return job, resolved


def test_adapter_run_and_merged_afterwards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, resolved = job_with(tmp_path)
    before = stage.inputs(job, resolved)
    record = stage.run(job, resolved, silent)
    assert record["outputs"]["kind"] == "adapter" and Path(record["outputs"]["adapter_gguf"]).is_file()
    assert main(["export", job.name, "--hand-over", str(tmp_path / "adapter-only")]) == 0
    names = {file.name for file in (tmp_path / "adapter-only").iterdir()}
    assert names == {
        "README.md",
        "Modelfile",
        "serve.sh",
        "adapter.gguf",
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    capsys.readouterr()
    assert stage.still_there(job, record) and stage.inputs(job, resolved) == before
    assert main(["export", job.name, "--quantisation", "q8_0", "--hand-over", str(tmp_path / "give"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    outputs = job.stage("export")["outputs"]
    assert outputs["kind"] == "merged" and outputs["merged_gguf"] == said["path"] and said["path"].endswith("q8_0.gguf")
    assert job.stage("export")["inputs"] != before
    with GgufFile(Path(said["path"])) as file:
        assert file.tensors["blk.0.attn_q.weight"].type_name == "q8_0"
    card = (tmp_path / "give" / "README.md").read_text()
    assert "| Evaluation loss before | 3.25 |" in card and "| Evaluation loss after | 1.5 |" in card
    Path(said["path"]).unlink()
    assert not stage.still_there(job, job.stage("export"))


def test_dora_takes_the_merged_way_and_the_run_says_why(tmp_path: Path) -> None:
    job, resolved = job_with(tmp_path, use_dora=True)
    record = stage.run(job, resolved, silent)
    assert record["outputs"]["kind"] == "merged" and record["outputs"]["merged_gguf"].endswith("merged-f32.gguf")
    assert any("DoRA" in event["text"] for event in job.events() if event["event"] == "note")
    asked = profiles.from_text(profiles.dump(resolved), "test", "tiny", {"export.kind": "adapter"})
    with pytest.raises(BadInput, match="cannot leave as an adapter: DoRA"):
        stage.run(job, asked, silent)


def test_nothing_trained_yet(capsys: pytest.CaptureFixture[str]) -> None:
    job = JobFolder.create("train", profiles.from_text("", "test", "empty"))
    assert main(["export", job.name]) == 2
    assert "no trained adapter yet" in capsys.readouterr().err
    assert main(["export", "nosuchrun"]) == 2
    assert main(["export", job.name, "--base", "x"]) == 2
