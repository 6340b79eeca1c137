"""What the doctor looks at: a file tree, the login, and questions to other programs that tests can answer instead."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bc250studio import jobs, paths
from bc250studio.board import amd, gpu, presets
from bc250studio.board.doctor import probes
from bc250studio.board.reading import Reading
from bc250studio.board.sensors import Sensors
from bc250studio.board.sysfs import Tree


@dataclass(frozen=True)
class ServerFacts:
    """The llama-server a run would use: ``error`` instead of the rest when there is none."""

    path: str = ""
    version: str = ""
    devices: tuple[str, ...] = ()
    """As ``--list-devices`` names them: ``Vulkan0: AMD BC-250 (RADV GFX1013)``."""
    error: str = ""


@dataclass(frozen=True)
class Login:
    """Who runs this and in which terminal."""

    user: str
    groups: frozenset[str]
    terminal: bool
    columns: int
    variables: Mapping[str, str]


def this_login() -> Login:
    """The login of this process."""
    names = set()
    for number in {os.getgid(), *os.getgroups()}:
        try:
            names.add(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    size = shutil.get_terminal_size((80, 24))
    return Login(user, frozenset(names), os.isatty(0) or os.isatty(1) or os.isatty(2), size.columns, dict(os.environ))


def _ask_program(command: Sequence[str]) -> str | None:
    """A program's output; None when it is not there or refuses."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _no_server() -> ServerFacts:
    return ServerFacts(error="nobody asked")


@dataclass
class Machine:
    """Everything a check may ask. The callables are asked at most once."""

    root: str | Path = "/"
    login: Login = field(default_factory=this_login)
    library: str | None = None
    """The tuned kernel folder a run would use, as the kernels part says."""
    library_why: str = ""
    python: str = field(default_factory=probes.runner_python)
    quick: bool = False
    """Leave out what starts torch."""
    ask_torch: Callable[[], dict[str, Any]] | None = None
    ask_products: Callable[[], dict[str, Any] | str] | None = None
    ask_server: Callable[[], ServerFacts] = _no_server
    ask_program: Callable[[Sequence[str]], str | None] = _ask_program
    ask_jobs: Callable[[], list[jobs.Standing]] = jobs.live
    ask_free_bytes: Callable[[], int] = lambda: shutil.disk_usage(paths.private_dir(paths.data_dir())).free
    ask_clock: Callable[[], dict[str, Any]] | None = None

    @cached_property
    def tree(self) -> Tree:
        """The file tree."""
        return Tree(self.root)

    @cached_property
    def chip(self) -> presets.Chip:
        """The chip and its preset."""
        return presets.detect(self.root)

    @cached_property
    def gpu(self) -> gpu.Gpu | None:
        """The GPU a run would use."""
        return next(iter(gpu.find(self.tree)), None)

    @property
    def is_bc250(self) -> bool:
        """Whether the board's own checks apply."""
        return self.chip.name == "gfx1013"

    @cached_property
    def readings(self) -> dict[str, Reading]:
        """The sensors now."""
        return Sensors.discover(self.root).read()

    @cached_property
    def torch(self) -> dict[str, Any]:
        """See probes.torch_facts."""
        if self.ask_torch is not None:
            return self.ask_torch()
        return probes.torch_facts(self.python, probes.environment(self.chip, self.library))

    @cached_property
    def products(self) -> dict[str, Any] | str:
        """See probes.products."""
        if self.ask_products is not None:
            return self.ask_products()
        return probes.products(self.python, probes.environment(self.chip, self.library))

    @cached_property
    def server(self) -> ServerFacts:
        """The server binary."""
        return self.ask_server()

    @cached_property
    def memory_bytes(self) -> dict[str, int]:
        """amdgpu's memory sizes, empty without an AMD GPU."""
        return amd.memory_bytes(self.tree, self.gpu) if self.gpu is not None and self.gpu.is_amd else {}

    @cached_property
    def command_line(self) -> dict[str, str]:
        """The kernel's boot arguments."""
        words = (self.tree.text("/proc/cmdline") or "").split()
        return {name: value for name, _, value in (word.partition("=") for word in words)}

    def install(self, package: str) -> str:
        """The command that installs a package here."""
        release = (self.tree.text("/etc/os-release") or "").lower()
        for word, command in (
            ("arch", "sudo pacman -S"),
            ("fedora", "sudo dnf install"),
            ("suse", "sudo zypper install"),
        ):
            if word in release:
                return f"{command} {package}"
        return f"sudo apt install {package}"
