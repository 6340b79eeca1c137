"""The serving estimate against what a real llama-server reports and takes."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

from bc250studio import settings
from bc250studio.errors import BadInput
from bc250studio.models import memory
from bc250studio.models.describe import describe
from bc250studio.models.find import find
from bc250studio.serve import binary


@pytest.mark.server
@pytest.mark.parametrize(("context", "cache"), [(4096, "f16"), (2048, "q8_0")])
def test_the_estimate_against_llama_servers_own_figures(tmp_path: Path, context: int, cache: str) -> None:
    try:
        server = binary.find_binary(settings.load())
        source = find("demo:smollm2-135m")
    except BadInput as error:
        pytest.skip(str(error))
    assert source.gguf is not None
    log = tmp_path / "server.log"
    command = [str(server.path), "-m", str(source.gguf), "-c", str(context), "-ub", "128", "-b", "128", "-np", "1"]
    command += ["-ctk", cache, "-ctv", cache, "-fa", "on", "--port", "0", "--no-warmup", "-v", "-ngl", "0"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=binary.server_environment()
        )
    try:
        deadline = time.monotonic() + 60
        while "listening on http" not in log.read_text("utf-8", "replace"):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text("utf-8", "replace")[-500:]
            time.sleep(0.05)
        status = Path(f"/proc/{process.pid}/status").read_text()
    finally:
        process.kill()
        process.wait()
    text = log.read_text("utf-8", "replace")
    estimate = memory.serving(
        describe(source),
        file_bytes=source.gguf.stat().st_size,
        context=context,
        key_type=cache,
        value_type=cache,
        rank=0,
    )
    said = re.findall(r"llama_kv_cache: size =\s+([\d.]+) MiB", text)
    assert estimate.parts["keys and values"] / 2**20 == pytest.approx(float(said[-1]), rel=0.01)
    resident = int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024
    assert 0.8 * resident < estimate.total_bytes < 1.6 * resident
