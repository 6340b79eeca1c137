"""Models: found by name, described from their own files, tokenised without torch; damaged files are sentences."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bc250studio.errors import BadInput
from bc250studio.models.describe import describe
from bc250studio.models.find import find, known
from bc250studio.models.gguf_header import read_header
from bc250studio.models.tokenizer import from_folder, from_gguf, load_tokenizer
from tests import gguf_toys

CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 42,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 130560,
    "max_position_embeddings": 131072,
    "rope_theta": 5e6,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": [1, 130073],
}


def folder(path: Path, config: dict | str = CONFIG) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def test_the_demo_model_comes_from_its_wheel():
    source = find("demo:smollm2-135m")
    assert source.kind == "demo" and source.gguf is not None and source.gguf.is_file() and not source.has_config
    facts = describe(source)
    assert (facts.model_type, facts.gguf_arch, facts.layers, facts.hidden, facts.vocab) == (
        "llama",
        "llama",
        30,
        576,
        49152,
    )
    assert (facts.heads, facts.kv_heads, facts.head_dim, facts.tied, facts.parameters) == (9, 3, 64, True, 134_515_008)
    assert (facts.bos_id, facts.eos_ids, facts.licence, facts.context) == (1, [2], "apache-2.0", 8192)


def test_a_folder_is_described_from_its_config(tmp_path):
    facts = describe(find(str(folder(tmp_path / "m"))))
    assert facts.parameters == 2_516_756_480  # MiniCPM5-2B's own number
    assert facts.eos_ids == [1, 130073] and not facts.tied and facts.rope_theta == 5e6


def test_stored_tensors_count_when_they_are_there(tmp_path):
    import numpy as np
    from safetensors.numpy import save_file

    save_file(
        {"a": np.zeros((3, 5), np.float32), "b": np.zeros(7, np.float16)}, folder(tmp_path / "m") / "model.safetensors"
    )
    assert describe(find(str(tmp_path / "m"))).parameters == 22


def test_nested_and_newer_configs(tmp_path):
    text = {**{k: v for k, v in CONFIG.items() if k != "rope_theta"}, "rope_parameters": {"rope_theta": 1e6}}
    nested = folder(tmp_path / "m", {"model_type": "gemma3", "text_config": {**text, "model_type": "gemma3_text"}})
    (nested / "generation_config.json").write_text(json.dumps({"eos_token_id": 106}))
    (nested / "README.md").write_text("---\nlicense: gemma\n---\n")
    facts = describe(find(str(nested)))
    assert (facts.model_type, facts.gguf_arch, facts.rope_theta) == ("gemma3_text", "gemma3", 1e6)
    assert facts.eos_ids == [1, 130073, 106] and facts.licence == "gemma"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: "demo:smolm2-135m", "Did you mean 'demo:smollm2-135m'"),
        (lambda p: "", "model.base is empty"),
        (lambda p: "Qwen/Qwen3-0.6B", "models get Qwen/Qwen3-0.6B"),
        (lambda p: "no such model!", "no such folder"),
        (lambda p: str(p), "neither config.json nor a GGUF file"),
        (lambda p: str((p / "adapter_config.json").write_text("{}") and p), "is an adapter, not a model"),
        (lambda p: str((p / "x.bin").write_text("x") and p / "x.bin"), "give the folder with config.json"),
        (lambda p: str([(p / n).write_text("x") for n in ("a.gguf", "b.gguf")] and p), "holds 2 GGUF files"),
    ],
)
def test_what_is_not_found_says_what_to_do(tmp_path, make, words):
    with pytest.raises(BadInput) as refused:
        find(make(tmp_path))
    assert words in str(refused.value) and str(refused.value).endswith((".", "?"))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "cannot be read"),
        ("[]", "not a JSON object"),
        ({"model_type": "llama"}, "no usable num_attention_heads"),
        ({**CONFIG, "hidden_size": "big"}, "no usable hidden_size"),
        ({k: v for k, v in CONFIG.items() if k != "model_type"}, "names no model_type"),
    ],
)
def test_broken_configs_are_sentences(tmp_path, config, words):
    with pytest.raises(BadInput, match=words):
        describe(find(str(folder(tmp_path / "m", config))))


def test_the_hubs_cache_is_looked_into(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--Some--Model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    folder(snapshot)
    assert "Some/Model" in known()
    with pytest.raises(BadInput, match="Did you mean 'Some/Model'"):
        find("Some/Modell")


def test_a_hub_model_in_the_cache_is_found_without_a_network(tmp_path, monkeypatch):
    folder(tmp_path / "snap")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *a, **k: str(tmp_path / "snap"))
    with pytest.raises(BadInput, match=r"only partly on this machine \(weights missing\)"):
        find("Some/Model")
    shards = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "snap" / "model.safetensors.index.json").write_text(json.dumps(shards))
    (tmp_path / "snap" / "model-1.safetensors").write_text("")
    with pytest.raises(BadInput, match=r"model-2\.safetensors missing.*models get Some/Model"):
        find("Some/Model")
    (tmp_path / "snap" / "model-2.safetensors").write_text("")
    source = find("Some/Model", "main")
    assert (source.kind, source.name, source.folder, source.revision) == (
        "hub",
        "Some/Model",
        tmp_path / "snap",
        "snap",
    )


def test_a_gguf_file_and_its_folder_are_models(tmp_path):
    path = gguf_toys.byte_level(tmp_path / "toy.gguf", "{{ messages[0].content }}")
    for reference in (path, tmp_path):
        source = find(str(reference))
        assert source.gguf == path and describe(source).vocab == 49152
    assert load_tokenizer(source).render([{"role": "user", "content": "x"}]) == "x"


def test_header_reads_every_kind_of_value_and_skips_long_arrays(tmp_path):
    import gguf

    writer = gguf.GGUFWriter(str(tmp_path / "k.gguf"), "llama")
    writer.add_bool("k.bool", True)
    writer.add_int8("k.i8", -3)
    writer.add_uint64("k.u64", 2**40)
    writer.add_float64("k.f64", 0.5)
    writer.add_array("k.words", ["a", "é"] * 100)
    writer.add_array("k.numbers", [1, 2, 3])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    whole = read_header(tmp_path / "k.gguf").metadata
    assert [whole[f"k.{n}"] for n in ("bool", "i8", "u64", "f64", "numbers")] == [True, -3, 2**40, 0.5, [1, 2, 3]]
    assert whole["k.words"] == ["a", "é"] * 100
    assert read_header(tmp_path / "k.gguf", arrays=False).metadata["k.words"] == 200


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_bytes_break_the_header_reader(tmp_path, data):
    import struct

    body = data.draw(st.binary(max_size=200))
    counts = struct.pack("<QQ", data.draw(st.integers(0, 2**64 - 1) | st.integers(0, 3)), data.draw(st.integers(0, 3)))
    start = data.draw(st.sampled_from([b"", b"GGUF\x03\0\0\0" + counts, b"GGUF\x02\0\0\0" + counts, b"GGUF"]))
    (tmp_path / "x.gguf").write_bytes(start + body)
    try:
        read_header(tmp_path / "x.gguf")
    except BadInput as error:
        assert str(tmp_path / "x.gguf") in str(error)


def test_a_header_cut_short_is_a_sentence(tmp_path):
    whole = gguf_toys.byte_level(tmp_path / "toy.gguf", None).read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:300_000])
    with pytest.raises(BadInput, match="was cut short"):
        describe(find(str(tmp_path / "cut.gguf")))


def test_unknown_splitters_are_refused_rather_than_guessed(tmp_path):
    path = gguf_toys.byte_level(tmp_path / "toy.gguf", None, pre="never-heard-of")
    with pytest.raises(BadInput, match="never-heard-of"):
        from_gguf(path)


def demo_as_folder(path: Path) -> Path:
    """The demo tokenizer written as Hugging Face's files."""
    tokenizer = load_tokenizer(find("demo:smollm2-135m"))
    folder(path)
    tokenizer.backend.save(str(path / "tokenizer.json"))
    table = {**tokenizer.special, "chat_template": tokenizer.template}
    (path / "tokenizer_config.json").write_text(json.dumps(table))
    return path


