"""Why a server died, what an answer misses, and whether there is room: all in words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bc250studio import jobs
from bc250studio.errors import BadInput, JobFailed
from bc250studio.export.gguf_write import Fields, GgufWriter, Slot
from bc250studio.jobs import JobFolder
from bc250studio.jobs.identity import mine
from bc250studio.jobs.progress import silent
from bc250studio.models.gguf_file import STRING, U32
from bc250studio.serve import ask, causes, memory, server, target
from bc250studio.serve.ask import Question, read_questions
from bc250studio.serve.binary import CPU, Device
from bc250studio.terminal_codes import osc52

RADV = Device("Vulkan0", "AMD Radeon Graphics (RADV GFX1013)", 12288, 12000)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("ggml_vulkan: ErrorDeviceLost", -6, "the GPU was lost"),
        ("ggml_backend_alloc_ctx_tensors: failed to allocate buffer of size 9", 1, "ran out of memory"),
        ("terminate called after throwing 'std::bad_alloc'", -6, "ran out of memory"),
        ("unknown model architecture: 'minicpm9'", 1, "does not know the model's architecture (minicpm9)"),
        ("unknown pre-tokenizer type: 'minicpm5'", 1, "does not know the model's tokenizer (minicpm5)"),
        ("tensor 'x' data is not within the file bounds, model is corrupted or incomplete", 1, "truncated"),
        ("Jinja: error while parsing the template", 1, "cannot read the model's chat template"),
        ("srv  start: couldn't bind HTTP server socket, port 80", 1, "its port was taken"),
        ("0.1 AMX is not ready to be used!", -4, "instructions this CPU does not have"),
        ("all fine", -9, "it was killed"),
        ("all fine", -11, "it crashed"),
        ("all fine", 7, "exit code 7"),
        ("", None, "without a word"),
        ("corrupted size vs. prev_size while consolidating", -6, "broken heap"),
    ],
)
def test_the_cause_of_death_is_named(text: str, code: int | None, said: str):
    assert said in causes.cause(text, code)


@given(st.text(), st.none() | st.integers(-64, 255))
@settings(deadline=None)
def test_any_log_gives_some_words(text: str, code: int | None):
    assert causes.cause(text, code)


def test_the_last_telling_lines_come_with_it(tmp_path: Path):
    log = tmp_path / "server.log"
    log.write_text("0.00.1 I srv  loading\n0.00.2 E unknown model architecture: 'x\x1b[31my'\n0.00.3 I bye\n")
    said = causes.obituary(log, 1)
    assert "Last lines: unknown model architecture: 'xy'" in said and str(log) in said and "\x1b" not in said


def question(**entry: object) -> Question:
    return ask._question({"prompt": "?", **entry}, "here")


def test_expectations():
    assert question(contains=["Paris", "FRANCE"]).unmet("In paris.") == ["does not contain 'FRANCE'"]
    assert question(regex=r"\d+ °C").unmet("90 °C") == []
    assert question(exact=" yes ").unmet("yes\n") == []
    assert question(exact="yes").unmet("yes!") == ["is not exactly the expected text"]
    assert question(json=True).unmet('```json\n{"a": 1}\n```') == []
    assert question(json=["a", "b"]).unmet('{"a": 1}') == ["its JSON lacks b"]
    assert question(json=True).unmet("no") == ["is not JSON"]
    assert not question().expects


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.toml", '[[ask]]\nprompt = "x"\ncontain = "y"', "entry 1: unknown key 'contain'. Did you mean 'contains'?"),
        ("a.toml", "[[ask]]\ncontains = 1", "entry 1: prompt is missing"),
        ("a.json", '[{"prompt": "x", "regex": "("}]', "is not valid"),
        ("a.json", '[{"prompt": "x", "contains": 3}]', "contains takes texts"),
        ("a.jsonl", '{"prompt": "x"}\n{', "is not valid jsonl"),
        ("a.json", "[]", "holds no questions"),
        ("a.json", '[{"messages": [{"role": 1}]}]', "messages must be a list"),
    ],
)
def test_a_wrong_prompts_file_is_refused_with_its_entry(tmp_path: Path, name: str, text: str, said: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput) as error:
        read_questions(tmp_path / name)
    assert said in str(error.value)


LAX = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(blob=st.binary(max_size=300), ending=st.sampled_from(["toml", "json", "jsonl"]))
@LAX
def test_any_prompts_file_is_read_or_refused(tmp_path: Path, blob: bytes, ending: str):
    path = tmp_path / f"a.{ending}"
    path.write_bytes(blob)
    try:
        assert read_questions(path)
    except BadInput:
        pass


def test_a_prompts_file_with_everything(tmp_path: Path):
    path = tmp_path / "prompts.toml"
    path.write_text('[[ask]]\nprompt = "How hot?"\nsystem = "Brief."\ncontains = "90"\nregex = "°"\njson = ["a"]\n')
    (found,) = read_questions(path)
    assert found.messages == ({"role": "system", "content": "Brief."}, {"role": "user", "content": "How hot?"})
    assert (found.contains, found.regex, found.json) == (("90",), "°", ("a",))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A GGUF of 32 layers, 8 KV heads of 64 numbers, and a 64 MiB tensor."""
    fields = Fields()
    fields.put("general.architecture", STRING, "llama")
    numbers = {"block_count": 32, "embedding_length": 2048, "attention.head_count": 32, "attention.head_count_kv": 8}
    for key, number in numbers.items():
        fields.put(f"llama.{key}", U32, number)
    with GgufWriter(tmp_path / "w.gguf", fields, [Slot("x", (1024, 16384), 0)]) as writer:
        writer.write("x", np.zeros((1024, 16384), np.float32))
    return tmp_path / "w.gguf"


