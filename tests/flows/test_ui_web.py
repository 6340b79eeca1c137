"""The web view: on loopback, and a sentence when its package is missing."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import psutil
import pytest
import requests


def test_the_app_is_served_on_loopback_only(home):
    pytest.importorskip("textual_serve", reason="the extra web is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "bc250studio.cli.main", "web", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                page = requests.get(f"http://127.0.0.1:{port}/", timeout=5)
                break
            except requests.ConnectionError:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
        assert page.status_code == 200 and "bc250studio" in page.text
        listening = [c.laddr.ip for c in psutil.Process(process.pid).net_connections("inet") if c.status == "LISTEN"]
        assert set(listening) == {"127.0.0.1"}
    finally:
        process.terminate()
        process.wait(20)


def test_without_the_package_it_says_how_to_get_it(home):
    code = (
        "import sys; sys.modules['textual_serve'] = None\n"
        "from bc250studio.cli.main import main\n"
        "sys.exit(main(['web']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and "pip install 'bc250studio[web]'" in done.stderr