CHATS = [
    [{"role": "user", "content": "hi"}],
    [
        {"role": "system", "content": ""},
        {"role": "user", "content": " é 日本 "},
        {"role": "assistant", "content": "x\n"},
    ],
]


@pytest.mark.parametrize("name", ["smollm2", "qwen3", "llama3", "gemma", "minicpm5"])
@pytest.mark.parametrize("prompt", [True, False])
def test_rendering_is_apply_chat_template(tmp_path, name, prompt):
    """The same text as transformers' own tokenizer class gives, for each family and with tools."""
    from transformers import PreTrainedTokenizerFast

    template = (Path(__file__).parents[1] / "templates" / f"{name}.jinja").read_text()
    path = demo_as_folder(tmp_path / "m")
    (path / "chat_template.jinja").write_text(template)
    ours = from_folder(path)
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(path / "tokenizer.json"), chat_template=template, **ours.special
    )
    tools = [{"type": "function", "function": {"name": "f", "description": "ü", "parameters": {"type": "object"}}}]
    for chat in CHATS:
        for offered in (None, tools):
            wanted = theirs.apply_chat_template(chat, tools=offered, add_generation_prompt=prompt, tokenize=False)
            assert ours.render(chat, tools=offered, add_generation_prompt=prompt) == wanted
            assert ours.encode(wanted) == theirs(wanted, add_special_tokens=False)["input_ids"]
    off = theirs.apply_chat_template(CHATS[0], add_generation_prompt=prompt, tokenize=False, enable_thinking=False)
    assert ours.render(CHATS[0], add_generation_prompt=prompt, thinking=False) == off


