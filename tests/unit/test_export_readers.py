"""Foreign bytes: whatever a GGUF, safetensors, adapter or imatrix file holds, it is read or refused in words."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from bc250studio.errors import BadInput
from bc250studio.export.importance import Importance
from bc250studio.export.peft_adapter import read_adapter, read_config, scale_of
from bc250studio.models.gguf_file import GgufFile
from bc250studio.models.gguf_map import KNOWN, TensorMap, permute, unpermute
from bc250studio.models.safetensors_file import SafetensorsFile
from tests.export_tools import synthetic_base, write_imatrix

FAST = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A whole small GGUF file."""
    path = synthetic_base(tmp_path_factory.mktemp("gguf") / "a.gguf", layers=1, columns=32, heads=2, vocab=32)
    return path.read_bytes()


def read_all(path: Path) -> None:
    """Everything a caller may ask of a GGUF file."""
    with GgufFile(path) as file:
        for key in file.fields:
            file.get(key)
        for name in list(file.tensors)[:3]:
            file.array(name)


@FAST
@given(data=st.data())
def test_damaged_gguf_is_refused_or_read(data: st.DataObject, small: bytes, tmp_path: Path) -> None:
    content = bytearray(small)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, min(len(content), 2500) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content))
    try:
        read_all(path)
    except BadInput as error:
        assert str(error).endswith(".") and "\n" not in str(error)


@FAST
@given(content=st.binary(max_size=300))
def test_any_bytes_are_no_crash(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    for head in (b"", b"GGUF" + struct.pack("<I", 3)):
        path.write_bytes(head + content)
        with pytest.raises(BadInput):
            read_all(path)
            raise BadInput("an empty model is fine.")
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(BadInput):
        SafetensorsFile([path])
        raise BadInput("no tensors is fine.")


def test_huge_counts_do_not_eat_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60) + b"\0" * 64)
    with pytest.raises(BadInput, match=r"damaged header|ends in the middle"):
        GgufFile(path)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_safetensors_values(dtype: str, tmp_path: Path) -> None:
    array = np.random.default_rng(0).standard_normal((3, 5)).astype(dtype)
    save_file({"a": array}, tmp_path / "model.safetensors")
    file = SafetensorsFile.folder(tmp_path)
    assert file.names == ["a"] and (file.read("a") == array.astype(np.float32)).all()
    assert (file.rows("a", np.array([2, 0])) == array.astype(np.float32)[[2, 0]]).all()


def test_bfloat16(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, 3.140625], np.float32)
    raw = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    header = json.dumps({"a": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + raw)
    assert (SafetensorsFile([tmp_path / "a.safetensors"]).read("a") == values).all()


def test_index_may_not_leave_its_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../etc/passwd"}}')
    with pytest.raises(BadInput, match="outside"):
        SafetensorsFile.folder(tmp_path)


@FAST
@given(heads=st.integers(1, 8), half=st.integers(1, 6), columns=st.integers(1, 3))
def test_permutation_is_undone(heads: int, half: int, columns: int) -> None:
    array = np.arange(heads * 2 * half * columns).reshape(-1, columns)
    assert (unpermute(permute(array, heads), heads) == array).all()
    vector = np.arange(heads * 2 * half)
    assert (permute(unpermute(vector, heads), heads) == vector).all()
    first_head = permute(vector, heads)[: 2 * half]
    assert (first_head[0::2] == vector[:half]).all() and (first_head[1::2] == vector[half : 2 * half]).all()


def test_every_known_architecture_has_names() -> None:
    for arch in KNOWN:
        mapping = TensorMap(arch, 2, 4, 2)
        for name in ("model.embed_tokens.weight", "model.layers.1.self_attn.o_proj.weight", "lm_head.weight"):
            assert mapping.place(name) is not None, (arch, name)
        assert mapping.place("model.layers.0.no_such.weight") is None


def adapter(folder: Path, config: dict[str, object] | str, tensors: dict[str, np.ndarray]) -> Path:
    """An adapter folder from a config and tensors."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if tensors:
        save_file(tensors, folder / "adapter_model.safetensors")
    return folder


PREFIX = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
GOOD = {PREFIX + "A.weight": np.ones((4, 8), np.float32), PREFIX + "B.weight": np.ones((8, 4), np.float32)}
CONFIG: dict[str, object] = {"peft_type": "LORA", "r": 4, "lora_alpha": 8}


@pytest.mark.parametrize(
    ("config", "tensors", "words"),
    [
        ("{", GOOD, "cannot be read"),
        ("[]", GOOD, "not a JSON object"),
        ({"peft_type": "LOHA", "r": 4, "lora_alpha": 8}, GOOD, "LOHA"),
        ({"r": 4, "lora_alpha": "x"}, GOOD, "lora_alpha"),
        ({"r": True, "lora_alpha": 1}, GOOD, "'r'"),
        (CONFIG, {}, "cannot be read"),
        (CONFIG, {PREFIX + "A.weight": np.ones((4, 8), np.float32)}, "only lora_A"),
        (CONFIG, {**GOOD, PREFIX + "B.weight": np.ones((8, 3), np.float32)}, "do not fit"),
        ({**CONFIG, "alpha_pattern": {"(": 3}}, GOOD, "regular expression"),
        ({**CONFIG, "alpha_pattern": {"q_proj": None}}, GOOD, "not a number"),
    ],
)
def test_broken_adapters(config: object, tensors: dict[str, np.ndarray], words: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=words):
        read_adapter(adapter(tmp_path / "a", config, tensors))  # type: ignore[arg-type]


def test_pickle_is_not_opened(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "a", CONFIG, {})
    (folder / "adapter_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(BadInput, match="pickle"):
        read_adapter(folder)


def test_not_a_folder_and_mlx(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a folder"):
        read_config(tmp_path / "nowhere")
    (tmp_path / "adapters.safetensors").write_bytes(b"")
    with pytest.raises(BadInput, match="MLX"):
        read_config(tmp_path)


def test_scales_are_pefts() -> None:
    module = "model.layers.3.self_attn.v_proj"
    assert scale_of({"lora_alpha": 16}, module, 8) == 2
    assert scale_of({"lora_alpha": 16, "use_rslora": True}, module, 16) == 4
    patterns = {"v_proj": 64, "layers.3.self_attn.v_proj": 1}
    assert scale_of({"lora_alpha": 16, "alpha_pattern": patterns}, module, 8) == 8  # the first that fits counts
    assert scale_of({"lora_alpha": 16, "alpha_pattern": {"proj": 64}}, module, 8) == 2  # a name's end, not a part of it


@FAST
@given(content=st.binary(max_size=200))
def test_any_imatrix_bytes(content: bytes, tmp_path: Path, small: bytes) -> None:
    (tmp_path / "base.gguf").write_bytes(small)
    (tmp_path / "i.dat").write_bytes(content)
    with GgufFile(tmp_path / "base.gguf") as base, pytest.raises(BadInput):
        Importance.read(tmp_path / "i.dat", base.tensors)


def test_imatrix_with_bad_numbers(tmp_path: Path, small: bytes) -> None:
    (tmp_path / "base.gguf").write_bytes(small)
    path = write_imatrix(tmp_path / "i.dat", {"blk.0.attn_q.weight": np.full(32, np.nan, np.float32)})
    with GgufFile(tmp_path / "base.gguf") as base, pytest.raises(BadInput, match="finite"):
        Importance.read(path, base.tensors)
