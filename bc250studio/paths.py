"""Where things live: XDG places for the user's files, and the files that ship with the package.

``BC250STUDIO_HOME`` moves everything under one folder; tests and fresh trials use it so that they
never touch the user's own runs.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import platformdirs

from bc250studio.errors import BadInput

APP = "bc250studio"
_PACKAGE = Path(__file__).resolve().parent


def command() -> str:
    """How a user here types the program: its name, or the way to it where it is not on PATH (a clone's own venv)."""
    if shutil.which(APP):
        return APP
    script = Path(sys.executable).with_name(APP)
    if not script.is_file():
        return APP
    beside = Path(".venv/bin") / APP
    return str(beside if script == Path.cwd() / beside else script)


def _place(kind: str, fallback: str) -> Path:
    home = os.environ.get("BC250STUDIO_HOME")
    return Path(home).expanduser().absolute() / kind if home else Path(fallback)


def config_dir() -> Path:
    """Settings and the user's profiles."""
    return _place("config", platformdirs.user_config_dir(APP))


def data_dir() -> Path:
    """Runs and everything a user would miss if it were deleted."""
    return _place("data", platformdirs.user_data_dir(APP))


def cache_dir() -> Path:
    """Prepared datasets and probes: safe to delete."""
    return _place("cache", platformdirs.user_cache_dir(APP))


def state_dir() -> Path:
    """Logs of the app itself."""
    return _place("state", platformdirs.user_state_dir(APP))


def runs_dir() -> Path:
    """One folder per job."""
    return data_dir() / "runs"


def user_profiles_dir() -> Path:
    """The user's own profiles, one TOML file each."""
    return config_dir() / "profiles"


def settings_file() -> Path:
    """What this machine has: binaries, the runner's Python, keymap."""
    return config_dir() / "settings.toml"


def private_dir(path: Path) -> Path:
    """Create ``path`` (and its parents) readable by the owner only, and return it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def shipped(name: str) -> Path:
    """A file or folder that ships with the product, such as ``assets/demo.jsonl`` or ``profiles``.

    In a checkout they sit beside the package; in an installed wheel, inside it (``_shipped``).

    Raises:
        BadInput: nothing of that name ships.
    """
    for root in (_PACKAGE / "_shipped", _PACKAGE.parent):
        path = root / name
        if path.exists():
            return path
    raise BadInput(f"The file {name!r} is missing from this installation of {APP}; install it again.")


def write_atomic(path: Path, content: bytes | str, mode: int = 0o600) -> None:
    """Write ``path`` so that a reader sees the old file or the whole new one, also after a power cut.

    Temporary file in the same folder, fsync, rename, fsync of the folder.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_dir(path.parent)


def sync_dir(folder: Path) -> None:
    """Make renames inside ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
