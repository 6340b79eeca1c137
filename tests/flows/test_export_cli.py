"""bc250studio export as a user meets it: an adapter from elsewhere, wrong inputs, an interrupt, a full disk."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bc250studio.models.gguf_file import GgufFile
from tests.export_tools import synthetic_base

DEMO = "demo:smollm2-135m"


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA for SmolLM2, made without torch, whose config names a base on another machine."""
    folder = tmp_path_factory.mktemp("someones") / "board-facts"
    folder.mkdir()
    config = {
        "peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_rslora": True,
        "base_model_name_or_path": "/home/else/models/SmolLM2", "target_modules": ["q_proj", "v_proj"],
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    stream = np.random.RandomState(0)
    tensors = {}
    for layer in range(30):
        for module, rows in (("q_proj", 576), ("v_proj", 192)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}.lora_"
            tensors[name + "A.weight"] = stream.standard_normal((4, 576)).astype(np.float32) * 0.05
            tensors[name + "B.weight"] = stream.standard_normal((rows, 4)).astype(np.float32) * 0.05
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def export(*words: object, limit_bytes: int | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command; ``limit_bytes`` caps the size of any file, as a full disk would."""

    def cap() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))  # type: ignore[arg-type]

    return subprocess.run(
        [sys.executable, "-m", "bc250studio.cli.main", "export", *map(str, words)],
        capture_output=True, text=True, timeout=300, cwd=cwd, env=environment(),
        preexec_fn=cap if limit_bytes else None,
    )  # fmt: skip


def environment() -> dict[str, str]:
    """The test's environment with the checkout importable from anywhere."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}


def test_someones_adapter_with_a_hand_over_folder(adapter: Path, tmp_path: Path) -> None:
    before = {file.name: file.read_bytes() for file in adapter.iterdir()}
    done = export(adapter, "--base", DEMO, "--hand-over", tmp_path / "give", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert Path(record["path"]) == tmp_path / "board-facts-gguf" / "adapter.gguf" and record["types"] == {"f32": 120}
    assert before == {file.name: file.read_bytes() for file in adapter.iterdir()}
    give = tmp_path / "give"
    assert {"README.md", "Modelfile", "serve.sh", "adapter.gguf", "adapter_model.safetensors"} <= set(os.listdir(give))
    config = json.loads((give / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert "/home/else" not in "".join(f.read_text() for f in give.iterdir() if f.suffix in (".md", ".json", ".sh", ""))
    modelfile = (give / "Modelfile").read_text()
    assert "<|im_start|>user\n{{ .Content }}<|im_end|>" in modelfile and 'PARAMETER stop "<|im_end|>"' in modelfile
    card = (give / "README.md").read_text()
    assert record["sha256"] in card and "apache-2.0" in card and "llama-server -m" in card
    again = export(adapter, "--base", DEMO, "--hand-over", give, cwd=tmp_path)
    assert again.returncode == 2 and "exists already" in again.stderr


def test_merged_q4_k_m(adapter: Path, tmp_path: Path) -> None:
    words = ("--base", DEMO, "--kind", "merged", "--quantisation", "q4_k_m", "--out", tmp_path, "--json")
    done = export(adapter, *words)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["types"] == {"f32": 61, "q4_k": 16, "q5_0": 166, "q6_k": 14, "q8_0": 15}
    with GgufFile(Path(record["path"])) as file:
        assert file.path.name == "merged-q4_k_m.gguf" and file.get("general.file_type") == 15
        assert "im_start" in file.get("tokenizer.chat_template")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "give yours with --base"),
        (("--base", "demo:nothing"), "demo:smollm2-135m"),
        (("--base", DEMO, "--gguf", "/nowhere.gguf"), "no such file"),
        (("--base", DEMO, "--quantisation", "q4_km"), "Did you mean 'q4_k_m'"),
        (("--base", DEMO, "--imatrix", "/nowhere.dat", "--kind", "merged"), "no such file"),
    ],
)
def test_wrong_inputs(words: tuple[str, ...], says: str, adapter: Path, tmp_path: Path) -> None:
    done = export(adapter, *words, "--out", tmp_path / "out")
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("*.gguf"))


def test_a_folder_that_is_no_adapter(tmp_path: Path) -> None:
    done = export(tmp_path, "--base", DEMO)
    assert done.returncode == 2 and "is not a PEFT adapter: it has no adapter_config.json" in done.stderr


def test_another_models_gguf_is_refused(adapter: Path, tmp_path: Path) -> None:
    other = synthetic_base(tmp_path / "other.gguf")
    done = export(adapter, "--base", DEMO, "--gguf", other, "--out", tmp_path / "out")
    assert done.returncode == 2 and "layers 2 instead of 30" in done.stderr and "hidden size" in done.stderr
    (tmp_path / "text.gguf").write_text("hello")
    done = export(adapter, "--base", DEMO, "--gguf", tmp_path / "text.gguf")
    assert done.returncode == 2 and "not a GGUF file" in done.stderr


@pytest.mark.parametrize("kind", ["adapter", "merged"])
def test_no_room(kind: str, adapter: Path, tmp_path: Path) -> None:
    done = export(adapter, "--base", DEMO, "--kind", kind, "--out", tmp_path / "out", limit_bytes=100_000)
    assert done.returncode == 1 and "needs" in done.stderr and "MiB" in done.stderr and "untouched" in done.stderr
    assert not list((tmp_path / "out").iterdir())


def test_interrupt_leaves_nothing_that_looks_finished(adapter: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "bc250studio.cli.main", "export", str(adapter), "--base", DEMO, "--out", str(out)]
    process = subprocess.Popen(
        [*command, "--kind", "merged", "--quantisation", "q5_k_m"], env=environment(), stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "writing" in line:
            break
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    process.stderr.close()
    assert not out.exists() or not list(out.iterdir())


def test_kill_leaves_only_a_hidden_piece_that_the_next_export_sweeps(tmp_path: Path) -> None:
    from bc250studio.export.merged import quantise

    base = synthetic_base(tmp_path / "base.gguf")
    piece = tmp_path / ".out.gguf.4711.tmp"
    piece.write_bytes(b"half a file")
    quantise(base, tmp_path / "out.gguf", "q8_0")
    assert not piece.exists() and (tmp_path / "out.gguf").stat().st_mode & 0o777 == 0o600
