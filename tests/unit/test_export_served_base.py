"""The base's GGUF: chosen, compared with the trained model, converted when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from bc250studio import paths, settings
from bc250studio.errors import BadInput, JobFailed
from bc250studio.export.gguf_write import Fields, GgufWriter, Slot
from bc250studio.models import convert
from bc250studio.models.find import find
from bc250studio.models.gguf_file import STRING, GgufFile, encode_array
from bc250studio.models.served import base_for, check_same_model, choose
from tests.export_tools import base_gguf, tiny
from tests.tiny import tiny_model


def changed(base: Path, out: Path, change: str) -> Path:
    """A copy of a GGUF file with another tokenizer or template."""
    with GgufFile(base) as file:
        fields = Fields(file.fields)
        if change == "token":
            tokens = list(file.get("tokenizer.ggml.tokens"))
            tokens[1000] = "<other>"
            fields.raw["tokenizer.ggml.tokens"] = (9, encode_array(STRING, tokens))
        elif change == "padding":
            tokens = [*file.get("tokenizer.ggml.tokens")[:-2], "[PAD1]", "[PAD2]"]
            fields.raw["tokenizer.ggml.tokens"] = (9, encode_array(STRING, tokens))
        else:
            template = str(file.get("tokenizer.chat_template"))
            fields.put("tokenizer.chat_template", STRING, {"tidy": template + "\n{# same #}", "none": "plain"}[change])
        slots = [Slot(t.name, t.shape, t.type) for t in file.tensors.values()]
        with GgufWriter(out, fields, slots) as writer:
            for tensor in file.tensors.values():
                writer.write(tensor.name, file.raw(tensor))
    return out


def test_the_right_file_passes_and_others_say_what_differs(tmp_path: Path) -> None:
    folder, base = tiny("llama")
    source = find(str(folder))
    check_same_model(base, source)
    assert base_for(source, str(base)) == base
    for other, words in (
        (base_gguf(tiny_model("qwen3")), "architecture qwen3 instead of llama"),
        (base_gguf(tiny_model("llama", num_key_value_heads=4)), "key/value heads 4 instead of 2"),
        (base_gguf(tiny_model("llama", num_hidden_layers=3)), "layers 3 instead of 2"),
        (changed(base, tmp_path / "token.gguf", "token"), "token 1000 is '<other>'"),
        (changed(base, tmp_path / "template.gguf", "none"), "another chat template"),
    ):
        with pytest.raises(BadInput, match=words):
            base_for(source, str(other))
    for harmless in ("tidy", "padding"):
        check_same_model(changed(base, tmp_path / f"{harmless}.gguf", harmless), source)


def test_an_adapter_file_is_no_base(tmp_path: Path) -> None:
    fields = Fields()
    fields.put("general.architecture", STRING, "llama")
    fields.put("general.type", STRING, "adapter")
    with GgufWriter(tmp_path / "a.gguf", fields, []):
        pass
    with pytest.raises(BadInput, match="type adapter"):
        check_same_model(tmp_path / "a.gguf", find(str(tiny_model("llama"))))


def test_choice_by_type_and_size(tmp_path: Path) -> None:
    sizes = {
        "m-Q4_K_M.gguf": 4,
        "m-Q8_0.gguf": 8,
        "m-F16.gguf": 16,
        "mmproj-m-F16.gguf": 1,
        "m-BF16-00002-of-00002.gguf": 9,
    }
    files = [(tmp_path / name, size) for name, size in sizes.items()]
    assert choose(files) == tmp_path / "m-F16.gguf"
    assert choose(files, limit_bytes=10) == tmp_path / "m-Q8_0.gguf"
    assert choose(files, limit_bytes=3) is None and choose([]) is None


def fake_converter(folder: Path, body: str) -> None:
    """A llama.cpp checkout whose converter is ``body``, set in settings.toml."""
    folder.mkdir()
    (folder / convert.SCRIPT).write_text("import shutil, sys\n" + body)
    settings.put("convert.llama_cpp", str(folder))


def test_conversion_is_kept_until_something_changes(tmp_path: Path) -> None:
    folder, base = tiny("llama")
    source = find(str(folder))
    fake_converter(
        tmp_path / "llama.cpp",
        "print('Writing:  50%|#####', flush=True)\n"
        f"shutil.copy({str(base)!r}, sys.argv[sys.argv.index('--outfile') + 1])\n",
    )
    heard: list[float | None] = []
    first = convert.converted(source, "f32", lambda text, done=None, total=None: heard.append(done))
    assert 50.0 in heard and first.name.endswith("-f32.gguf")
    (tmp_path / "llama.cpp" / convert.SCRIPT).write_text("raise SystemExit('must not run again')")
    assert convert.converted(source, "f32") == first
    with pytest.raises(JobFailed, match="must not run again"):
        convert.converted(source, "f16")
    assert not list((paths.data_dir() / "models").rglob("*.tmp"))


def test_converter_trouble_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = find(str(tiny_model("llama")))
    settings.put("convert.llama_cpp", str(tmp_path))
    with pytest.raises(BadInput, match=r"holds no convert_hf_to_gguf\.py"):
        convert.converted(source)
    with pytest.raises(BadInput, match="not 'q4_k'"):
        convert.converted(source, "q4_k")
    fake_converter(tmp_path / "llama.cpp", "sys.exit('NotImplementedError: pre-tokenizer was not recognized')")
    with pytest.raises(JobFailed, match=r"pre-tokenizer was not recognized.*model\.gguf"):
        convert.converted(source)
    monkeypatch.setattr(convert.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(JobFailed, match="needs about"):
        convert.converted(source)
