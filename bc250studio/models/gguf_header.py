"""Read what a GGUF file says about itself: metadata and tensor list, never the weights.

The file's layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
Arrays are decoded in one sweep over a memory map, so a vocabulary of 150,000 tokens takes a fraction of a second.
Everything is checked against the file's size first: a damaged file is an error in words, not a crash.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bc250studio.errors import BadInput, clean

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: ``shape`` as llama.cpp writes it (innermost first), ``type`` is ggml's number."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True)
class GgufHeader:
    """Metadata by key (arrays are lists) and the tensors by name."""

    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]

    def get(self, key: str, default: Any = None) -> Any:
        """A metadata value, or ``default``."""
        return self.metadata.get(key, default)

    @property
    def arch(self) -> str:
        """llama.cpp's architecture name, such as ``llama``."""
        return str(self.metadata.get("general.architecture", ""))

    def of_arch(self, key: str, default: Any = None) -> Any:
        """``ARCH.key``: :meth:`get` with the architecture in front."""
        return self.metadata.get(f"{self.arch}.{key}", default)


def read_header(path: Path, *, arrays: bool = True) -> GgufHeader:
    """The header of ``path``; with ``arrays=False`` long arrays are skipped and stand as their length.

    Raises:
        BadInput: not a GGUF file, another version, or cut short.
    """
    try:
        with path.open("rb") as file:
            if path.stat().st_size < 24:
                raise BadInput(f"{path} is not a GGUF file: it is only {path.stat().st_size} bytes long.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                return _Reader(path, view, arrays).header()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}.") from error
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        raise BadInput(f"{path} is damaged or was cut short: its header ends too early; fetch it again.") from error


class _Reader:
    def __init__(self, path: Path, view: mmap.mmap, arrays: bool) -> None:
        self.path, self.view, self.arrays, self.at, self.size = path, view, arrays, 0, len(view)

    def header(self) -> GgufHeader:
        if self.view[:4] != b"GGUF":
            raise BadInput(f"{self.path} is not a GGUF file.")
        version = self._number("I", at=4)
        if version not in (2, 3):
            raise BadInput(f"{self.path} is a GGUF file of version {version}; versions 2 and 3 can be read.")
        tensors, keys = struct.unpack_from("<QQ", self.view, 8)
        self.at = 24
        if tensors > self.size or keys > self.size:
            raise ValueError("counts beyond the file")
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self._string()
            metadata[key] = self._value(self._number("I"))
        return GgufHeader(self.path, version, metadata, {info.name: info for info in self._tensors(tensors)})

    def _tensors(self, count: int) -> list[TensorInfo]:
        found = []
        for _ in range(count):
            name = self._string()
            dims = self._number("I")
            if dims > 8:
                raise ValueError(f"tensor {clean(name, 40)} with {dims} dimensions")
            shape = struct.unpack_from(f"<{dims}Q", self.view, self.at)
            self.at += 8 * dims
            kind, offset = struct.unpack_from("<IQ", self.view, self.at)
            self.at += 12
            found.append(TensorInfo(name, tuple(shape), kind, offset))
        return found

    def _number(self, code: str, at: int | None = None) -> Any:
        if at is not None:
            self.at = at
        (value,) = struct.unpack_from("<" + code, self.view, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        length = self._number("Q")
        end = self.at + length
        if end > self.size:
            raise ValueError("text beyond the file")
        text = self.view[self.at : end].decode("utf-8", "replace")
        self.at = end
        return text

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind != _ARRAY:
            raise ValueError(f"value type {kind}")
        inner, count = self._number("I"), self._number("Q")
        if count > self.size:
            raise ValueError("array beyond the file")
        if inner in _SCALARS:
            code = f"<{count}{_SCALARS[inner]}"
            values = list(struct.unpack_from(code, self.view, self.at)) if self.arrays or count <= 64 else count
            self.at += struct.calcsize(code)
            return values
        if inner == _STRING:
            return self._strings(count)
        return [self._value(inner) for _ in range(count)]

    def _strings(self, count: int) -> list[str] | int:
        view, at, size, keep = self.view, self.at, self.size, self.arrays or count <= 64
        unpack = struct.Struct("<Q").unpack_from
        found: list[str] = []
        for _ in range(count):
            (length,) = unpack(view, at)
            at += 8
            end = at + length
            if end > size:
                raise ValueError("text beyond the file")
            if keep:
                found.append(view[at:end].decode("utf-8", "replace"))
            at = end
        self.at = at
        return found if keep else count
