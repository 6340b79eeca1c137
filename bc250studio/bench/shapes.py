"""``random:NAME``: models that are a shape only, with random weights. No torch here."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bc250studio import paths
from bc250studio.errors import BadInput, clean, nearest

if TYPE_CHECKING:
    from bc250studio.models.describe import Description

RANDOM = "random:"


def shape_file(name: str) -> Path:
    """The config.json behind ``random:NAME``: a shape that ships, or a path to a config.json.

    Raises:
        BadInput: neither a shape that ships nor a file.
    """
    shape = name.removeprefix(RANDOM)
    path = Path(shape).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return path
    shapes = paths.shipped("assets/shapes")
    known = [file.name.removesuffix(".config.json") for file in sorted(shapes.glob("*.config.json"))]
    if shape in known:
        return shapes / f"{shape}.config.json"
    raise BadInput(
        f"There is no model shape {clean(shape)!r}; these ship: {', '.join(known)}; a path to a config.json works too."
        + nearest(shape, known)
    )


def describe_shape(name: str) -> Description:
    """The numbers of ``random:NAME``.

    Raises:
        BadInput: no such shape.
    """
    from bc250studio.models.describe import describe
    from bc250studio.models.find import ModelSource

    with tempfile.TemporaryDirectory(prefix="bc250studio-shape-") as folder:
        shutil.copyfile(shape_file(name), Path(folder) / "config.json")
        return describe(ModelSource("folder", name, Path(folder), None, None))
