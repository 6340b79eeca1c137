"""serve, ask, chat, prove and bench serve as a person types them, for an adapter folder from anywhere."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bc250studio import jobs, paths
from bc250studio.bench import recipes_serve
from bc250studio.cli.main import main
from bc250studio.jobs.spawn import child_environment
from bc250studio.serve import server, tune
from tests.serve_tools import case, server_binary

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that sleep instead of spinning while they wait: these tests share two cores with others."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")


@pytest.fixture
def served(capsys: pytest.CaptureFixture[str]) -> Iterator[dict]:
    """``serve ADAPTER_DIR --json``."""
    server_binary()
    assert main(["serve", str(case().peft), "--context", "256", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    yield found
    server.stop(jobs.find(found["run"]))


def said(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out)


def test_an_adapter_folder_is_served_asked_and_stopped(
    served: dict, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    run = served["run"]
    assert served["server"]["device"] == "CPU" and served["server"]["backend_words"] == "CPU"
    assert served["tunnel"].startswith("ssh -L ") and served["key"] in served["curl"]
    assert "key" not in served["server"]

    assert main(["serve", run, "--json"]) == 0
    assert said(capsys)["server"]["pid"] == served["server"]["pid"]  # adopted, not started again

    assert main(["ask", run, "--prompt", "Hello", "--max-tokens", "6", "--json"]) == 0
    answer = said(capsys)["answers"][0]
    assert answer["tuned"]["text"] != answer["base"]["text"] and answer["tuned"]["tokens"] == 6

    prompts = tmp_path / "prompts.toml"
    prompts.write_text('[[ask]]\nprompt = "Hello"\ncontains = "a text no random model says"\n')
    assert main(["ask", run, "--file", str(prompts), "--max-tokens", "4"]) == 1
    assert "NOT AS EXPECTED: does not contain" in capsys.readouterr().out
    prompts.write_text("[[ask]]\nprompt = \"Hello\"\nregex = '''(?s).*'''\n")
    assert main(["ask", run, "--file", str(prompts), "--max-tokens", "4"]) == 0
    assert "1 of 1 answers are as expected" in capsys.readouterr().out

    talked = subprocess.run(
        [sys.executable, "-m", "bc250studio.cli.main", "chat", run, "--max-tokens", "5", "--temperature", "0"],
        input="Hello\n/tuned\nAgain\n/nonsense\n/quit\n",
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert talked.returncode == 0, talked.stderr
    assert talked.stdout.count("base> ") == 1 and talked.stdout.count("tuned> ") == 2
    assert "No command '/nonsense'" in talked.stderr and "5 tokens" in talked.stderr
    transcripts = list((jobs.find(run).path / "transcripts").glob("*.jsonl"))
    assert len(transcripts) == 1 and len(transcripts[0].read_text().splitlines()) == 3

    lines = (
        "/good\n/set temprature 1\n/set top_k many\n/thinking maybe\n/set max_tokens 3\n/tuned\nHello\n"
        "/good\n/better A better one.\n/prompts 999\n"
    )
    talked = subprocess.run(
        [sys.executable, "-m", "bc250studio.cli.main", "chat", run],
        input=lines,
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert talked.returncode == 0, talked.stderr
    for sentence in (
        "There is no answer of the tuned model to keep", "Did you mean 'temperature'?", "top_k takes a whole number",
        "/thinking takes on, off or auto", "  3 tokens,", "Row 1 of", "Row 2 of", "/prompts takes a number",
    ):  # fmt: skip
        assert sentence in talked.stderr, sentence
    (file,) = (paths.data_dir() / "collected").glob("*.jsonl")
    first, second = (json.loads(line)["messages"] for line in file.read_text().splitlines())
    assert first[-2] == second[-2] == {"role": "user", "content": "Hello"}
    assert first[-1]["content"] and second[-1] == {"role": "assistant", "content": "A better one."}

    assert main(["serve", run, "--stop"]) == 0
    assert "stopped" in capsys.readouterr().out


def test_prove_from_the_command_line_passes_and_fails_with_exit_3(served: dict, capsys: pytest.CaptureFixture[str]):
    job = jobs.find(served["run"])
    shutil.copy(case().reference, job.path / "reference.safetensors")
    job.write_stage("reference", verdict="done", outputs={"reference": "reference.safetensors"})
    assert main(["prove", job.name]) == 0
    out = capsys.readouterr().out
    assert "PROVED: what answers is what was trained." in out and "equal (20 chats)" in out

    other = case(seed=2)
    shutil.copy(other.reference, job.path / "reference.safetensors")
    assert main(["prove", job.name, "--json"]) == 3
    record = said(capsys)
    assert record["verdict"] == "failed" and "wrong base file" in record["proof"]["cause"]
    assert job.stage("prove")["exit_code"] == 3
    assert server.adopt(job) is not None  # the server still runs; it is only marked


def test_bench_serve_shows_the_price_of_the_adapter(served: dict, capsys: pytest.CaptureFixture[str]):
    words = ["bench", "serve", served["run"], "--rounds", "1", "--prompt-tokens", "16", "--answer-tokens", "8"]
    assert main([*words, "--json"]) == 0
    results = said(capsys)["results"]
    assert [side["name"] for side in results["sides"]] == ["base, scale 0", "adapter, scale 1", "merged"]
    assert all(side["tokens_per_s"] > 0 and side["prompt_per_s"] > 0 for side in results["sides"])
    assert results["adapter_over_base"]["tokens_per_s"] > 0

    binary = str(server_binary().path)
    assert main([*words, "--binary", binary, "--binary", binary]) == 0
    assert "answers of A and B: equal" in capsys.readouterr().out

    assert main([*words, "--types", "f16,q8_0", "--json"]) == 0
    rows = {row["name"]: row for row in said(capsys)["results"]["types"]}
    assert rows["f16"]["mean_kl"] < 1e-4 < rows["q8_0"]["mean_kl"] < 0.1


def test_a_type_that_does_not_earn_its_bits_is_flagged():
    def row(name: str, mib: float, kl: float, rate: float) -> dict:
        return {"name": name, "file_mib": mib, "mean_kl": kl, "tokens_per_s": rate}

    found = recipes_serve.flag([row("q4", 80, 0.05, 100), row("q3", 60, 0.02, 110), row("q8", 150, 0.001, 60)])
    assert {one["name"]: one["outlier"] for one in found} == {
        "q3": None,
        "q4": "larger than q3 and further from f16",
        "q8": None,
    }
    slow = recipes_serve.flag([row("q4", 80, 0.01, 30), row("q8", 150, 0.001, 60)])
    assert slow[0]["outlier"] == "smaller than q8 and slower"


def test_tuning_keeps_a_setting_only_when_it_is_faster_and_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made, binary = case(), server_binary()
    plan = server.Plan(model=made.base, adapter=made.adapter, device="cpu", context=256, warmup=False)
    measured = {"as it is": (100, 0.001), "batch 256": (120, 0.001), "cache q8_0": (200, 0.5), "batch 512": (121, 0.0)}

    def pretend(words: str, wanted: server.Plan, *_: object) -> tune.Trial:
        score, kl = measured.get(words, (90, 0.001))
        return tune.Trial(words, wanted, score, kl, {})

    monkeypatch.setattr(tune, "_try", pretend)
    best, trials = tune.tune(tmp_path, plan, binary, None, 0.01)
    assert [trial.words for trial in trials if trial.accepted] == ["as it is", "batch 256"]
    assert best.batch == 256 and best.cache_type_k == "f16"

    tune.keep(binary, best, trials)
    assert tune.applied(plan, binary).batch == 256
    chosen = server.Plan(model=made.base, adapter=made.adapter, device="cpu", context=256, batch=64)
    assert tune.applied(chosen, binary).batch == 64  # what the profile says is not overruled
    other = server.Plan(model=case(seed=1).base, adapter=made.adapter, device="cpu")
    assert tune.applied(other, binary).batch == other.batch


def test_tuning_measures_a_real_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from bc250studio.serve.reference import read_reference

    made, binary = case(), server_binary()
    monkeypatch.setattr(tune, "candidates", lambda plan, binary, vulkan: iter([("batch 64", {"batch": 64})]))
    plan = server.Plan(model=made.base, adapter=made.adapter, device="cpu", context=256, warmup=False, slots=1)
    _, trials = tune.tune(tmp_path, plan, binary, read_reference(made.reference), 0.002)
    assert [trial.words for trial in trials] == ["as it is", "batch 64"]
    assert all(
        trial.kl is not None and trial.kl < 0.002 and trial.score > 0 and "64" in trial.rates for trial in trials
    )
    assert server.read(tmp_path) is None
