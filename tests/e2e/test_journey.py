"""The whole way with nothing replaced: data -> LoRA -> GGUF -> llama-server -> proof -> answers."""

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

CLI = [sys.executable, "-m", "bc250studio.cli.main"]


def bc250studio(*words: str, timeout: float = 600, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLI, *words], capture_output=True, text=True, timeout=timeout, env={**os.environ, **environment}
    )


@pytest.fixture(autouse=True)
def no_server_left():
    yield
    for job in jobs.all_jobs():
        if server.read(job) is not None:
            server.stop(job)


@pytest.fixture
def tiny_profile(tmp_path: Path) -> Path:
    """A tiny random Llama on the demo rows, few steps."""
    file = tmp_path / "tiny.toml"
    file.write_text(
        f"""
[model]
base = "{tiny_model("llama")}"
[data]
path = "assets:demo.jsonl"
max_length = 128
[train]
steps = 6
tokens_per_step = 256
tokens_per_pass = 256
learning_rate = 1e-2
eval_every = 3
checkpoint_every = 3
[serve]
context = 512
[proof]
tokens = 24
[ask]
prompts = ["What is the BC-250?"]
max_tokens = 8
"""
    )
    return file


@pytest.mark.e2e
@pytest.mark.server
def test_a_tiny_model_goes_the_whole_way_on_the_cpu(tiny_profile: Path):
    done = bc250studio("run", str(tiny_profile), "--json", "--set", "serve.device=cpu", "--set", "proof.tokens=64")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["eval_loss_after"] < result["eval_loss_before"]
    assert result["proof"]["mean_kl"] < 0.002
    assert result["proof"]["top1"] >= 0.97
    assert result["rates"]["real_tokens_per_s"] > 0
    assert "CPU" in result["server"]["device"]
    (answer,) = result["answers"]
    assert answer["base"]["text"] != answer["tuned"]["text"]


@pytest.mark.e2e
@pytest.mark.vulkan
def test_a_tiny_model_goes_the_whole_way_on_vulkan(tiny_profile: Path):
    done = bc250studio("run", str(tiny_profile), "--json", "--set", "serve.device=Vulkan0", GGML_VK_VISIBLE_DEVICES="0")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert "Vulkan" in result["server"]["device"], result["server"]
    assert result["proof"]["top1"] >= 0.97


@pytest.mark.e2e
@pytest.mark.server
@pytest.mark.slow
def test_smollm2_learns_and_is_proven_on_the_cpu():
    done = bc250studio(
        "run", "demo", "--json", "--set", "train.steps=6", "--set", "serve.device=cpu", "--set", "proof.tokens=64",
        "--set", "ask.max_tokens=8", timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["eval_loss_after"] < result["eval_loss_before"]
    assert result["proof"]["mean_kl"] < 0.01
