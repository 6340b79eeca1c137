"""The user's Tensile, looked at without running it: version, whether it knows the chip, and the chip's file name.

The two facts stand as literals in its sources (``SupportedISA``, ``architectureMap``); they are read with ``ast``.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from bc250studio import settings
from bc250studio.errors import BadInput, clean

TARGET = (10, 1, 3)
GFX = "gfx1013"
_VERSION = re.compile(r"""__version__\s*=\s*["']([0-9][0-9.]*)["']""")
LARGEST_SOURCE = 4 * 2**20


@dataclass(frozen=True)
class Tensile:
    """A checkout (or installed package). ``schedule`` is what logic files of the chip must be called."""

    folder: Path
    package: Path
    version: str
    knows: bool
    schedule: str

    @property
    def program(self) -> Path:
        """``bin/Tensile``."""
        return self.package / "bin" / "Tensile"

    @property
    def creator(self) -> Path:
        """``bin/TensileCreateLibrary``."""
        return self.package / "bin" / "TensileCreateLibrary"


def inspect(folder: Path) -> Tensile:
    """Look at a Tensile.

    Raises:
        BadInput: there is none at ``folder``, or its tables cannot be found.
    """
    package = next((p for p in (folder / "Tensile", folder) if (p / "bin" / "Tensile").is_file()), None)
    if package is None:
        raise BadInput(f"{folder} holds no Tensile: bin/Tensile is missing; give the folder of a Tensile checkout.")
    isas: list[tuple[int, ...]] = []
    names: dict[str, str] = {}
    for file in sorted(package.glob("*.py")) + sorted((package / "Common").glob("*.py")):
        if file.stat().st_size <= LARGEST_SOURCE:
            _literals(file, isas, names)
    if not isas or not names:
        raise BadInput(f"{package} has no SupportedISA or no architectureMap in its sources; is it a complete Tensile?")
    init = package / "__init__.py"
    version = _VERSION.search(init.read_text("utf-8", "replace")) if init.is_file() else None
    knows = TARGET in isas and GFX in names
    return Tensile(folder, package, version[1] if version else "unknown", knows, clean(names.get(GFX, GFX), 60))


def configured() -> Tensile:
    """The Tensile of settings.toml ([kernels] tensile), checked for gfx1013.

    Raises:
        BadInput: none is set, or it is not patched for the chip.
    """
    place = settings.load().kernels.tensile
    if not place:
        raise BadInput(
            "No Tensile is set; get one patched for gfx1013 (docs/kernels.md) and name it with: "
            "bc250studio settings kernels.tensile=FOLDER"
        )
    return insist(inspect(Path(place).expanduser()))


def insist(found: Tensile) -> Tensile:
    """``found`` when it knows the chip.

    Raises:
        BadInput: it does not; every kernel would be rejected and the run would end with none.
    """
    if not found.knows:
        raise BadInput(
            f"The Tensile in {found.folder} (version {found.version}) does not know gfx1013: (10,1,3) is not in its "
            "SupportedISA or gfx1013 not in its architectureMap, so it would reject every kernel; "
            "patch it as docs/kernels.md says."
        )
    return found


def _literals(file: Path, isas: list[tuple[int, ...]], names: dict[str, str]) -> None:
    text = file.read_text("utf-8", "replace")
    if "SupportedISA" not in text and "architectureMap" not in text:
        return
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            name = _name(target)
            try:
                value = ast.literal_eval(node.value) if name in ("SupportedISA", "architectureMap") else None
            except (ValueError, TypeError):
                continue
            if name == "SupportedISA" and isinstance(value, (list, tuple, set)):
                isas.extend(tuple(v) for v in value if isinstance(v, (list, tuple)))
            elif name == "architectureMap" and isinstance(value, dict):
                names.update({str(k): str(v) for k, v in value.items()})


def _name(target: ast.expr) -> str:
    """``x`` of ``x = ...``, ``a["x"] = ...``."""
    if isinstance(target, ast.Name):
        return target.id
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return str(target.slice.value)
    return ""
