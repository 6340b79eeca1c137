"""The journey a user makes at night, by keys, through a real sshd on loopback.

Log in, start a run, the line is cut, log in again, the app opens on the run, export and serve, chat.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bc250studio import jobs
from tests import tiny
from tests.pty.terminal import Terminal

SSHD = shutil.which("sshd") or ("/usr/sbin/sshd" if Path("/usr/sbin/sshd").exists() else None)


class Sshd:
    """A server of our own: own port, own keys, only this user, only loopback."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder, self.home = folder, home
        for name in ("host", "user"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        shutil.copy(folder / "user.pub", folder / "authorized")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        (folder / "config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\n"
            f"AuthorizedKeysFile {folder}/authorized\n"
            "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nPidFile none\n"
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(parents=True, exist_ok=True)
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [str(SSHD), "-D", "-e", "-f", str(folder / "config")], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + 20
        while socket.socket().connect_ex(("127.0.0.1", self.port)) != 0:
            assert self.process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)

    def log_in(self) -> Terminal:
        """A terminal with the app at the other end of the line."""
        remote = f"env BC250STUDIO_HOME={self.home} PYTHONPATH={Path(__file__).parents[2]}"
        options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "IdentitiesOnly=yes", "LogLevel=ERROR"]
        words = ["ssh", "-tt", "-p", str(self.port), "-i", str(self.folder / "user")]
        words += [word for option in options for word in ("-o", option)]
        words += [f"{getpass.getuser()}@127.0.0.1", f"{remote} {sys.executable} -m bc250studio.cli.main"]
        return Terminal(words)


@pytest.fixture
def sshd(home: Path, tmp_path: Path) -> Iterator[Sshd]:
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("no sshd here (apt-get install openssh-server)")
    server = Sshd(tmp_path, home)
    yield server
    server.process.terminate()
    server.process.wait(10)


@pytest.mark.e2e
@pytest.mark.server
@pytest.mark.slow
def test_a_night_over_ssh(sshd: Sshd):
    from bc250studio.serve import server

    model = tiny.tiny_model()
    with sshd.log_in() as line:
        line.until("No live run", timeout_s=60)
        line.press("n")
        line.until("135 M parameters")  # described: the field has the focus
        line.press("ctrl+u", *str(model), "f4")
        line.until("2 dataset ", timeout_s=60)
        line.until("assets:demo.jsonl")
        line.press("f4")
        line.until("adapter.rank")
        line.press("f4")
        line.until("Not default")
        line.press("t")
        line.until("step ", timeout_s=180)
        line.until(lambda: (jobs.all_jobs()[0].state().get("step") or 0) >= 2, timeout_s=180)
        line.process.send_signal(signal.SIGKILL)
        line.process.wait(10)
    job = jobs.all_jobs()[0]
    assert jobs.standing(job).live, "the run goes on without the line"

    with sshd.log_in() as line:
        line.until(job.name[:20], timeout_s=60)
        line.until("✓ done", timeout_s=300)
        line.press("e")
        line.until("Export and serve")
        line.until("served = trained", timeout_s=300)
        line.until(lambda: not jobs.standing(job).live, timeout_s=120)
        line.press("c")
        line.until("context", timeout_s=30)
        line.press(*"Hi", "enter")
        line.until("tok/s", timeout_s=120)
        line.press("f3")
        line.until("Export and serve")
        line.press("q")
        line.ended()
    proof = job.stage("prove")["proof"]
    assert job.stage("prove")["verdict"] == "passed" and proof["tokens"] > 0
    assert server.stop(job)
