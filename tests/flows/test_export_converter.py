"""Against llama.cpp's own converters, tensor by tensor, where those are right. Needs the tool folder of convert.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bc250studio.export.adapter import write_pairs
from bc250studio.export.peft_adapter import read_adapter
from bc250studio.models import convert
from bc250studio.models.find import find
from bc250studio.models.gguf_file import GgufFile
from tests.export_tools import make_adapter, tiny

pytestmark = pytest.mark.slow


@pytest.fixture
def tool() -> Path:
    """The converter of the environment's own tool folder; the test's home has none."""
    found = convert._inside(convert.tool_folders()[1])
    if found is None:
        pytest.skip("llama.cpp's converter is not installed in this environment")
    return found


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "smollm3", "mixtral"])
def test_base_files_equal(family: str, tool: Path) -> None:
    folder, base = tiny(family)
    theirs = convert.converted(find(str(folder)), "f32")
    with GgufFile(base) as one, GgufFile(theirs) as other:
        assert one.tensors.keys() == other.tensors.keys()
        assert all(np.array_equal(one.array(name), other.array(name)) for name in one.tensors)
        different = [key for key in one.fields if other.get(key) != one.get(key) and key in other.fields]
        assert set(different) <= {"general.name"}


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "smollm3"])
def test_plain_adapters_equal(family: str, tool: Path, tmp_path: Path) -> None:
    """rsLoRA and alpha_pattern are left out: llama.cpp's converter writes those wrongly, without a word."""
    folder, base = tiny(family)
    adapter, _ = make_adapter(folder, tmp_path / "a", r=8, lora_alpha=12, rank_pattern={"o_proj": 2})
    with GgufFile(base) as file:
        ours = write_pairs(read_adapter(adapter), file, family, tmp_path / "ours.gguf")
    command = [sys.executable, str(tool / "convert_lora_to_gguf.py"), "--base", str(folder), str(adapter)]
    command += ["--outfile", str(tmp_path / "theirs.gguf"), "--outtype", "f32"]
    environment = {**os.environ, "PYTHONPATH": str(tool / "gguf-py")}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    with GgufFile(ours.path) as one, GgufFile(tmp_path / "theirs.gguf") as other:
        assert one.tensors.keys() == other.tensors.keys()
        assert all(np.array_equal(one.array(name), other.array(name)) for name in one.tensors)
        for key in ("general.type", "general.architecture", "adapter.type", "adapter.lora.alpha"):
            assert one.get(key) == other.get(key)
