"""What an export wrote: the record that stages, hand-over and screens read."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from bc250studio.models.gguf_file import GgufFile


@dataclass(frozen=True)
class Exported:
    """A finished file. ``types`` counts the tensors of each number type *in the file*, ``size_bytes`` its length."""

    path: Path
    kind: Literal["adapter", "merged"]
    types: dict[str, int]
    size_bytes: int
    sha256: str
    notes: tuple[str, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "path": str(self.path), "notes": list(self.notes)}


def measure(path: Path, kind: Literal["adapter", "merged"], notes: tuple[str, ...] = ()) -> Exported:
    """Read a finished file back: its types and digest are what is really in it."""
    with GgufFile(path) as file:
        types = Counter(tensor.type_name for tensor in file.tensors.values())
    return Exported(path, kind, dict(sorted(types.items())), path.stat().st_size, sha256_of(path), notes)


def sha256_of(path: Path) -> str:
    """Hex digest of a file, read in pieces."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()
