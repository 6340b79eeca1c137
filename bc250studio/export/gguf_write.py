"""Write a GGUF file whose tensors may arrive in any order and from several threads.

All names, shapes and types are known before the first byte of data, so every tensor has its place in the
file from the start. The file appears under its name only when it is whole: temporary file, fsync, rename.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from bc250studio import paths
from bc250studio.errors import JobFailed, clean
from bc250studio.models.gguf_file import ARRAY, DEFAULT_ALIGNMENT, MAGIC, encode_array, encode_value, row_bytes

VERSION = 3


@dataclass(frozen=True)
class Slot:
    """A tensor of the file to be: ``shape`` in numpy's order, ``type`` is ggml's number."""

    name: str
    shape: tuple[int, ...]
    type: int

    @property
    def size_bytes(self) -> int:
        """Bytes of its data."""
        rows = 1
        for size in self.shape[:-1]:
            rows *= size
        return rows * row_bytes(self.type, self.shape[-1])


class Fields:
    """Metadata of a file to be: key -> (value type, raw bytes), in order."""

    def __init__(self, copied: dict[str, tuple[int, bytes]] | None = None) -> None:
        self.raw: dict[str, tuple[int, bytes]] = dict(copied or {})

    def put(self, key: str, kind: int, value: Any) -> None:
        """Set a scalar or text."""
        self.raw[key] = (kind, encode_value(kind, value))

    def put_array(self, key: str, kind: int, values: list[Any]) -> None:
        """Set an array."""
        self.raw[key] = (ARRAY, encode_array(kind, values))

    def drop(self, *keys: str) -> None:
        """Remove keys that may or may not be there."""
        for key in keys:
            self.raw.pop(key, None)


def _header(fields: Fields, slots: list[Slot], alignment: int) -> tuple[bytes, dict[str, int], int]:
    """Header bytes (padded), file offset of each tensor, and the file's size in bytes."""
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(slots), len(fields.raw))]
    for key, (kind, raw) in fields.raw.items():
        name = key.encode()
        parts += [struct.pack("<Q", len(name)), name, struct.pack("<I", kind), raw]
    at, relative = 0, {}
    for slot in slots:
        name = slot.name.encode()
        dims = tuple(reversed(slot.shape))
        parts += [struct.pack("<Q", len(name)), name, struct.pack(f"<I{len(dims)}Q", len(dims), *dims)]
        parts.append(struct.pack("<IQ", slot.type, at))
        relative[slot.name] = at
        at += -(-slot.size_bytes // alignment) * alignment
    head = b"".join(parts)
    head += b"\0" * (-len(head) % alignment)
    return head, {name: len(head) + offset for name, offset in relative.items()}, len(head) + at


def file_bytes(fields: Fields, slots: list[Slot], alignment: int = DEFAULT_ALIGNMENT) -> int:
    """The exact size of the file, known before it is written."""
    return _header(fields, slots, alignment)[2]


class GgufWriter:
    """A file being written; use as a context manager. Leaving it by an exception removes every trace.

    Raises:
        JobFailed: no room on the disk, or the folder cannot be written.
    """

    def __init__(self, path: Path, fields: Fields, slots: list[Slot], alignment: int = DEFAULT_ALIGNMENT) -> None:
        self.path = path
        self.slots = {slot.name: slot for slot in slots}
        head, self._offsets, self.size_bytes = _header(fields, slots, alignment)
        self._missing = {slot.name: slot.size_bytes for slot in slots}
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        for stale in path.parent.glob(f".{path.name}.*.tmp"):
            stale.unlink(missing_ok=True)
        try:
            paths.private_dir(path.parent)
            self._fd = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError as error:
            raise self._failed(error) from error
        try:
            os.posix_fallocate(self._fd, 0, self.size_bytes)
            self._put(head, 0)
        except OSError as error:
            self._abandon()
            raise self._failed(error) from error

    def write(self, name: str, data: np.ndarray | bytes, at_byte: int = 0) -> None:
        """Put ``data`` into tensor ``name``, ``at_byte`` bytes after its beginning. Thread-safe.

        Raises:
            ValueError: more bytes than the tensor has (a fault of the caller).
        """
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data if isinstance(data, np.ndarray) else data
        count = len(raw)
        if at_byte + count > self.slots[name].size_bytes:
            raise ValueError(f"{name}: {at_byte + count} bytes for a tensor of {self.slots[name].size_bytes}")
        try:
            self._put(raw, self._offsets[name] + at_byte)
        except OSError as error:
            raise self._failed(error) from error
        self._missing[name] -= count

    def __enter__(self) -> GgufWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is not None:
            self._abandon()
            return
        gaps = [name for name, missing in self._missing.items() if missing]
        if gaps:
            self._abandon()
            raise ValueError(f"{len(gaps)} tensors were not written whole, first {gaps[0]}")
        try:
            os.fsync(self._fd)
            os.close(self._fd)
            self._temporary.replace(self.path)
            paths.sync_dir(self.path.parent)
        except OSError as failure:
            self._temporary.unlink(missing_ok=True)
            raise self._failed(failure) from failure

    def _put(self, raw: Any, at: int) -> None:
        view = memoryview(raw)
        while view:
            done = os.pwrite(self._fd, view, at)
            view, at = view[done:], at + done

    def _abandon(self) -> None:
        os.close(self._fd)
        self._temporary.unlink(missing_ok=True)

    def _failed(self, error: OSError) -> JobFailed:
        return JobFailed(
            f"{clean(self.path)} could not be written ({error.strerror or error}): it needs "
            f"{self.size_bytes / 2**20:.0f} MiB; free some room or choose another place, then export again. "
            "The trained adapter is untouched."
        )
