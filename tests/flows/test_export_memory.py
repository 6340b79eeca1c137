"""A merge's memory is bounded by blocks of rows, not by tensors or the model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bc250studio.errors import JobFailed
from bc250studio.export import merged
from bc250studio.export.gguf_write import Fields, GgufWriter, Slot
from bc250studio.models.gguf_file import STRING, U32

COLUMNS = 4096
MEASURE = """
import sys
from pathlib import Path
from bc250studio.export.merged import write_merged
out = write_merged(Path(sys.argv[1]), None, Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
# Not ru_maxrss: a child inherits it from a parent that was larger.
status = Path("/proc/self/status").read_text()
print(int(status.split("VmHWM:")[1].split()[0]) * 1024, out.size_bytes)
"""


def big_base(path: Path, layers: int, feed: int) -> int:
    """An f16 base of zeros: the bytes are there, and writing them costs no random numbers. Returns its size."""
    fields = Fields()
    fields.put("general.architecture", STRING, "llama")
    for key, value in {"block_count": layers, "attention.head_count": 32, "attention.head_count_kv": 32}.items():
        fields.put(f"llama.{key}", U32, value)
    slots = [Slot("token_embd.weight", (256, COLUMNS), 1)]
    slots += [Slot(f"blk.{layer}.ffn_up.weight", (feed, COLUMNS), 1) for layer in range(layers)]
    with GgufWriter(path, fields, slots) as writer:
        for slot in slots:
            for at in range(0, slot.size_bytes, 1 << 24):
                writer.write(slot.name, bytes(min(1 << 24, slot.size_bytes - at)), at)
    return path.stat().st_size


def lora(folder: Path, layers: int, feed: int) -> Path:
    """A LoRA on every ffn_up."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8, "lora_alpha": 8}))
    tensors = {}
    for layer in range(layers):
        name = f"base_model.model.model.layers.{layer}.mlp.up_proj.lora_"
        tensors[name + "A.weight"] = np.full((8, COLUMNS), 0.5, np.float32)
        tensors[name + "B.weight"] = np.full((feed, 8), 0.25, np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("quantisation", ["auto", "q8_0"])
def test_half_a_gigabyte_within_a_quarter(quantisation: str, tmp_path: Path) -> None:
    """The tensors are 128 MiB (256 as float32) each; the whole file would be 1 GiB as float32."""
    layers, feed = 4, 16384
    assert big_base(tmp_path / "base.gguf", layers, feed) > 512 << 20
    folder = lora(tmp_path / "adapter", layers, feed)
    files = [tmp_path / "base.gguf", tmp_path / "out.gguf"]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder), *map(str, files), quantisation],
        capture_output=True, text=True, check=True, cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    peak_bytes, _ = map(int, done.stdout.split())
    assert peak_bytes < 400 << 20, f"{peak_bytes / 2**20:.0f} MiB"
    from bc250studio.models.gguf_file import GgufFile

    with GgufFile(tmp_path / "out.gguf") as file:
        rows = file.rows(file.tensors["blk.3.ffn_up.weight"], feed - 2, 2)
        assert np.abs(rows - 1.0).max() < 0.01


def test_room_is_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    base = tmp_path / "base.gguf"
    big_base(base, 1, 256)
    folder = lora(tmp_path / "adapter", 1, 256)
    monkeypatch.setattr(merged.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1 << 20}))
    with pytest.raises(JobFailed, match=r"needs 4 MiB, but only 1 MiB are free"):
        merged.write_merged(folder, None, base, tmp_path / "out" / "m.gguf")
    assert not (tmp_path / "out" / "m.gguf").exists()
    monkeypatch.undo()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 10 << 20}))
    with pytest.raises(JobFailed, match="of memory"):
        merged.write_merged(folder, None, base, tmp_path / "out" / "m.gguf")
