"""Merged files: judged in their weights, served, proved, and asked beside a base that has a server of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from bc250studio import profiles
from bc250studio.export.merged import write_merged
from bc250studio.jobs import JobFolder
from bc250studio.jobs.progress import silent
from bc250studio.models.find import find
from bc250studio.models.gguf_file import GgufFile
from bc250studio.models.gguf_map import unpermute
from bc250studio.serve import server, stage_ask, stage_prove, stage_serve
from bc250studio.serve.merge_check import Merge, check_merge
from tests.serve_tools import case, server_binary

pytestmark = [pytest.mark.server, pytest.mark.slow]


def merged(out: Path, quantisation: str = "f16") -> Path:
    made = case()
    return write_merged(made.peft, find(str(made.folder)), made.base, out, quantisation).path


def judged(file: Path) -> Merge:
    made = case()
    found = check_merge(made.peft, made.base, file)
    assert found is not None
    return found


def rewritten(out: Path, file: Path, change) -> Path:
    """A copy of an f32 file; ``change(name, base, merged)`` gives a tensor its new values, or None to leave it."""
    blob = bytearray(file.read_bytes())
    with GgufFile(case().base) as base, GgufFile(file) as whole:
        for name, tensor in whole.tensors.items():
            new = change(name, base.array(name), whole.array(name))
            if new is not None:
                blob[tensor.offset : tensor.offset + tensor.size_bytes] = new.astype(np.float32).tobytes()
    out.write_bytes(blob)
    return out


def test_the_right_merge_holds_the_adapter_once(tmp_path: Path):
    found = judged(merged(tmp_path / "f16.gguf"))
    assert found.exact and found.share == pytest.approx(1.0, abs=0.002) and found.fault == ""
    coarse = judged(merged(tmp_path / "q8.gguf", "q8_0"))
    assert not coarse.exact and coarse.share == pytest.approx(1.0, abs=0.02)


def test_wrong_merges_are_named_by_what_is_wrong(tmp_path: Path):
    right = merged(tmp_path / "f32.gguf", "f32")

    def scaled(name: str, base: np.ndarray, whole: np.ndarray) -> np.ndarray:
        return base + 0.8 * (whole - base)

    assert judged(rewritten(tmp_path / "a.gguf", right, scaled)).fault.startswith("merge, scale: ")
    assert "0.8 times" in judged(tmp_path / "a.gguf").fault

    def absent(name: str, base: np.ndarray, whole: np.ndarray) -> np.ndarray:
        return base

    fault = judged(rewritten(tmp_path / "b.gguf", right, absent)).fault
    assert fault == "merge: the file holds the base alone, the adapter is not in it"

    def unordered(name: str, base: np.ndarray, whole: np.ndarray) -> np.ndarray | None:
        if "attn_q." not in name and "attn_k." not in name:
            return None
        return base + unpermute(whole - base, 4 if "attn_q." in name else 2)

    assert judged(rewritten(tmp_path / "c.gguf", right, unordered)).fault.startswith("merge, permutation: ")

    def one_layer(name: str, base: np.ndarray, whole: np.ndarray) -> np.ndarray | None:
        return base if name == "blk.1.ffn_up.weight" else None

    fault = judged(rewritten(tmp_path / "d.gguf", right, one_layer)).fault
    assert "1 of 14 changed tensors are wrong, first blk.1.ffn_up.weight (0 times)" in fault


def test_a_merged_run_is_served_proved_and_asked_beside_its_base(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    server_binary()
    made = case()
    overrides = {
        "model.base": str(made.folder),
        "serve.device": "cpu",
        "serve.context": 256,
        "ask.prompts": ["Hello"],
        "ask.max_tokens": 5,
    }
    resolved = profiles.from_text("", "test", "merged", overrides)
    job = JobFolder.create("train", resolved)
    file = merged(job.path / "export" / "merged-f16.gguf")
    job.write_stage("train", verdict="done", outputs={"adapter": str(made.peft)})
    job.write_stage("export", verdict="done", outputs={"base_gguf": str(made.base), "merged_gguf": str(file)})
    shutil.copy(made.reference, job.path / "reference.safetensors")
    try:
        assert stage_serve.run(job, resolved, silent)["server"]["adapter"] is None
        record = stage_prove.run(job, resolved, silent)
        assert record["verdict"] == "passed", record
        assert record["proof"]["merge_share"] == pytest.approx(1.0, abs=0.002)
        (answer,) = stage_ask.run(job, resolved, silent)["answers"]
        assert answer["base"]["text"] != answer["tuned"]["text"]

        with GgufFile(made.base) as base:
            assert base.arch == "llama"
        shutil.copy(made.base, file)  # somebody put the base where the merged file was
        server.stop(job)
        record = stage_prove.run(job, resolved, silent)
        assert record["verdict"] == "failed" and record["exit_code"] == 3
        assert "the adapter is not in it" in record["error"]
    finally:
        server.stop(job)
