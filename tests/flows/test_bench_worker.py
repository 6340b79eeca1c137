"""The process that measures goes when the command that asked for it goes, however that ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

pytestmark = pytest.mark.slow

COMMAND = """
from bc250studio.bench.recipes_memory import run, add
import argparse
parser = argparse.ArgumentParser()
add(parser)
run(parser.parse_args("--mib 16 --rounds 1000 --seconds 5 --device cpu".split()))
"""


def test_a_killed_command_leaves_no_bench_behind() -> None:
    command = subprocess.Popen([sys.executable, "-c", COMMAND], stderr=subprocess.PIPE, text=True)
    try:
        assert command.stderr is not None
        for line in command.stderr:
            if line.startswith(("copy", "add")):
                break
        (worker,) = psutil.Process(command.pid).children()
        os.kill(command.pid, signal.SIGKILL)
        command.wait()
        deadline = time.monotonic() + 60
        while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        command.kill()
        command.wait()
        if command.stderr is not None:
            command.stderr.close()
