"""Read GGUF files: metadata, tensor list and tensor data, without copying the file into memory.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
Files split into ``NAME-00001-of-0000N.gguf`` open as one. Metadata is kept as raw bytes too, so that a
file written from another one carries the same bytes. Everything read here is foreign: any malformed
file ends in a :class:`~bc250studio.errors.BadInput` that names it, never in a crash.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bc250studio.errors import BadInput, clean

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
"""Metadata value types by their number in the format."""
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", 11: "q", 12: "d"}
_MAX_DIMS = 4
_MAX_KEY = 65535


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file. ``shape`` in numpy's order: rows first, the contiguous dimension last."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int
    size_bytes: int
    part: int = 0

    @property
    def type_name(self) -> str:
        """ggml's name of the number type, lower case, such as ``q4_k``."""
        return type_name(self.type)

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def columns(self) -> int:
        """Length of a row: the contiguous dimension."""
        return self.shape[-1]

    @property
    def rows(self) -> int:
        """Number of rows, over all leading dimensions."""
        return self.elements // self.columns if self.elements else 0


def type_name(number: int) -> str:
    """``q4_k`` for 12. Unknown numbers read as ``type 99``."""
    from gguf.constants import GGMLQuantizationType

    try:
        return GGMLQuantizationType(number).name.lower()
    except ValueError:
        return f"type {number}"


def row_bytes(number: int, columns: int) -> int:
    """Bytes of one row of ``columns`` numbers in a type.

    Raises:
        BadInput: the type is unknown, or rows of that length do not fit its blocks.
    """
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(number)]
    except (ValueError, KeyError) as error:
        raise BadInput(f"The number type {number} is not known to this version; update the gguf package.") from error
    if columns % block:
        raise BadInput(f"Rows of {columns} numbers cannot be stored as {type_name(number)} (blocks of {block}).")
    return columns // block * size


class _Cursor:
    """A position in a memory map, with bounds checked on every read."""

    def __init__(self, data: mmap.mmap, where: Path) -> None:
        self.data, self.where, self.at = data, where, 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise BadInput(f"{clean(self.where)} ends in the middle of its header; copy or download it again.")
        piece = self.data[self.at : self.at + count]
        self.at += count
        return piece

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def text(self, limit: int = 1 << 31) -> str:
        length = self.number("Q")
        if length > limit:
            raise BadInput(f"{clean(self.where)} has a damaged header (a name of {length} bytes); download it again.")
        return self.take(length).decode("utf-8", "replace")

    def skip_value(self, kind: int, depth: int = 0) -> None:
        if kind in _SCALARS:
            self.take(struct.calcsize("<" + _SCALARS[kind]))
        elif kind == STRING:
            self.take(self.number("Q"))
        elif kind == ARRAY and depth < 2:
            inner, count = self.number("I"), self.number("Q")
            if inner in _SCALARS:
                self.take(struct.calcsize("<" + _SCALARS[inner]) * count)
                return
            for _ in range(count):
                self.skip_value(inner, depth + 1)
        else:
            raise BadInput(f"{clean(self.where)} has a damaged header (value type {kind}); download it again.")

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == STRING:
            return self.text()
        inner, count = self.number("I"), self.number("Q")
        if inner in _SCALARS:
            code = _SCALARS[inner]
            raw = self.take(struct.calcsize("<" + code) * count)
            return list(struct.unpack(f"<{count}{code}", raw))
        return [self.value(inner) for _ in range(count)]


