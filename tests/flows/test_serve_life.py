"""A server's life: detached, adopted, stopped only when ours, dead in words, back on one key."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bc250studio.cli import chat as chat_command
from bc250studio.errors import BadInput, JobFailed
from bc250studio.jobs import Identity, JobFolder
from bc250studio.jobs.identity import of
from bc250studio.jobs.progress import silent
from bc250studio.jobs.spawn import child_environment
from bc250studio.models.gguf_file import GgufFile
from bc250studio.serve import server, stage_serve
from bc250studio.serve.chat import Chat
from bc250studio.serve.server import Plan
from bc250studio.serve.talk import ServerGone
from bc250studio.serve.target import job_for
from tests.serve_tools import case, server_binary

pytestmark = [pytest.mark.server, pytest.mark.slow]
HELLO = [{"role": "user", "content": "Hello"}]


def wait_until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    server.stop_folder(tmp_path)


def plan() -> Plan:
    made = case()
    return Plan(model=made.base, adapter=made.adapter, device="cpu", context=256, warmup=False, threads=1)


def test_started_adopted_stopped_and_its_key_is_nobodys_business(folder: Path):
    started = server.start(folder, plan(), server_binary())
    assert started.process is not None
    assert stat.S_IMODE((folder / "server.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "server.key").stat().st_mode) == 0o600
    proc = Path(f"/proc/{started.process.pid}")
    assert started.key.encode() not in (proc / "cmdline").read_bytes()
    assert started.key.encode() not in (proc / "environ").read_bytes()
    assert started.key[:-6] not in started.log.read_text()
    assert int((proc / "oom_score_adj").read_text()) > 0
    assert started.url.startswith("http://127.0.0.1:") and started.n_ctx == 256
    assert "key" not in started.public()

    stranger = replace(started, key="guess").talk()
    with pytest.raises(BadInput, match=r"does not know this key"):
        stranger.props()

    adopted = server.adopt(folder)
    assert adopted is not None and adopted.process == started.process
    assert server.stop(folder) is True
    assert not started.alive and server.read(folder) is None
    assert server.stop(folder) is False


def test_kill_9_of_the_starter_leaves_a_server_that_is_adopted(folder: Path):
    made = case()
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from bc250studio.serve import server; from bc250studio.serve.binary import find_binary\n"
        "from bc250studio.settings import Settings\n"
        "folder, model, adapter = map(Path, sys.argv[1:])\n"
        "plan = server.Plan(model=model, adapter=adapter, device='cpu', context=256, threads=1)\n"
        "server.start(folder, plan, find_binary(Settings()))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    words = [sys.executable, "-c", code, str(folder), str(made.base), str(made.adapter)]
    assert subprocess.run(words, env=child_environment(), timeout=120).returncode == -signal.SIGKILL
    adopted = server.adopt(folder)
    assert adopted is not None and adopted.alive
    assert adopted.talk().chat(HELLO, 1.0, max_tokens=2).tokens == 2


def test_a_start_that_was_cut_off_is_finished_or_cleaned_up(folder: Path):
    started = server.start(folder, plan(), server_binary())
    record = json.loads((folder / "server.json").read_text())
    unfinished = {**record, "process": None, "state": "starting"}  # killed between the spawn and its record
    (folder / "server.json").write_text(json.dumps(unfinished))
    adopted = server.adopt(folder)
    assert adopted is not None and adopted.process == started.process
    assert json.loads((folder / "server.json").read_text())["state"] == "ready"

    (folder / "server.json").write_text(json.dumps(unfinished))
    assert server.stop(folder) is True
    assert not started.alive

    (folder / "server.json").write_text(json.dumps(unfinished))
    assert server.adopt(folder) is None
    assert server.stop(folder) is False
    assert not (folder / "server.json").exists()


def test_another_process_with_that_pid_is_never_touched(folder: Path):
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        started = server.start(folder, plan(), server_binary())
        assert started.process is not None
        os.kill(started.process.pid, signal.SIGKILL)
        wait_until(lambda: not started.alive)
        record = json.loads((folder / "server.json").read_text())
        reused = {"pid": bystander.pid, "start": started.process.start, "boot": started.process.boot}
        (folder / "server.json").write_text(json.dumps({**record, "process": reused}))
        assert server.adopt(folder) is None
        assert server.stop(folder) is False
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_taken_port_is_said_before_anything_starts(folder: Path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        serve = stage_serve.Plan(model=Path("/"), port=port)
        with pytest.raises(BadInput, match=f"port {port} cannot be used"):
            server.check_address(serve)  # type: ignore[arg-type]
        with pytest.raises(JobFailed, match=f"Port {port} was taken|its port was taken"):
            server.start(folder, replace(plan(), port=port), server_binary())
    assert server.read(folder) is None


def test_death_while_loading_is_told_in_words(folder: Path):
    made = case()
    blob = made.base.read_bytes()
    (folder / "strange.gguf").write_bytes(
        blob.replace(b"llama.block_count", b"llame.block_count").replace(
            b"general.architecture" + (8).to_bytes(4, "little") + (5).to_bytes(8, "little") + b"llama",
            b"general.architecture" + (8).to_bytes(4, "little") + (5).to_bytes(8, "little") + b"llame",
        )
    )
    with pytest.raises(JobFailed, match=r"does not know the model's architecture \(llame\); a newer build"):
        server.start(folder, replace(plan(), model=folder / "strange.gguf", adapter=None), server_binary())

    other = case("qwen2")
    with pytest.raises(JobFailed, match=r"died while loading: the adapter does not fit this base model"):
        server.start(folder, replace(plan(), adapter=other.adapter), server_binary())
    assert server.read(folder) is None
    with GgufFile(made.base) as file:
        assert file.arch == "llama"


def test_base_answers_are_those_of_a_server_without_adapter_and_a_cancelled_answer_frees_its_slot(folder: Path):
    started = server.start(folder, plan(), server_binary())
    talk = started.talk()
    base, tuned = (talk.chat(HELLO, scale, max_tokens=12) for scale in (0.0, 1.0))
    assert base.text != tuned.text and base.stop == "limit" and base.tokens_per_s > 0

    chat = Chat(talk, folder, system="Be brief.", max_tokens=80)
    for _, piece in chat.say("A long story, please."):
        if piece.answer is None:
            chat.cancel()
    assert any(history[-1]["role"] == "assistant" for history in chat.histories.values())
    lines = [json.loads(line) for line in chat.transcript.read_text().splitlines()]
    assert {line["answer"]["stop"] for line in lines} <= {"cancelled", "limit", "end"}
    assert any(line["answer"]["stop"] == "cancelled" for line in lines)
    assert stat.S_IMODE(chat.transcript.stat().st_mode) == 0o600
    wait_until(lambda: not any(slot["is_processing"] for slot in talk.slots()))

    server.start(folder, replace(plan(), adapter=None), server_binary())
    without = server.read(folder)
    assert without is not None
    assert without.talk().chat(HELLO, 0.0, max_tokens=12).text == base.text


def test_a_chat_longer_than_the_context_is_refused_in_words(folder: Path):
    talk = server.start(folder, plan(), server_binary()).talk()
    with pytest.raises(BadInput, match=r"longer than the server's context"):
        talk.chat([{"role": "user", "content": "word " * 400}], 1.0, max_tokens=2)


def test_a_server_killed_during_a_chat_comes_back_on_one_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    made = case()
    job, resolved = job_for(str(made.peft), None, silent)
    assert isinstance(job, JobFolder) and job.stage("export")["outputs"]["kind"] == "adapter"
    monkeypatch.setattr(
        stage_serve, "plan_for", lambda job, resolved: replace(plan(), adapter=job.path / "export" / "adapter.gguf")
    )
    try:
        found = stage_serve.running(job, resolved, silent)
        terminal = chat_command._Terminal(Chat(found.talk(), job.path, max_tokens=6), job, resolved, "tuned")
        terminal.answer("Hello")
        assert "tuned> " in capsys.readouterr().out
        assert found.process is not None
        os.kill(found.process.pid, signal.SIGKILL)
        wait_until(lambda: not found.alive)
        terminal.answer("Are you there?")
        said = capsys.readouterr().err
        assert "The server is gone: " in said and "Press enter to start it again" in said
        terminal.restart()
        again = server.read(job)
        assert again is not None and (again.url, again.key) == (found.url, found.key)
        assert again.process != found.process
        said = capsys.readouterr()
        assert "The server runs again" in said.err and "tuned> " in said.out
        history = terminal.chat.histories["tuned"]
        assert [message["content"] for message in history if message["role"] == "user"] == ["Hello", "Are you there?"]
    finally:
        server.stop(job)


def test_a_server_that_dies_in_the_middle_of_an_answer_is_a_sentence(folder: Path):
    started = server.start(folder, replace(plan(), context=512), server_binary())
    assert started.process is not None
    began = threading.Event()

    def kill(victim: Identity) -> None:
        began.wait(30)
        os.kill(victim.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill, args=(started.process,))
    killer.start()
    with pytest.raises(ServerGone, match=r"went away in the middle of an answer|Nothing answers"):
        for _ in started.talk().stream(HELLO, 1.0, max_tokens=400, ignore_eos=True):
            began.set()
    killer.join()
    wait_until(lambda: not started.alive)
    assert of(started.process.pid) != started.process