def test_a_separate_jinja_file_wins_and_named_templates_are_kept(tmp_path):
    path = demo_as_folder(tmp_path / "m")
    assert from_folder(path).template.startswith("{% for message")
    (path / "chat_template.jinja").write_text("{{ 'mine' }}")
    assert from_folder(path).render(CHATS[0]) == "mine"
    named = [{"name": "default", "template": "{{ 'plain' }}"}, {"name": "tool_use", "template": "{{ 'tools' }}"}]
    (path / "chat_template.jinja").unlink()
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    tokenizer = from_folder(path)
    assert tokenizer.render(CHATS[0]) == "plain" and tokenizer.render(CHATS[0], tools=[{"name": "f"}]) == "tools"


def test_one_bos(tmp_path):
    path = demo_as_folder(tmp_path / "m")
    table = {
        "add_bos_token": True,
        "bos_token": {"content": "<|im_start|>"},
        "chat_template": "{{ messages[0].content }}",
    }
    (path / "tokenizer_config.json").write_text(json.dumps(table))
    tokenizer = from_folder(path)
    assert tokenizer.add_bos and tokenizer.bos_id == 1
    assert tokenizer.encode_chat("a")[0] == 1 and tokenizer.encode_chat("<|im_start|>a").count(1) == 1
    assert 1 not in tokenizer.encode("a")


def test_a_model_without_a_template_gets_a_plain_one(tmp_path):
    path = demo_as_folder(tmp_path / "m")
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    tokenizer = from_folder(path)
    assert tokenizer.template_from == "plain"
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    assert tokenizer.render(chat) == "User: hi\nAssistant: yo<|im_end|>\n"
    assert tokenizer.render(chat[:1], add_generation_prompt=True) == "User: hi\nAssistant: "


@pytest.mark.parametrize("template", ["{% for", "{{ raise_exception('no') }}", "{{ messages.x.y }}", "{{ 1 + 'a' }}"])
def test_templates_that_fail_are_sentences(tmp_path, template):
    path = demo_as_folder(tmp_path / "m")
    (path / "chat_template.jinja").write_text(template)
    with pytest.raises(BadInput, match="The chat template refuses this chat"):
        from_folder(path).render(CHATS[0])


def test_a_template_cannot_reach_the_machine(tmp_path):
    path = demo_as_folder(tmp_path / "m")
    (path / "chat_template.jinja").write_text("{{ messages.__class__.__base__.__subclasses__() }}")
    with pytest.raises(BadInput):
        from_folder(path).render(CHATS[0])


def test_broken_and_missing_tokenizers_are_sentences(tmp_path):
    path = folder(tmp_path / "m")
    with pytest.raises(BadInput, match=r"no tokenizer\.json"):
        load_tokenizer(find(str(path)))
    (path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadInput, match="cannot be read as a tokenizer"):
        load_tokenizer(find(str(path)))


def test_truncation_and_padding_of_the_file_are_off(tmp_path):
    path = demo_as_folder(tmp_path / "m")
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_file(str(path / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    backend.save(str(path / "tokenizer.json"))
    assert len(from_folder(path).encode("one two three four five six seven")) == 7


def test_nothing_here_imports_torch(tmp_path):
    code = (
        "import sys; from bc250studio.models.find import find; from bc250studio.models.describe import describe;"
        "from bc250studio.models.tokenizer import load_tokenizer; import bc250studio.data, bc250studio.cli.data;"
        "s = find('demo:smollm2-135m'); describe(s); t = load_tokenizer(s);"
        "t.encode(t.render([{'role': 'user', 'content': 'x'}])); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