class GgufFile:
    """An open GGUF file. ``fields`` holds raw metadata in file order, ``tensors`` the tensors by name.

    Raises:
        BadInput: not a GGUF file, an unsupported version, a torn or damaged header, a missing part.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.fields: dict[str, tuple[int, bytes]] = {}
        self.tensors: dict[str, Tensor] = {}
        self._files: list[Any] = []
        self._cache: dict[str, Any] = {}
        self.alignment = DEFAULT_ALIGNMENT
        self._read_part(self.path)
        count = self.get("split.count", 0)
        if isinstance(count, int) and count > 1:
            self._read_siblings(count)

    def close(self) -> None:
        """Let the file go."""
        for opened in self._files:
            opened.close()
        self._files = []

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, key: str, default: Any = None) -> Any:
        """The metadata value of ``key``, decoded, or ``default``."""
        if key not in self.fields:
            return default
        if key not in self._cache:
            kind, raw = self.fields[key]
            self._cache[key] = _decode(kind, raw, self.path)
        return self._cache[key]

    @property
    def arch(self) -> str:
        """llama.cpp's name of the architecture."""
        return str(self.get("general.architecture", ""))

    def arch_get(self, key: str, default: Any = None) -> Any:
        """A value under the architecture's own prefix, such as ``block_count``."""
        return self.get(f"{self.arch}.{key}", default)

    def raw(self, tensor: Tensor, first_byte: int = 0, count: int | None = None) -> np.ndarray:
        """Bytes of a tensor as uint8, read (not mapped: a mapped file would count as this process's memory).

        Raises:
            BadInput: the file was cut short after it was opened.
        """
        count = tensor.size_bytes - first_byte if count is None else count
        buffer = np.empty(count, np.uint8)
        view, done = buffer.data, 0
        while done < count:
            got = os.preadv(self._files[tensor.part].fileno(), [view[done:]], tensor.offset + first_byte + done)
            if got <= 0:
                raise BadInput(f"{clean(self.path)} became shorter while it was read; is something writing to it?")
            done += got
        return buffer

    def rows(self, tensor: Tensor, first: int = 0, count: int | None = None) -> np.ndarray:
        """Rows ``first .. first+count`` as float32 [count, columns], dequantised.

        Raises:
            BadInput: the number type cannot be read.
        """
        size = row_bytes(tensor.type, tensor.columns)
        count = tensor.rows - first if count is None else count
        piece = self.raw(tensor, first * size, count * size)
        return dequantise(piece, tensor.type, count, tensor.columns, f"{tensor.name} in {self.path.name}")

    def array(self, name: str) -> np.ndarray:
        """A whole tensor as float32 in its own shape.

        Raises:
            BadInput: there is no such tensor, or its type cannot be read.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            raise BadInput(f"{clean(self.path)} has no tensor {clean(name)!r}.")
        return self.rows(tensor).reshape(tensor.shape)

    def _read_part(self, path: Path) -> None:
        try:
            opened = open(path, "rb")  # noqa: SIM115 (stays open until close())
        except OSError as error:
            raise BadInput(f"{clean(path)} cannot be read: {error.strerror or error}.") from error
        self._files.append(opened)
        try:
            data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        except (ValueError, OSError) as error:
            raise BadInput(f"{clean(path)} is not a GGUF file: it is empty or cannot be mapped.") from error
        with data:
            self._read_header(_Cursor(data, path), len(self._files) - 1)

    def _read_header(self, cursor: _Cursor, part: int) -> None:
        path = cursor.where
        if cursor.take(4) != MAGIC:
            raise BadInput(f"{clean(path)} is not a GGUF file: it does not begin with the letters GGUF.")
        version = cursor.number("I")
        if version not in (2, 3):
            raise BadInput(f"{clean(path)} is a GGUF file of version {version}; versions 2 and 3 (little-endian) work.")
        tensor_count, field_count = cursor.number("Q"), cursor.number("Q")
        fields = self._read_fields(cursor, field_count)
        if not self.fields:
            self.fields = fields
            self.alignment = self._read_alignment()
        self._read_tensors(cursor, tensor_count, part)

    def _read_fields(self, cursor: _Cursor, count: int) -> dict[str, tuple[int, bytes]]:
        fields: dict[str, tuple[int, bytes]] = {}
        for _ in range(count):
            key = cursor.text(_MAX_KEY)
            kind = cursor.number("I")
            start = cursor.at
            cursor.skip_value(kind)
            fields[key] = (kind, cursor.data[start : cursor.at])
        return fields

    def _read_alignment(self) -> int:
        value = self.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(value, int) or value <= 0 or value & (value - 1) or value > 1 << 20:
            raise BadInput(f"{clean(self.path)} has a damaged header (alignment {clean(value, 20)}).")
        return value

    def _read_tensors(self, cursor: _Cursor, count: int, part: int) -> None:
        found: list[Tensor] = []
        for _ in range(count):
            name = cursor.text(_MAX_KEY)
            dims = cursor.number("I")
            if dims > _MAX_DIMS:
                raise BadInput(f"{clean(cursor.where)} has a damaged header (a tensor of {dims} dimensions).")
            shape = tuple(reversed([cursor.number("Q") for _ in range(dims)])) or (1,)
            kind, offset = cursor.number("I"), cursor.number("Q")
            elements = 1
            for size in shape:
                elements *= size
            try:
                size_bytes = row_bytes(kind, shape[-1]) * (elements // shape[-1]) if elements else 0
            except BadInput as error:
                raise BadInput(f"{clean(cursor.where)}: tensor {clean(name, 80)}: {error}") from error
            found.append(Tensor(name, shape, kind, offset, size_bytes, part))
        start = (cursor.at + self.alignment - 1) // self.alignment * self.alignment
        for tensor in found:
            begin = start + tensor.offset
            if begin + tensor.size_bytes > len(cursor.data):
                raise BadInput(
                    f"{clean(cursor.where)} is cut off: tensor {clean(tensor.name, 80)} reaches past its end; "
                    "download or copy it again."
                )
            if tensor.name in self.tensors:
                raise BadInput(f"{clean(cursor.where)} holds the tensor {clean(tensor.name, 80)} twice.")
            self.tensors[tensor.name] = Tensor(
                tensor.name, tensor.shape, tensor.type, begin, tensor.size_bytes, tensor.part
            )

    def _read_siblings(self, count: int) -> None:
        match = re.match(r"(.*)-00001-of-(\d{5})$", self.path.stem)
        if not match or int(match[2]) != count:
            raise BadInput(f"{clean(self.path)} is part of a split model; give its first part, ...-00001-of-....gguf.")
        for number in range(2, count + 1):
            self._read_part(self.path.with_name(f"{match[1]}-{number:05d}-of-{match[2]}.gguf"))


def _decode(kind: int, raw: bytes, where: Path) -> Any:
    with mmap.mmap(-1, max(len(raw), 1)) as scratch:
        scratch.write(raw)
        return _Cursor(scratch, where).value(kind)


def dequantise(raw: np.ndarray, kind: int, rows: int, columns: int, where: str = "a tensor") -> np.ndarray:
    """``rows`` x ``columns`` numbers of ggml type ``kind`` from their bytes, as float32 [rows, columns].

    Raises:
        BadInput: no decoder for the type.
    """
    import libgguf

    if kind == 0:
        return np.array(raw.view(np.float32).reshape(rows, columns))
    if kind == 1:
        return raw.view(np.float16).astype(np.float32).reshape(rows, columns)
    if kind == 30:
        wide = raw.view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(rows, columns)
    if rows == 0 or columns == 0:
        return np.empty((rows, columns), np.float32)
    try:
        size = row_bytes(kind, columns)
        packed = np.ascontiguousarray(raw).reshape(rows, size)
        return np.asarray(libgguf.dequantize_rows(packed, kind, n_per_row=columns), np.float32)
    except ValueError as error:
        raise BadInput(f"{clean(where)} has the number type {type_name(kind)}, which cannot be read here.") from error


def encode_value(kind: int, value: Any) -> bytes:
    """The bytes of a metadata value; the inverse of what :meth:`GgufFile.get` reads."""
    if kind in _SCALARS:
        return struct.pack("<" + _SCALARS[kind], value)
    if kind == STRING:
        text = str(value).encode("utf-8")
        return struct.pack("<Q", len(text)) + text
    raise ValueError(f"no encoder for value type {kind}")


def encode_array(kind: int, values: list[Any]) -> bytes:
    """The bytes of an array value of ``kind``."""
    return struct.pack("<IQ", kind, len(values)) + b"".join(encode_value(kind, value) for value in values)


def iterate(file: GgufFile) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor, dequantised, in file order."""
    for name in file.tensors:
        yield name, file.array(name)
