"""Read safetensors files with numpy alone, bfloat16 included, one tensor at a time.

``safetensors.numpy`` refuses bfloat16, and export must work without torch. Format:
https://github.com/huggingface/safetensors (8 bytes of length, JSON header, data).
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bc250studio.errors import BadInput, clean

_TYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I64": np.int64, "I32": np.int32,
    "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip
_MAX_HEADER = 100 << 20


class SafetensorsFile:
    """One or several files read as one: ``names``, ``shape(name)``, ``read(name)``.

    Raises:
        BadInput: a file is missing, torn or not in the format; two files hold the same tensor.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._maps: list[mmap.mmap] = []
        self._entries: dict[str, tuple[int, dict[str, Any], int]] = {}
        self.metadata: dict[str, str] = {}
        self.paths = [Path(path) for path in paths]
        for path in self.paths:
            self._open(path)

    @classmethod
    def folder(cls, folder: Path, stem: str = "model") -> SafetensorsFile:
        """``STEM.safetensors`` or the files its index names, such as ``model-00001-of-00002.safetensors``.

        Raises:
            BadInput: neither is there.
        """
        single, index = folder / f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
        if single.is_file():
            return cls([single])
        try:
            table = json.loads(index.read_text("utf-8"))["weight_map"]
            names = sorted({str(name) for name in table.values()})
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise BadInput(f"{clean(folder)} has no {stem}.safetensors (and no index of its parts).") from error
        if any("/" in name or name.startswith(".") for name in names):
            raise BadInput(f"{clean(index)} names files outside its folder; it is not usable.")
        return cls([folder / name for name in names])

    @property
    def names(self) -> list[str]:
        """All tensor names."""
        return list(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return tuple(self._entries[name][1]["shape"])

    def read(self, name: str) -> np.ndarray:
        """A tensor as float32, in its shape.

        Raises:
            BadInput: no such tensor.
        """
        return self.rows(name)

    def rows(self, name: str, index: slice | np.ndarray | None = None) -> np.ndarray:
        """A tensor as float32; with ``index``, those of its rows (all leading dimensions flattened), [n, columns]."""
        if name not in self._entries:
            raise BadInput(f"{clean(self.paths[0])} has no tensor {clean(name)!r}.")
        part, entry, base = self._entries[name]
        kind = np.dtype(_TYPES[entry["dtype"]])
        begin, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        flat = np.frombuffer(self._maps[part], kind, (end - begin) // kind.itemsize, base + begin)
        array = flat.reshape(shape) if index is None else flat.reshape(-1, shape[-1])[index]
        if entry["dtype"] == "BF16":
            return (array.astype(np.uint32) << 16).view(np.float32)
        return array.astype(np.float32)

    def _open(self, path: Path) -> None:
        try:
            with open(path, "rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise BadInput(f"{clean(path)} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
        broken = f"{clean(path)} is not a whole safetensors file; save or copy it again."
        if len(data) < 8:
            raise BadInput(broken)
        (length,) = struct.unpack("<Q", data[:8])
        if length > min(len(data) - 8, _MAX_HEADER):
            raise BadInput(broken)
        try:
            header = json.loads(data[8 : 8 + length])
            metadata = header.pop("__metadata__", {})
            for name, entry in header.items():
                kind = np.dtype(_TYPES[entry["dtype"]])
                begin, end = (int(x) for x in entry["data_offsets"])
                elements = 1
                for size in entry["shape"]:
                    if not isinstance(size, int) or size < 0:
                        raise BadInput(broken)
                    elements *= size
                if not 0 <= begin <= end <= len(data) - 8 - length or end - begin != elements * kind.itemsize:
                    raise BadInput(broken)
                if name in self._entries:
                    raise BadInput(f"{clean(path)} repeats the tensor {clean(name, 80)} of another part.")
                self._entries[name] = (len(self._maps), entry, 8 + length)
        except KeyError as error:
            raise BadInput(f"{clean(path)} holds a number type that is not read here: {clean(error, 40)}.") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise BadInput(broken) from error
        self.metadata.update({str(k): str(v) for k, v in metadata.items()} if isinstance(metadata, dict) else {})
        self._maps.append(data)