def test_the_cache_is_counted_from_the_models_shape(weights: Path):
    without = memory.need_mib(weights, None, 0, 1, (2.0, 2.0))
    assert without == 64 + memory.SPARE_MIB
    # 32 layers x 8 heads x 64 numbers x 2 bytes for keys and as much for values: 64 KiB a token.
    assert memory.need_mib(weights, None, 4096, 2, (2.0, 2.0)) - without == 4096 * 2 * 64 // 1024
    assert memory.need_mib(weights, weights, 4096, 2, (4.0, 4.0)) - without == 64 + 2 * 512


def test_a_training_run_keeps_the_boards_memory(weights: Path, monkeypatch: pytest.MonkeyPatch):
    job = JobFolder.create("train", None, "long night")
    job.write_state(phase="training", owner=mine().as_dict())
    assert jobs.live()
    with pytest.raises(JobFailed, match=r"long-night-.* is training and the server would share its memory"):
        memory.check(RADV, weights, None, 512, 1)
    memory.check(CPU, weights, None, 512, 1)  # no APU here
    memory.check(Device("Vulkan0", "NVIDIA H200", 143000, 140000), weights, None, 512, 1)
    memory.check(RADV, weights, None, 512, 1, own_job=job.path)

    class Apu:
        apu = True

    monkeypatch.setattr(memory.presets, "detect", lambda: Apu)
    with pytest.raises(JobFailed, match="would share its memory"):
        memory.check(CPU, weights, None, 512, 1)  # on an APU the CPU's memory is the GPU's
    job.write_state(phase="done")
    memory.check(RADV, weights, None, 512, 1)


def test_a_run_that_works_keeps_its_server():
    job = JobFolder.create("train", None, "busy")
    job.write_state(phase="proving", owner=mine().as_dict())
    with pytest.raises(JobFailed, match="is proving at this moment; follow it with: bc250studio attach busy-"):
        target.require_idle(job)
    job.write_state(phase="done")
    target.require_idle(job)


def test_a_target_that_is_nothing_says_what_there_is(tmp_path: Path):
    with pytest.raises(BadInput, match="No run is called"):
        target.job_for("nothing-here", None, silent)
    with pytest.raises(BadInput, match="No run of the profile demo has been exported yet"):
        target.job_for("demo", None, silent)
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(BadInput, match="cannot be read"):
        target.job_for(str(tmp_path), None, silent)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(BadInput, match="give it with --base"):
        target.job_for(str(tmp_path), None, silent)
    assert not jobs.all_jobs()


def test_too_little_memory_is_refused_with_both_numbers(weights: Path, monkeypatch: pytest.MonkeyPatch):
    class Little:
        available = 100 * 2**20

    monkeypatch.setattr(psutil, "virtual_memory", lambda: Little)
    with pytest.raises(JobFailed, match=r"needs about \d+ MiB and only 100 MiB are of memory available"):
        memory.check(RADV, weights, None, 4096, 2)
    with pytest.raises(JobFailed, match="only 50 MiB are free on Vulkan0"):
        memory.check(Device("Vulkan0", "NVIDIA GTX", 2000, 50), weights, None, 4096, 2)


def test_the_tunnel_line_comes_from_the_ssh_connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 50000 192.168.7.5 22")
    monkeypatch.setenv("LOGNAME", "me")
    record = {
        "url": "http://127.0.0.1:4711", "key": "k", "device": "CPU", "backend_words": "CPU", "binary": "b",
        "version": "1", "model": "m", "n_ctx": 64, "host": "127.0.0.1", "port": 4711, "started": 1.0,
    }  # fmt: skip
    (tmp_path / "server.json").write_text(json.dumps(record))
    found = server.read(tmp_path)
    assert found is not None
    lines = server.tunnel_lines(found)
    assert lines["tunnel"] == "ssh -L 4711:127.0.0.1:4711 me@192.168.7.5"
    assert "Bearer k" in lines["curl"]
    assert "".join(osc52("ssh")) == "\x1b]52;c;c3No\x07"


@given(blob=st.binary(max_size=400))
@LAX
def test_any_server_json_is_read_or_passed_over(tmp_path: Path, blob: bytes):
    (tmp_path / "server.json").write_bytes(blob)
    assert server.read(tmp_path) is None
